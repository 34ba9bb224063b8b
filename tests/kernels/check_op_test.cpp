// check_op: what an op promises holds for ours, and a promise that does not hold is named.
#include "kernels/check_op.h"

#include <doctest/doctest.h>

#include "fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

/// y = a * x, rows may be split; gradient: a * g.
OpDef times(double a, double claimed) {
  OpDef op;
  op.name = "times";
  op.infer = [](auto in, const Attrs&) -> Expected<std::vector<TensorType>> { return std::vector<TensorType>{in[0]}; };
  op.signatures = [](auto, const Attrs&) {
    return std::vector<Signature>{{{Sbp::S(0)}, {Sbp::S(0)}}, {{Sbp::P()}, {Sbp::P()}}};
  };
  op.cpu = [a](const Call& c) {
    for (std::int64_t i = 0; i < c.in[0].size(); ++i)
      c.out[0].as<float>()[i] = static_cast<float>(a) * c.in[0].as<float>()[i];
  };
  op.gradient = [claimed](GradContext& g) -> Status {
    g.grad_in(0, g.emit("scaled", {g.grad_out(0)}, {{"by", claimed}})[0]);
    return {};
  };
  return op;
}

OpDef scaled() {
  OpDef op = times(1, 1);
  op.name = "scaled";
  op.attributes = {real_attribute("by")};
  op.gradient = {};
  op.cpu = [](const Call& c) {
    for (std::int64_t i = 0; i < c.in[0].size(); ++i)
      c.out[0].as<float>()[i] = static_cast<float>(c.attrs->real("by")) * c.in[0].as<float>()[i];
  };
  return op;
}

std::string wrong_with(const OpDef& op, const OpSample& sample = {{{DType::f32, {6, 4}}}}) {
  OpSet ops;
  REQUIRE(ops.add(scaled()).ok());
  REQUIRE(ops.add(op).ok());
  return check_op(ops, op.name, sample).message();
}

