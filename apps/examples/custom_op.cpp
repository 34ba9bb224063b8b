// A user-defined op: y = x * s, one learnt scale per column. It brings its shape rule, its SBP signatures
// and its gradient; the graph differentiates, plans and parallelises it like a built-in one.
#include <cstdio>

#include "runtime/app.h"
#include "runtime/compile.h"

using namespace troupe;
using namespace troupe::runtime;
using kernels::Call;
using kernels::OpDef;
using Types = std::span<const TensorType>;

OpDef column_scale() {                                        // x (rows, cols), s (cols) -> (rows, cols)
  OpDef op{.name = "column_scale", .inputs = 2, .outputs = 1};
  op.infer = [](Types in, const Attrs&) -> Expected<std::vector<TensorType>> {
    if (in[1].shape != Shape{in[0].shape.back()}) return invalid("column_scale: one scale per column expected, got " + to_string(in[1].shape));
    return std::vector<TensorType>{in[0]};
  };
  op.signatures = [](Types, const Attrs&) {
    return std::vector<kernels::Signature>{{{Sbp::S(0), Sbp::B()}, {Sbp::S(0)}}, {{Sbp::S(1), Sbp::S(0)}, {Sbp::S(1)}}};
  };
  op.gradient = [](kernels::GradContext& g) -> Status {
    if (g.needs_grad(0)) g.grad_in(0, g.emit("column_scale", {g.grad_out(0), g.in(1)}, {})[0]);
    if (g.needs_grad(1)) g.grad_in(1, g.emit("column_scale_ds", {g.grad_out(0), g.in(0)}, {})[0]);
    return {};
  };
  op.cpu = [](const Call& c) {
    for (std::int64_t i = 0; i < c.in[0].size(); ++i)
      c.out[0].as<float>()[i] = c.in[0].as<float>()[i] * c.in[1].as<float>()[i % c.in[0].cols()];
  };
  return op;
}

OpDef column_scale_ds() {                                     // dy, x -> ds[col] = sum over rows of dy * x
  OpDef op{.name = "column_scale_ds", .inputs = 2, .outputs = 1};
  op.infer = [](Types in, const Attrs&) -> Expected<std::vector<TensorType>> {
    return std::vector<TensorType>{{DType::f32, {in[0].shape.back()}}};
  };
  op.signatures = [](Types, const Attrs&) {
    return std::vector<kernels::Signature>{{{Sbp::S(0), Sbp::S(0)}, {Sbp::P()}}, {{Sbp::S(1), Sbp::S(1)}, {Sbp::S(0)}}};
  };
  op.cpu = [](const Call& c) {
    auto* ds = c.out[0].as<float>();
    const auto cols = c.in[0].cols();
    for (std::int64_t j = 0; j < cols; ++j) ds[j] = 0;
    for (std::int64_t i = 0; i < c.in[0].size(); ++i) ds[i % cols] += c.in[0].as<float>()[i] * c.in[1].as<float>()[i];
  };
  return op;
}

/// x counts up; the target is 3 x.
struct Data final : actors::UserActor {
  explicit Data(const actors::UserActorInfo& info) : factor(static_cast<float>(info.attrs.real("factor"))) {}
  Status act(actors::UserCall& call) override {
    for (std::int64_t i = 0; i < call.out[0].size(); ++i)
      call.out[0].as<float>()[i] = factor * static_cast<float>((call.microbatch + i) % 5 - 2);
    return {};
  }
  float factor;
};

int main(int argc, char** argv) {
  App app;
  if (!app.op(column_scale()).ok() || !app.op(column_scale_ds()).ok()) return exit_usage;
  app.actor<Data>("data");
  app.serve_if_worker(argc, argv);

  Graph g(app.ops());
  g.program("train", {.microbatches = 4, .samples = 2});
  g.unit("scale");
  const PortType port{"x", {DType::f32, {2, 8}}, {}};
  const Value x = g.actor("data", "x", {}, {port}, {{"factor", 1.0}})[0];
  const Value t = g.actor("data", "t", {}, {port}, {{"factor", 3.0}})[0];
  const Value y = g.op("column_scale", {x, g.param("scale", {8}, Init::constant(1))})[0];
  const Value loss = g.op("mse_loss", {y, t}, {{"scale", 0.125}})[0];
  g.minimize(loss, {});

  const auto plan = compile(g, {.stages = stage_meshes({2}), .stage_of_unit = {}, .lanes = 4, .seed = 1, .costs = {}});
  JobOptions job;
  job.session.steps = 100;
  job.session.loss_divisor = 8;
  job.session.lr = [](std::int64_t) { return 5e-2; };
  job.session.on_step = [](const StepResult& r) {
    if (r.step % 33 == 0) std::printf("step %lld: loss %.6f\n", static_cast<long long>(r.step), r.loss);
  };
  return app.run_main(plan, job);
}
