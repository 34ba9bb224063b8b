#include "runtime/graph/optimizers.h"

#include <algorithm>
#include <cmath>

namespace troupe::runtime {

namespace {

/// a x + b y
Value sum(Graph& g, double a, Value x, double b, Value y) {
  return g.op("weighted_sum", {x, y}, {{"a", a}, {"b", b}})[0];
}
Value times(Graph& g, Value x, Value number) { return g.op("multiply", {x, number})[0]; }

/// What an optimizer keeps of a parameter, of its shape, at first 0. After an error: any value.
Value kept(Graph& g, Value param, const std::string& what) {
  if (!g.status().ok() || param < 0 || param >= std::ssize(g.tensors())) return param;
  const Tensor of = g.tensors()[param];
  return g.param(of.name + "." + what, of.type.shape, Init::constant(0));
}

}  // namespace

void use_momentum(Graph& g, Value param, const Momentum& hyper) {
  Value gradient = g.gradient(param);
  if (hyper.weight_decay != 0) gradient = sum(g, 1, gradient, hyper.weight_decay, param);
  const Value m = kept(g, param, "momentum");
  const Value next = sum(g, hyper.momentum, m, 1, gradient);
  const Value step = hyper.nesterov ? sum(g, 1, gradient, hyper.momentum, next) : next;
  g.next(m, next);
  g.next(param, sum(g, 1, param, -1, times(g, step, g.learning_rate())));
}

void use_adamw(Graph& g, Value param, const kernels::AdamW& hyper) {
  const Value m = kept(g, param, "exp_avg"), v = kept(g, param, "exp_avg_sq");
  const auto made = g.op("adamw", {param, m, v, g.gradient(param), g.learning_rate(), g.update_number()},
                         {{"beta1", static_cast<double>(hyper.beta1)},
                          {"beta2", static_cast<double>(hyper.beta2)},
                          {"eps", static_cast<double>(hyper.eps)},
                          {"weight_decay", static_cast<double>(hyper.weight_decay)}});
  g.next(param, made[0]);
  g.next(m, made[1]);
  g.next(v, made[2]);
}

void use_muon(Graph& g, Value param, const Muon& hyper) {
  const Value gradient = g.gradient(param);
  const Value m = kept(g, param, "momentum");
  const Value next = sum(g, hyper.momentum, m, 1 - hyper.momentum, gradient);
  const Value step = hyper.nesterov ? sum(g, hyper.momentum, next, 1 - hyper.momentum, gradient) : next;
  const Value whole = g.op("orthogonalize", {step}, {{"steps", hyper.steps}})[0];
  if (!g.status().ok()) return;
  const Shape shape = g.tensors()[param].type.shape;
  const double scale = std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
  const Value taken = sum(g, scale, whole, hyper.weight_decay, param);
  g.next(m, next);
  g.next(param, sum(g, 1, param, -1, times(g, taken, g.learning_rate())));
}

Value keep_average(Graph& g, Value param, double decay) {
  const Value average = kept(g, param, "average");
  g.next(average, sum(g, decay, average, 1 - decay, g.updated(param)));
  return average;
}

}  // namespace troupe::runtime
