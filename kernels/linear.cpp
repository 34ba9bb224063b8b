// linear(x (..., K), w (N, K)) -> y (..., N) = x w^T: w as Hugging Face stores it
// linear_dx(dy, w) -> dx (..., K) = dy w
// linear_dw(dy, x) -> dw (N, K) = dy^T x: a term for each 512 rows
//
// Attributes "unit" (columns of N that stay together: a head with its group) and "in_unit" (of K), both 1 by default;
// "subunit" and "in_subunit": smaller ones that a mesh axis may divide too (a query head without its group).
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"
#include "kernels/rules.h"

namespace troupe::kernels {
namespace {

using S = Sbp;

Shape with_last(Shape shape, std::int64_t n) {
  shape.back() = n;
  return shape;
}

Inferred infer_linear(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("linear", in, 2));
  TROUPE_TRY(expect(rank(in[0]) >= 1 && rank(in[1]) == 2 && last(in[0]) == in[1].shape[1], "linear",
                    "x (..., K) and w (N, K)", in));
  return std::vector<TensorType>{{DType::f32, with_last(in[0].shape, in[1].shape[0])}};
}

Inferred infer_linear_dx(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("linear_dx", in, 2));
  TROUPE_TRY(expect(rank(in[0]) >= 1 && rank(in[1]) == 2 && last(in[0]) == in[1].shape[0], "linear_dx",
                    "dy (..., N) and w (N, K)", in));
  return std::vector<TensorType>{{DType::f32, with_last(in[0].shape, in[1].shape[1])}};
}

Inferred infer_linear_dw(Types in, const Attrs&) {
  TROUPE_TRY(expect_inputs("linear_dw", in, 2));
  TROUPE_TRY(
      expect(rank(in[0]) >= 1 && rank(in[0]) == rank(in[1]) && with_last(in[0].shape, 0) == with_last(in[1].shape, 0),
             "linear_dw", "dy (..., N) and x (..., K) with equal leading dims", in));
  return std::vector<TensorType>{{DType::f32, {last(in[0]), last(in[1])}}};
}

Status linear_gradient(GradContext& g) {
  const Value dy = g.grad_out(0);
  if (dy == no_value) return {};
  const Attrs units = only(g.attrs(), {"unit", "in_unit", "subunit", "in_subunit"});
  if (g.needs_grad(0)) g.grad_in(0, g.emit("linear_dx", {dy, g.in(1)}, units)[0]);
  if (g.needs_grad(1)) g.grad_in(1, g.emit("linear_dw", {dy, g.in(0)}, units)[0]);
  return {};
}

/// 2 M N K, whatever the order of the operands: the products of all dims that take part.
OpCost linear_cost(double rows, double n, double k, Types in, Types out) {
  return {2 * rows * n * k, bytes_of(in, out)};
}

/// The units of dim N (or with `prefix` "in_" of K), larger first.
std::vector<std::int64_t> units(const Attrs& a, const std::string& prefix = "") {
  std::vector<std::int64_t> out = {a.integer(prefix + "unit", 1)};
  if (const auto smaller = a.integer(prefix + "subunit", out[0]); smaller != out[0]) out.push_back(smaller);
  return out;
}

double num(std::int64_t x) { return static_cast<double>(x); }

}  // namespace

std::vector<OpDef> linear_ops() {
  OpDef y{.name = "linear", .inputs = 2, .outputs = 1, .infer = infer_linear};
  y.attributes = {integer_attribute("unit"), integer_attribute("subunit"), integer_attribute("in_unit"),
                  integer_attribute("in_subunit")};
  y.signatures = [](Types in, const Attrs& a) {
    const int d = rank(in[0]) - 1;
    std::vector<Signature> table;
    add_rows(table, 0, d, "sb", "s");
    // column parallel
    for (auto n : units(a)) table.push_back(row({S::B(), S::S(0, n)}, {S::S(d, n)}));
    // row parallel
    for (auto k : units(a, "in_")) table.push_back(row({S::S(d, k), S::S(1, k)}, {S::P()}));
    table.push_back(row({S::P(), S::B()}, {S::P()}));
    return table;
  };
  y.gradient = linear_gradient;
  y.cost = [](Types in, Types out, const Attrs&) {
    return linear_cost(num(rows_of(in[0])), num(last(out[0])), num(last(in[0])), in, out);
  };
  y.cpu = cpu::linear;

  OpDef dx{.name = "linear_dx", .inputs = 2, .outputs = 1, .infer = infer_linear_dx};
  dx.attributes = {integer_attribute("unit"), integer_attribute("subunit"), integer_attribute("in_unit"),
                   integer_attribute("in_subunit")};
  dx.signatures = [](Types in, const Attrs& a) {
    const int d = rank(in[0]) - 1;
    std::vector<Signature> table;
    add_rows(table, 0, d, "sb", "s");
    for (auto n : units(a)) table.push_back(row({S::S(d, n), S::S(0, n)}, {S::P()}));
    for (auto k : units(a, "in_")) table.push_back(row({S::B(), S::S(1, k)}, {S::S(d, k)}));
    table.push_back(row({S::P(), S::B()}, {S::P()}));
    return table;
  };
  dx.cost = [](Types in, Types out, const Attrs&) {
    return linear_cost(num(rows_of(in[0])), num(last(in[0])), num(last(out[0])), in, out);
  };
  dx.cpu = cpu::linear_dx;

  OpDef dw{.name = "linear_dw", .inputs = 2, .outputs = 1, .infer = infer_linear_dw};
  dw.attributes = {integer_attribute("unit"), integer_attribute("subunit"), integer_attribute("in_unit"),
                   integer_attribute("in_subunit")};
  dw.signatures = [](Types in, const Attrs& a) {
    const int d = rank(in[0]) - 1;
    std::vector<Signature> table;
    add_rows(table, 0, d, "ss", "p");
    for (auto n : units(a)) table.push_back(row({S::S(d, n), S::B()}, {S::S(0, n)}));
    for (auto k : units(a, "in_")) table.push_back(row({S::B(), S::S(d, k)}, {S::S(1, k)}));
    table.push_back(row({S::P(), S::B()}, {S::P()}));
    return table;
  };
  dw.cost = [](Types in, Types out, const Attrs&) {
    return linear_cost(num(rows_of(in[0])), num(last(in[0])), num(last(in[1])), in, out);
  };
  dw.accumulates = 1;
  dw.terms = [](Types in, const Attrs&) { return (rows_of(in[0]) + gemm_k_block - 1) / gemm_k_block; };
  dw.cpu = cpu::linear_dw;
  return {y, dx, dw};
}

}  // namespace troupe::kernels
