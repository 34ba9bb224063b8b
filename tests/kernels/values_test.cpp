#include <doctest/doctest.h>

#include <set>

#include "fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

OpCase::Values values_of(const std::vector<Tensor>& tensors) {
  OpCase::Values list;
  for (const auto& t : tensors) list.push_back(t.values());
  return list;
}

/// Runs a gradient rule eagerly: each emitted op is executed on the spot.
struct EagerGraph final : GradContext {
  const OpSet& ops;
  const OpCase& c;
  std::vector<Tensor> tensors;
  std::size_t inputs, seed = 0;
  bool loss;
  std::map<int, Tensor> grads;

  EagerGraph(const OpSet& set, const OpCase& one, std::vector<Tensor> in, const std::vector<Tensor>& out, bool is_loss)
      : ops(set), c(one), tensors(std::move(in)), inputs(tensors.size()), loss(is_loss) {
    tensors.insert(tensors.end(), out.begin(), out.end());
    Random random(7);
    if (!loss) tensors.push_back(random_tensor(out[0].logical, random));
    seed = tensors.size() - 1;
  }
  Value in(int i) const override { return i; }
  Value out(int i) const override { return static_cast<Value>(inputs) + i; }
  Value grad_out(int i) const override { return i == 0 && !loss ? static_cast<Value>(seed) : no_value; }
  bool needs_grad(int i) const override {
    // A target has no gradient; nor have stats, which are no variables: they follow from x and w.
    return tensors[static_cast<std::size_t>(i)].logical.dtype == DType::f32 && !(c.op == "mse_loss" && i == 1) &&
           !(c.op == "lm_head_loss" && i == 0);
  }
  TensorType type(Value v) const override { return tensors[static_cast<std::size_t>(v)].logical; }
  const Attrs& attrs() const override { return c.attrs; }
  std::vector<Value> emit(const std::string& op, std::vector<Value> in, Attrs attrs) override {
    const OpDef* def = ops.find(op);
    REQUIRE_MESSAGE(def, op);
    std::vector<Tensor> args;
    for (const Value v : in) args.push_back(tensors[static_cast<std::size_t>(v)]);
    std::vector<Value> out;
    for (auto& t : run(*def, args, attrs)) {
      out.push_back(static_cast<Value>(tensors.size()));
      tensors.push_back(std::move(t));
    }
    return out;
  }
  void grad_in(int i, Value v) override {
    REQUIRE(grads.count(i) == 0);
    grads[i] = tensors[static_cast<std::size_t>(v)];
  }
};

}  // namespace

TEST_CASE("every op appears among the sample calls, so that every promise below is tested for it") {
  std::set<std::string> seen;
  for (const auto& c : op_cases()) seen.insert(c.op);
  for (const auto& name : standard_ops().names())
    CHECK_MESSAGE(seen.count(name), "add '" << name << "' to op_cases.cpp");
}

TEST_CASE("every op agrees with its definition in double to 1e-4") {
  const OpSet ops = standard_ops();
  for (const auto& c : op_cases()) {
    CAPTURE(c.name);
    REQUIRE(c.reference);
    const auto in = c.inputs();
    const auto expected = c.reference(c, values_of(in));
    const auto out = run(*ops.find(c.op), in, c.attrs);
    REQUIRE(out.size() == expected.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(out[i].values(), expected[i]) <= 1e-4);
    }
  }
}

TEST_CASE("extreme scores and logits neither overflow nor lose the answer") {
  const OpSet ops = standard_ops();
  for (const auto& c : op_cases()) {
    if (c.op != "attention" && c.op != "softmax_cross_entropy" && c.op != "lm_head_stats" && c.op != "lm_head_loss" &&
        c.op != "swiglu")
      continue;
    CAPTURE(c.name);
    auto in = c.inputs();
    for (auto& t : in)
      if (t.logical.dtype == DType::f32)
        for (std::int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] *= 300.0f;
    if (c.prepare) c.prepare(c, in);
    const auto expected = c.reference(c, values_of(in));
    const auto out = run(*ops.find(c.op), in, c.attrs);
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(distance(out[i].values(), expected[i]) <= 2e-2);
  }
}

