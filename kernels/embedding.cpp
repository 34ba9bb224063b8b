// embedding(tokens (B, T) i32, weight (V, C)){unit} -> (B, T, C)
// embedding_grad(dy (B, T, C), tokens){rows: V, unit} -> dweight (V, C): a term for each token
//
// A token of V or more is an error (OpDef::check). A negative one has no row: zeros, and nothing in the gradient.
//
// Vocabulary parallel: with weight S(0), each place writes the rows that it has, and zeros for other tokens, so the
// output is P. "unit" (1 by default): rows that a split keeps together. Ops that split a table in the same unit
// (vocabulary_unit) read the same rows of it at a place.
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

Inferred infer_embedding(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("embedding", in, 2, {0}));
  TROUPE_TRY(expect(rank(in[0]) == 2 && rank(in[1]) == 2, "embedding", "tokens (B, T) and weight (V, C)", in));
  return std::vector<TensorType>{{DType::f32, {in[0].shape[0], in[0].shape[1], in[1].shape[1]}}};
}

Inferred infer_embedding_grad(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("embedding_grad", in, 2, {1}));
  TROUPE_TRY(expect(rank(in[0]) == 3 && rank(in[1]) == 2 && in[0].shape[0] == in[1].shape[0] &&
                        in[0].shape[1] == in[1].shape[1] && attrs.integer("rows") > 0,
                    "embedding_grad", "dy (B, T, C), tokens (B, T) and the attribute rows", in));
  return std::vector<TensorType>{{DType::f32, {attrs.integer("rows"), in[0].shape[2]}}};
}

Status embedding_gradient(GradContext& g) {
  if (g.grad_out(0) == no_value || !g.needs_grad(1)) return {};
  Attrs attrs = only(g.attrs(), {"unit"});
  attrs.set("rows", g.type(g.in(1)).shape[0]);
  g.grad_in(1, g.emit("embedding_grad", {g.grad_out(0), g.in(0)}, attrs)[0]);
  return {};
}

}  // namespace

std::vector<OpDef> embedding_ops() {
  using S = Sbp;
  OpDef forward{.name = "embedding", .inputs = 2, .outputs = 1, .infer = infer_embedding};
  forward.attributes = {integer_attribute("unit")};
  forward.signatures = [](Types, const Attrs& a) {
    std::vector<Signature> table;
    add_rows(table, 0, 2, "sb", "s");
    table.push_back(row({S::B(), S::S(0, a.integer("unit", 1))}, {S::P()}));
    table.push_back(row({S::B(), S::S(1)}, {S::S(2)}));
    return table;
  };
  forward.gradient = embedding_gradient;
  forward.cost = [](Types, Types out, const Attrs&) { return OpCost{0, 2 * bytes_of({}, out)}; };
  forward.check = ids_below("embedding", "token", 0, 1, 0);
  forward.cpu = cpu::embedding;

  OpDef grad{.name = "embedding_grad", .inputs = 2, .outputs = 1, .infer = infer_embedding_grad};
  grad.attributes = {integer_attribute("rows"), integer_attribute("unit")};
  grad.signatures = [](Types, const Attrs& a) {
    std::vector<Signature> table;
    add_rows(table, 0, 2, "ss", "p");
    table.push_back(row({S::B(), S::B()}, {S::S(0, a.integer("unit", 1))}));
    table.push_back(row({S::S(2), S::B()}, {S::S(1)}));
    table.push_back(row({S::P(), S::B()}, {S::P()}));
    return table;
  };
  grad.cost = [](Types in, Types out, const Attrs&) { return OpCost{0, bytes_of(in, {}) + 2 * bytes_of({}, out)}; };
  grad.accumulates = 1;
  grad.terms = [](Types in, const Attrs&) { return elements(in[1].shape); };
  grad.cpu = cpu::embedding_grad;
  return {forward, grad};
}

}  // namespace troupe::kernels
