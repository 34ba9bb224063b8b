// Two user-defined actors on two workers. `Halves` makes a tensor of which each worker has one half (S(0));
// `Whole` reads all of it on both (B). The all-gather between them is a boxing that the plan shows.
#include <cstdio>

#include <troupe/troupe.h>

using namespace troupe;
using namespace troupe::runtime;

/// Publishes its rows of a [4, 2] tensor: element = 100 * step + row.
struct Halves final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    auto& v = call.out[0];
    for (std::int64_t i = 0; i < v.size(); ++i)
      v.as<float>()[i] = static_cast<float>(100 * call.step + v.extent.dims[0].lo + i / v.cols());
    return {};
  }
};

/// Sums the elements that it gets and reports the sum to the session, which hears of it once: both have the same.
struct Whole final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    double sum = 0;
    for (std::int64_t i = 0; i < call.in[0].size(); ++i) sum += call.in[0].as<float>()[i];
    call.report("sum", {sum});
    return {};
  }
};

int main(int argc, char** argv) {
  App app;
  app.actor<Halves>("halves");
  app.actor<Whole>("whole");
  app.serve_if_worker(argc, argv);

  Graph g(app.ops());
  g.program("main", {.microbatches = 1, .samples = 4});
  g.unit("example");
  const Value x = g.actor("halves", "producer", {}, {{"x", {DType::f32, {4, 2}}, NdSbp{Sbp::S(0)}}})[0];
  g.actor("whole", "consumer", {x}, {}, {}, {NdSbp{Sbp::B()}});

  const auto plan = compile(g, {.stages = {Mesh::dense({{"x", 2}})}, .stage_of_unit = {0}, .seed = 0, .costs = {}});
  JobOptions job;
  job.session.steps = 3;
  job.session.on_closed = [](const std::string&, std::int64_t step, const std::vector<Report>& reports) {
    for (const auto& r : reports)
      std::printf("step %lld: %s = %g\n", static_cast<long long>(step), r.name.c_str(), r.values[0]);
  };
  return app.run_main(plan, job);
}
