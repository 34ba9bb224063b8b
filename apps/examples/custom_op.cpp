// User-defined ops: their shape rules, SBP signatures, gradients, bodies. The graph differentiates, plans and
// parallelises them like built-in ones. `hadamard`, y = a * b, needs nothing more: its gradients are ordinary tensors.
// `gain`, y[r, c] = x[r, c] * s[c], has a parameter, and `gain_grad` adds the parameter's gradient up itself with
// put_terms, which stores an exact sum or f32, as its output needs.
// Here y = gain(x * (W x), s) learns the target 3 x * x. The loss and the hash at the end are the same for any dp
// (argument 1) and ZeRO (argument 2). `custom_op check` tries what the three ops promise.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include <troupe/troupe.h>

using namespace troupe;
using namespace troupe::runtime;
using namespace troupe::kernels;

OpDef hadamard() {
  OpDef op{.name = "hadamard", .inputs = 2, .outputs = 1, .infer = one_shape("hadamard", 2)};
  // rows split, columns split; linear in a and in b: partial sums pass
  op.signatures = [](Types, const Attrs&) {
    return std::vector{row({Sbp::S(0), Sbp::S(0)}, {Sbp::S(0)}), row({Sbp::S(1), Sbp::S(1)}, {Sbp::S(1)}),
                       row({Sbp::P(), Sbp::B()}, {Sbp::P()}), row({Sbp::B(), Sbp::P()}, {Sbp::P()})};
  };
  op.gradient = [](GradContext& g) -> Status {
    for (int i : {0, 1})
      if (g.needs_grad(i)) g.grad_in(i, g.emit("hadamard", {g.grad_out(0), g.in(1 - i)}, {})[0]);
    return {};
  };
  op.cpu = [](const Call& c) {
    const auto *a = c.in[0].as<float>(), *b = c.in[1].as<float>();
    for (std::int64_t i = 0; i < c.out[0].size(); ++i) c.out[0].as<float>()[i] = a[i] * b[i];
  };
  return op;
}

OpDef gain() {
  OpDef op{.name = "gain", .inputs = 2, .outputs = 1};
  op.infer = [](Types in, const Attrs&) -> Expected<std::vector<TensorType>> {
    if (in[0].shape.size() != 2 || in[1].shape != Shape{in[0].shape[1]})
      return invalid("gain takes x (rows, columns) and s (columns)");
    return std::vector{in[0]};
  };
  op.signatures = [](Types, const Attrs&) {
    return std::vector{row({Sbp::S(0), Sbp::B()}, {Sbp::S(0)}), row({Sbp::S(1), Sbp::S(0)}, {Sbp::S(1)}),
                       row({Sbp::P(), Sbp::B()}, {Sbp::P()})};
  };
  op.gradient = [](GradContext& g) -> Status {
    if (g.needs_grad(0)) g.grad_in(0, g.emit("gain", {g.grad_out(0), g.in(1)}, {})[0]);
    if (g.needs_grad(1)) g.grad_in(1, g.emit("gain_grad", {g.grad_out(0), g.in(0)}, {})[0]);
    return {};
  };
  op.cpu = [](const Call& c) {
    const auto *x = c.in[0].as<float>(), *s = c.in[1].as<float>();
    for (std::int64_t i = 0; i < c.out[0].size(); ++i) c.out[0].as<float>()[i] = x[i] * s[i % c.out[0].cols()];
  };
  return op;
}

OpDef gain_grad() {  // ds[c] = sum over r of dy[r, c] * x[r, c]: one term of each element in a call
  OpDef op{.name = "gain_grad", .inputs = 2, .outputs = 1};
  op.infer = [](Types in, const Attrs&) -> Expected<std::vector<TensorType>> {
    return std::vector{TensorType{DType::f32, {in[0].shape[1]}}};
  };
  op.signatures = [](Types, const Attrs&) {
    return std::vector{row({Sbp::S(1), Sbp::S(1)}, {Sbp::S(0)}), row({Sbp::S(0), Sbp::S(0)}, {Sbp::P()})};
  };
  op.accumulates = 1;
  op.cpu = [](const Call& c) {
    const auto *dy = c.in[0].as<float>(), *x = c.in[1].as<float>();
    std::vector<float> terms(static_cast<std::size_t>(c.out[0].size()));
    for (std::int64_t i = 0; i < c.in[0].size(); ++i)
      terms[static_cast<std::size_t>(i % c.in[0].cols())] += dy[i] * x[i];
    put_terms(c.out[0], terms.data(), c.accumulate, *c.par);
  };
  return op;
}

struct Data final : actors::UserActor {  // x is random, t = 3 x * x
  Status act(actors::UserCall& call) override {
    auto *x = call.out[0].as<float>(), *t = call.out[1].as<float>();
    for (std::int64_t i = 0; i < call.out[0].size(); ++i) {
      x[i] = to_unit(philox(7, std::uint64_t(call.microbatch * 16 + i), std::uint64_t(call.step))[0]) - 0.5f;
      t[i] = 3 * x[i] * x[i];
    }
    return {};
  }
};

int check(const OpSet& ops) {
  const TensorType rows{DType::f32, {6, 8}}, row{DType::f32, {8}};
  const std::pair<std::string, OpSample> samples[] = {
      {"hadamard", {{rows, rows}}}, {"gain", {{rows, row}}}, {"gain_grad", {{rows, rows}}}};
  for (const auto& [name, sample] : samples)
    if (const Status s = check_op(ops, name, sample); !s.ok())
      return std::fprintf(stderr, "%s\n", s.message().c_str()), EXIT_FAILURE;
  return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
  App app;
  app.actor<Data>("data");
  for (const auto& op : {hadamard(), gain(), gain_grad()})
    if (const Status s = app.op(op); !s.ok()) return std::cerr << s.message() << "\n", exit_usage;
  if (argc > 1 && argv[1] == std::string("check")) return check(app.ops());
  app.serve_if_worker(argc, argv);

  Graph g(app.ops());
  g.program("train", {.microbatches = 4, .samples = 2});
  g.unit("model");
  const TensorType rows{DType::f32, {2, 8}};
  const auto data = g.actor("data", "data", {}, {{"x", rows}, {"t", rows}});
  const Value wx = g.op("linear", {data[0], g.param("w", {8, 8}, Init::constant(0))})[0];
  const Value y = g.op("gain", {g.op("hadamard", {data[0], wx})[0], g.param("s", {8}, Init::constant(1))})[0];
  const Value loss = g.op("mse_loss", {y, data[1]})[0];
  g.minimize(loss, {.lr = 5e-2});

  const std::int64_t dp = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::int32_t zero = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto plan = compile(g, {.stages = stage_meshes({dp}), .zero = zero});
  JobOptions job;
  job.session.steps = 200;
  job.session.on_step = [](const StepResult& r) {
    if (r.step % 33 == 0) std::printf("step %d: loss %.6f\n", static_cast<int>(r.step), r.loss);
  };
  const JobResult result = plan.ok() ? app.run(*plan, job) : JobResult{plan.status(), exit_plan, {}, 0, {}};
  if (!result.status.ok()) std::fprintf(stderr, "%s\n", result.status.message().c_str());
  else std::printf("params_hash %s\n", result.params_hash.c_str());
  return result.exit_code;
}
