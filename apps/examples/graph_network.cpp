// graph_network [WIDTHS [SEED]]: a graph network whose four layers are stages of a pipeline, of these dp widths (2,1);
// with a seed, simulated in this process. Each microbatch is a graph. Each layer gives a node the mean of what leads to
// it, times a matrix; they learn what lies four edges away. `graph_network check` tries what the op promises.
#include <cstdio>
#include <sstream>

#include <troupe/troupe.h>
using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::kernels;
constexpr std::int64_t nodes = 24, edges = 72, features = 4, microbatches = 8;
/// For each edge (a, b): y[b] += x[a] / number of edges to b; `back`: y[a] += x[b] / the same number.
void pass(const std::int32_t* edge, const float* x, float* y, std::int64_t width, bool back) {
  std::vector<float> to(nodes);
  std::fill_n(y, nodes * width, 0.0f);
  for (std::int64_t e = 0; e < edges; ++e) ++to[edge[2 * e + 1]];
  for (std::int64_t e = 0; e < edges; ++e)
    for (std::int64_t f = 0; f < width; ++f)
      y[edge[2 * e + !back] * width + f] += x[edge[2 * e + back] * width + f] / to[edge[2 * e + 1]];
}
OpDef neighbours() {
  OpDef op{.name = "neighbours", .inputs = 2, .outputs = 1, .attributes = {{integer_attribute("back")}}};
  op.infer = [](Types in, const Attrs&) -> Expected<std::vector<TensorType>> {
    if (in[1].shape.size() != 2 || in[1].shape[0] != nodes) return invalid("neighbours takes edges and nodes' values");
    return std::vector{in[1]};
  };
  op.signatures = [](Types, const Attrs&) {
    return std::vector{row({Sbp::B(), Sbp::S(1)}, {Sbp::S(1)}), row({Sbp::B(), Sbp::P()}, {Sbp::P()})};
  };
  op.gradient = [](GradContext& g) {
    g.grad_in(1, g.emit("neighbours", {g.in(0), g.grad_out(0)}, {{"back", 1 - g.attrs().integer("back")}})[0]);
    return Status();
  };
  op.cpu = [](const Call& c) {
    pass(c.in[0].as<int>(), c.in[1].as<float>(), c.out[0].as<float>(), c.out[0].cols(), c.attrs->integer("back") != 0);
  };
  return op;
}
struct Data final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    auto* edge = call.out[0].as<std::int32_t>();
    float *x = call.out[1].as<float>(), *t = call.out[2].as<float>();
    const auto draw = [&](std::uint64_t i) { return philox(call.microbatch, i, std::uint64_t(call.step))[0]; };
    for (int i = 0; i < 2 * edges; ++i) edge[i] = static_cast<std::int32_t>(draw(i) % nodes);
    for (int i = 0; i < nodes * features; ++i) t[i] = x[i] = to_unit(draw(2 * edges + i)) - 0.5f;
    for (int l = 0; l < 4; ++l) pass(edge, std::vector<float>(t, t + nodes * features).data(), t, features, false);
    return {};
  }
};
int main(int argc, char** argv) {
  App app;
  app.actor<Data>("data");
  if (const Status s = app.op(neighbours()); !s.ok()) return exit_usage;
  const TensorType of_edges{DType::i32, {edges, 2}}, of_nodes{DType::f32, {nodes, features}};
  if (argc > 1 && argv[1] == std::string("check"))
    return check_op(app.ops(), "neighbours", {.in = {of_edges, of_nodes}, .high = nodes}).ok() ? 0 : 1;
  app.serve_if_worker(argc, argv);
  Graph g(app.ops());
  g.program("train", {.microbatches = microbatches, .samples = nodes});
  const auto data = g.actor("data", "data", {}, {{"edges", of_edges}, {"x", of_nodes}, {"t", of_nodes}});
  Value h = data[1];
  for (const std::string layer : {"one", "two", "three", "four"}) {
    g.unit(layer);
    h = g.op("linear", {h, g.param(layer + ".w", {features, features}, Init::normal(0.5f))})[0];
    h = g.op("neighbours", {data[0], h})[0];
  }
  g.minimize(g.op("mse_loss", {h, data[2]}, {{"scale", 1.0 / microbatches}})[0], {.lr = 0.02f});
  std::vector<std::int64_t> dp;
  std::istringstream widths(argc > 1 ? argv[1] : "1,1,1,1");
  for (std::string width; std::getline(widths, width, ',');) dp.push_back(std::atoll(width.c_str()));
  const auto plan = compile(g, {.stages = stage_meshes(dp), .seed = 1});
  if (!plan.ok()) return app.run_main(plan, {});
  JobOptions job{.session = {.steps = 400}};
  job.session.on_step = [](const StepResult& r) {
    if (r.step % 57 == 0) std::printf("step %d: loss %.6f\n", int(r.step), r.loss);
  };
  const auto end = argc > 2 ? app.simulate(*plan, job, std::strtoull(argv[2], nullptr, 10)).job : app.run(*plan, job);
  if (!end.status.ok()) return std::fprintf(stderr, "%s\n", end.status.message().c_str()), end.exit_code;
  std::printf("params_hash %s\n", end.params_hash.c_str());
}