TEST_CASE("every gradient rule agrees with central differences of the definition in double to 1e-4") {
  const OpSet ops = standard_ops();
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.gradient || !c.small) continue;
    CAPTURE(c.name);
    const auto in = c.inputs(3);
    const auto out = run(op, in, c.attrs);
    EagerGraph graph(ops, c, in, out, op.is_loss);
    const Status done = op.gradient(graph);
    REQUIRE_MESSAGE(done.ok(), done.message());
    const auto seed = graph.tensors[graph.seed].values();
    const auto objective = [&](const OpCase::Values& v) {
      const auto y = c.reference(c, v)[0];
      if (op.is_loss) return c.attrs.real("scale") * y[0];
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += seed[i] * y[i];
      return sum;
    };
    auto v = values_of(in);
    for (std::size_t i = 0; i < in.size(); ++i) {
      CAPTURE(i);
      if (!graph.needs_grad(static_cast<int>(i))) continue;
      REQUIRE(graph.grads.count(static_cast<int>(i)) == 1);
      std::vector<double> expected;
      for (auto& x : v[i]) {
        const double kept = x, h = 1e-5;
        x = kept + h;
        const double up = objective(v);
        x = kept - h;
        const double down = objective(v);
        x = kept;
        expected.push_back((up - down) / (2 * h));
      }
      CHECK(distance(graph.grads[static_cast<int>(i)].values(), expected) <= 1e-4);
    }
  }
}

TEST_CASE("a shape that does not fit is an error that names the op and the shapes") {
  const OpSet ops = standard_ops();
  for (const auto& c : op_cases()) {
    CAPTURE(c.name);
    auto in = c.in;
    in.pop_back();
    const auto missing = ops.find(c.op)->infer(in, c.attrs);
    REQUIRE(!missing.ok());
    CHECK(missing.status().message().find(c.op) != std::string::npos);
    if (c.in.size() < 2) continue;
    in = c.in;
    in.back().shape.push_back(3);
    const auto wrong = ops.find(c.op)->infer(in, c.attrs);
    REQUIRE(!wrong.ok());
    CHECK(wrong.status().message().find(to_string(in.back().shape)) != std::string::npos);
  }
}

TEST_CASE("an id beyond the table is an error by op, id and bound; negative ids and those of another part are none") {
  const OpSet ops = standard_ops();
  const auto checked = [](const OpDef& op, std::vector<Tensor>& in, const Attrs& attrs) {
    Call call;
    call.attrs = &attrs;
    for (Tensor& t : in)
      call.in.push_back({t.data.data(), t.logical.dtype, t.extent.shape(), t.logical.shape, t.extent});
    return op.check(call);
  };
  std::set<std::string> seen;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.check || c.op == "attention_cached") continue;  // whose check is of its state: attention_cached_test.cpp
    CAPTURE(c.name);
    seen.insert(c.op);
    auto in = c.inputs();
    const bool tokens = in[0].logical.dtype == DType::i32;
    Tensor& ids = tokens ? in[0] : in.back();
    REQUIRE(ids.logical.dtype == DType::i32);
    ids.as<std::int32_t>()[2] = -3;
    ids.as<std::int32_t>()[7] = static_cast<std::int32_t>(c.high - 1);  // the table's last
    CHECK(checked(op, in, c.attrs).ok());
    if (c.op != "softmax_cross_entropy") {  // whose logits are divided by rows only
      auto part = in;
      part[1] = in[1].slice({{{0, 4}, {0, in[1].logical.shape[1]}}});
      CHECK(checked(op, part, c.attrs).ok());
    }
    ids.as<std::int32_t>()[7] = static_cast<std::int32_t>(c.high);
    const Status beyond = checked(op, in, c.attrs);
    CHECK(beyond.code() == Code::invalid);
    const std::string says = c.op + ": " + (tokens ? "token " : "target ") + std::to_string(c.high) +
                             " (number 7 of the call) is beyond the table: expected less than " +
                             std::to_string(c.high);
    CHECK_MESSAGE(beyond.message().starts_with(says), beyond.message());
  }
  CHECK(seen == std::set<std::string>{"embedding", "lm_head_stats", "softmax_cross_entropy"});
}
