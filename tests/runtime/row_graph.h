// Graphs drawn at random whose ops have many rows to take on a model axis.
#pragma once

#include <random>

#include "kernels/ops.h"
#include "runtime/graph/graph.h"

struct RowGraph {
  bool train = true;  ///< else the forward pass alone
  /// Where a program "evaluate" is declared, which reads the first parameter.
  enum class Evaluates : std::uint8_t { never, first, last } evaluates = Evaluates::never;
};

/// Values of one width, each made of the last one: by linears of a narrow or a wide middle, norms, sums with the value
/// before, and attention to a norm: six query heads that share one key-value head, too few of both for four places.
inline troupe::runtime::Graph row_graph(const troupe::kernels::OpSet& ops, unsigned seed, const RowGraph& of = {}) {
  using namespace troupe;
  using namespace troupe::runtime;
  std::mt19937 rng(seed);
  const auto draw = [&](int n) { return static_cast<std::int64_t>(rng() % static_cast<unsigned>(n)); };
  Graph g(ops);
  const std::int64_t head = 64, heads = 6, width = head * heads, rows = 64 << draw(4);
  const auto data = [&](const std::string& name) {
    return g.actor("data", name, {}, {{"x", {DType::f32, {1, rows, width}}, std::nullopt}})[0];
  };
  const auto evaluate = [&](RowGraph::Evaluates now) {
    if (of.evaluates != now) return;
    g.program("evaluate", {2, 1});
    g.unit("all");
    g.report("y", g.op("linear", {data("eval.input"), g.param("w0", {width, width}, Init::normal(0.1f))})[0]);
  };
  evaluate(RowGraph::Evaluates::first);
  g.program("train", {4, 1});
  g.unit("all");
  int params = 0;
  const auto linear = [&](Value x, std::int64_t from, std::int64_t to, const Attrs& units = {}) {
    return g.op("linear", {x, g.param("w" + std::to_string(params++), {to, from}, Init::normal(0.1f))}, units)[0];
  };
  const auto norm = [&](Value x) {
    const Value scale = g.param("n" + std::to_string(params++), {width}, Init::constant(1), false);
    return g.op("rmsnorm", {x, scale}, {{"eps", 1e-5}})[0];
  };
  const auto attention = [&](Value x) {
    const Value q = linear(x, width, width, {{"unit", width}, {"subunit", head}}),
                k = linear(x, width, head, {{"unit", head}}), v = linear(x, width, head, {{"unit", head}});
    const Value o = g.op("attention", {q, k, v}, {{"head_dim", head}})[0];
    return linear(o, width, width, {{"in_unit", width}, {"in_subunit", head}});
  };
  const Value in = data("input"), target = data("target");
  Value x = linear(in, width, width);
  for (auto left = 2 + draw(4); left > 0; --left) {
    const Value before = x;
    const std::int64_t middle = 32 << draw(5);
    switch (draw(3)) {
      case 0: x = linear(linear(x, width, middle), middle, width); break;
      case 1: x = norm(x); break;
      default: x = attention(norm(x));
    }
    if (draw(2)) x = g.op("add", {x, before})[0];
  }
  const Value loss = g.op("mse_loss", {x, target}, {{"scale", 1.0}})[0];
  if (of.train) g.minimize(loss, {});
  evaluate(RowGraph::Evaluates::last);
  return g;
}