bool says(const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("what an op promises that is right holds, also where its rule gives a gradient in two terms") {
  CHECK(wrong_with(times(3, 3)) == "");
  OpDef op = times(3, 3);
  op.gradient = [](GradContext& g) {
    for (const double by : {1.0, 2.0}) g.grad_in(0, g.emit("scaled", {g.grad_out(0)}, {{"by", by}})[0]);
    return Status();
  };
  CHECK(wrong_with(op) == "");
}

TEST_CASE("a promise of an op that does not hold is named, with what was found and what was expected") {
  OpDef op = times(3, 3);
  std::string expected;
  SUBCASE("a gradient of another factor") { op = times(3, 2), expected = "the gradient of element 0 of input 0 is "; }
  SUBCASE("a rule that gives nothing") {
    op.gradient = [](GradContext&) { return Status(); };
    expected = "the rule gives this input none (GradContext::grad_in)";
  }
  SUBCASE("a rule that uses an op that there is not") {
    op.gradient = [](GradContext& g) {
      g.grad_in(0, g.emit("scald", {g.grad_out(0)}, {})[0]);
      return Status();
    };
    expected = "the gradient of op 'times': there is no op 'scald'";
  }
  SUBCASE("a rule that gives an op an attribute that it has not") {
    op.gradient = [](GradContext& g) {
      g.emit("scaled", {g.grad_out(0)}, {{"buy", 3.0}});
      return Status();
    };
    expected = "the gradient of op 'times': attribute 'buy' is unknown to op 'scaled': it has by (OpDef::attributes)";
  }
  SUBCASE("a rule that gives an op more inputs than it has") {
    op.gradient = [](GradContext& g) {
      g.grad_in(0, g.emit("scaled", {g.grad_out(0), g.in(0)}, {{"by", 3.0}})[0]);
      return Status();
    };
    expected = "the gradient of op 'times': op 'scaled' takes 1 inputs and got 2";
  }
  SUBCASE("a rule that asks for an output that there is not") {
    op.gradient = [](GradContext& g) { return g.grad_in(0, g.grad_out(1)), Status(); };
    expected = "the gradient of input 0 is -1, which is no value";
  }
  SUBCASE("a gradient that is no value") {
    op.gradient = [](GradContext& g) { return g.grad_in(0, 77), Status(); };
    expected = "the gradient of input 0 is 77, which is no value";
  }
  SUBCASE("a partial sum of what is not linear") {
    op.cpu = [](const Call& c) {
      for (std::int64_t i = 0; i < c.in[0].size(); ++i)
        c.out[0].as<float>()[i] = c.in[0].as<float>()[i] * c.in[0].as<float>()[i];
    };
    expected = "the row (P) -> (P) of its SBP table does not hold: on 2 places element 0 of output 0 is ";
  }
  SUBCASE("a row of another arity") {
    op.signatures = [](auto, const Attrs&) { return std::vector<Signature>{{{Sbp::S(0), Sbp::B()}, {Sbp::S(0)}}}; };
    expected = "row 0 of its SBP table has layouts for 2 inputs and 1 outputs: expected 1 and 1";
  }
  SUBCASE("an element that is not written") {
    op.cpu = [](const Call& c) {
      for (std::int64_t i = 1; i < c.in[0].size(); ++i) c.out[0].as<float>()[i] = 3 * c.in[0].as<float>()[i];
    };
    expected = "element 0 of output 0 depends on what lay in its outputs or its scratch before";
  }
  SUBCASE("scratch that is larger than was asked for") {
    op.scratch_bytes = [](auto, auto, const Attrs&) { return std::int64_t{8}; };
    op.cpu = [body = op.cpu](const Call& c) { body(c), c.scratch.data()[8] = std::byte{1}; };
    expected = "writes outside of its scratch: OpDef::scratch_bytes says too little";
  }
  SUBCASE("an input that is changed") {
    op.cpu = [body = op.cpu](const Call& c) { body(c), c.in[0].as<float>()[0] = 1; };
    expected = "op 'times' changes its input 0";
  }
  SUBCASE("outputs that its shape rule does not have") {
    op.outputs = 2;
    expected = "its shape rule gives 1 outputs: expected 2";
  }
  const std::string said = wrong_with(op);
  CHECK_MESSAGE(says(said, expected), said);
}

TEST_CASE("what an op adds up along may be split along other dims, and partial, and a row that splits it is named") {
  OpDef op = times(1, 1);  // y[i, j] = x[i, 0] + ... + x[i, j]
  op.gradient = {};
  op.cpu = [](const Call& c) {
    for (std::int64_t i = 0; i < c.in[0].size(); ++i)
      c.out[0].as<float>()[i] = c.in[0].as<float>()[i] + (i % c.in[0].cols() ? c.out[0].as<float>()[i - 1] : 0);
  };
  CHECK(wrong_with(op) == "");
  op.signatures = [](auto, const Attrs&) { return std::vector<Signature>{{{Sbp::S(1)}, {Sbp::S(1)}}}; };
  const std::string said = wrong_with(op);
  CHECK_MESSAGE(says(said, "the row (S(1)) -> (S(1)) of its SBP table does not hold: on 2 places element "), said);
}

TEST_CASE("a sample that is none of the op, and an op that there is not, are refused") {
  CHECK(wrong_with(times(3, 3), {{}}) == "op 'times' has 1 inputs: the sample has 0");
  CHECK(check_op(OpSet(), "gelu", {}).message() == "there is no op 'gelu'");
}

TEST_CASE("what our ops promise holds") {
  const OpSet ops = standard_ops();
  for (const auto& c : op_cases()) {
    if (!c.small) continue;
    CAPTURE(c.name);
    const Status s = check_op(ops, c.op, c.sample());
    CHECK_MESSAGE(s.ok(), s.message());
  }
}
