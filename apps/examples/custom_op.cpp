// A user-defined op, y = a * b: its shape rule, its SBP signatures, its gradient, its body. The graph differentiates, plans
// and parallelises it like a built-in one. Here y = x * (W x) learns the target 3 x * x: W becomes 3 times the identity.
#include <cstdio>

#include "devices/base/philox.h"
#include "kernels/rules.h"
#include "runtime/app.h"
#include "runtime/compile.h"

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::kernels;

OpDef multiply() {
  OpDef op{.name = "multiply", .inputs = 2, .outputs = 1, .infer = one_shape("multiply", 2)};
  op.signatures = [](Types, const Attrs&) {   // rows split, columns split; linear in a and in b: partial sums pass
    return std::vector{row({Sbp::S(0), Sbp::S(0)}, {Sbp::S(0)}), row({Sbp::S(1), Sbp::S(1)}, {Sbp::S(1)}),
                       row({Sbp::P(), Sbp::B()}, {Sbp::P()}), row({Sbp::B(), Sbp::P()}, {Sbp::P()})};
  };
  op.gradient = [](GradContext& g) -> Status {
    for (int i : {0, 1})
      if (g.needs_grad(i)) g.grad_in(i, g.emit("multiply", {g.grad_out(0), g.in(1 - i)}, {})[0]);
    return {};
  };
  op.cpu = [](const Call& c) {
    const auto *a = c.in[0].as<float>(), *b = c.in[1].as<float>();
    for (std::int64_t i = 0; i < c.out[0].size(); ++i) c.out[0].as<float>()[i] = a[i] * b[i];
  };
  return op;
}

struct Data final : actors::UserActor {   // x is random, t = 3 x * x
  Status act(actors::UserCall& call) override {
    auto *x = call.out[0].as<float>(), *t = call.out[1].as<float>();
    for (std::int64_t i = 0; i < call.out[0].size(); ++i) {
      x[i] = to_unit(philox(7, std::uint64_t(call.microbatch * 16 + i), std::uint64_t(call.step))[0]) - 0.5f;
      t[i] = 3 * x[i] * x[i];
    }
    return {};
  }
};

int main(int argc, char** argv) {
  App app;
  app.actor<Data>("data");
  if (!app.op(multiply()).ok()) return exit_usage;
  app.serve_if_worker(argc, argv);

  Graph g(app.ops());
  g.program("train", {.microbatches = 4, .samples = 2});
  g.unit("model");
  const TensorType rows{DType::f32, {2, 8}};
  const auto data = g.actor("data", "data", {}, {{"x", rows}, {"t", rows}});
  const Value wx = g.op("linear", {data[0], g.param("w", {8, 8}, Init::constant(0))})[0];
  const Value loss = g.op("mse_loss", {g.op("multiply", {data[0], wx})[0], data[1]})[0];
  g.minimize(loss, {.lr = 5e-2});

  const auto plan = compile(g, {.stages = stage_meshes({2})});
  return app.run_main(plan, {.session = {.steps = 200, .on_step = [](const StepResult& r) {
    if (r.step % 33 == 0) std::printf("step %d: loss %.6f\n", static_cast<int>(r.step), r.loss);
  }}});
}
