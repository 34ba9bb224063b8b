// Logistic regression: weights that make a table's labels likeliest, read back from the job's result. A line of the
// file is a row: its features, then its label, 0 or 1. On several workers the same bits come out; with a seed the job
// runs in this process alone, on simulated machines (App::simulate):
//
//   logistic_regression FILE [WORKERS [SEED]]
#include <cstdio>
#include <fstream>
#include <sstream>

#include <troupe/troupe.h>

using namespace troupe;
using namespace troupe::runtime;

struct Table {
  std::vector<float> features;  // row by row
  std::vector<std::int32_t> labels;
  std::size_t columns = 0;
  bool good = true;  // equally long rows
  explicit Table(const std::string& file) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      std::istringstream row(line);
      for (float v; row >> v;) features.push_back(v);
      if (line.empty() || features.empty()) continue;
      labels.push_back(static_cast<std::int32_t>(features.back()));
      features.pop_back();
      if (columns == 0) columns = features.size();
      good &= features.size() == columns * labels.size() && row.eof() && (labels.back() | 1) == 1;
    }
  }
};

struct Rows final : actors::UserActor {  // publishes those of each microbatch
  explicit Rows(const actors::UserActorInfo& info) : table(info.attrs.text("file")) {}
  Status act(actors::UserCall& call) override {
    auto &x = call.out[0], &y = call.out[1];
    if ((call.microbatch + 1) * y.size() > std::ssize(table.labels)) return invalid("the table has changed");
    std::copy_n(table.features.begin() + call.microbatch * x.size(), x.size(), x.as<float>());
    std::copy_n(table.labels.begin() + call.microbatch * y.size(), y.size(), y.as<std::int32_t>());
    return {};
  }
  Table table;
};

int main(int argc, char** argv) {
  App app;
  app.actor<Rows>("rows");
  app.serve_if_worker(argc, argv);
  if (argc < 2) return std::fprintf(stderr, "usage: logistic_regression FILE [WORKERS [SEED]]\n"), exit_usage;

  constexpr std::int64_t microbatches = 4;  // rows beyond a multiple of 4 are left out
  const Table table(argv[1]);
  const auto rows = std::ssize(table.labels) / microbatches;
  if (rows == 0 || !table.good)
    return std::fprintf(stderr, "%s: expected 4 or more rows of numbers\n", argv[1]), exit_data;
  const auto columns = static_cast<std::int64_t>(table.columns);
  Graph g(app.ops());
  g.program("train", {.microbatches = microbatches, .samples = rows});
  const auto data = g.actor("rows", "table", {}, {{"x", {DType::f32, {rows, columns}}}, {"y", {DType::i32, {rows}}}},
                            {{"file", argv[1]}});
  const Value w = g.param("w", {2, columns}, Init::constant(0)), b = g.param("b", {2}, Init::constant(0));
  const Value logits = g.op("bias_add", {g.op("linear", {data[0], w})[0], b})[0];
  const double scale = 1.0 / static_cast<double>(microbatches * rows);
  g.minimize(g.op("softmax_cross_entropy", {logits, data[1]}, {{"scale", scale}})[0], {.weight_decay = 0});

  const auto plan = compile(g, {.stages = stage_meshes({argc > 2 ? std::atoll(argv[2]) : 1})});
  if (!plan.ok()) return app.run_main(plan, {});
  JobOptions job;
  job.session.steps = 600;
  job.session.loss_divisor = 1 / scale;
  job.session.lr = [](std::int64_t step) { return step < 300 ? 0.1 : 0.1 * static_cast<double>(600 - step) / 300; };
  job.session.parameters = {"w", "b"};
  const JobResult result = argc > 3 ? app.simulate(*plan, job, std::strtoull(argv[3], nullptr, 10)).job
                                    : app.run(*plan, job);
  if (!result.status.ok()) return std::fprintf(stderr, "%s\n", result.status.message().c_str()), result.exit_code;
  const auto &weights = result.parameters.at("w").values, &bias = result.parameters.at("b").values;
  for (std::int64_t i = 0; i < columns; ++i) std::printf("w %.6f\n", weights[columns + i] - weights[i]);
  std::printf("b %.6f\n", bias[1] - bias[0]);
}
