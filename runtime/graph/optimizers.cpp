#include "runtime/graph/optimizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::runtime {

namespace {

/// The ops of one parameter's update, which errors name by it.
class UpdateOf {
 public:
  UpdateOf(Graph& g, Value param) : g_(g) {
    if (g.status().ok() && param >= 0 && param < std::ssize(g.tensors())) name_ = g.tensors()[param].name + ".update";
  }
  std::vector<Value> op(const std::string& op, const std::vector<Value>& in, Attrs attrs = {}) {
    return g_.op(op, in, std::move(attrs), name_);
  }
  /// a x + b y
  Value sum(double a, Value x, double b, Value y) { return op("weighted_sum", {x, y}, {{"a", a}, {"b", b}})[0]; }
  Value times(Value x, Value number) { return op("scale", {x, number})[0]; }
  Value scaled_rate(double scale) {
    const Value lr = g_.learning_rate();
    return scale == 1 ? lr : sum(scale, lr, 0, lr);
  }

 private:
  Graph& g_;
  std::string name_;
};

/// 0 where the parameter was declared without decay.
double decay_of(const Graph& g, Value param, double decay) {
  const bool known = g.status().ok() && param >= 0 && param < std::ssize(g.tensors()) && g.is_param(param);
  return known && !g.nodes()[g.tensors()[param].node].decay ? 0 : decay;
}

/// What an optimizer keeps of a parameter, of its shape, at first 0. After an error: any value.
Value kept(Graph& g, Value param, const std::string& what) {
  if (!g.status().ok() || param < 0 || param >= std::ssize(g.tensors())) return param;
  const Tensor of = g.tensors()[param];
  return g.param(of.name + "." + what, of.type.shape, Init::constant(0));
}

}  // namespace

void use_momentum(Graph& g, Value param, const Momentum& hyper) {
  UpdateOf update(g, param);
  Value gradient = g.gradient(param);
  const double decay = decay_of(g, param, hyper.weight_decay);
  if (decay != 0) gradient = update.sum(1, gradient, decay, param);
  const Value m = kept(g, param, "momentum");
  const Value next = update.sum(hyper.momentum, m, 1, gradient);
  const Value step = hyper.nesterov ? update.sum(1, gradient, hyper.momentum, next) : next;
  g.next(m, next);
  g.next(param, update.sum(1, param, -1, update.times(step, update.scaled_rate(hyper.lr_scale))));
}

void use_adamw(Graph& g, Value param, const kernels::AdamW& hyper, double lr_scale) {
  UpdateOf update(g, param);
  const Value m = kept(g, param, "exp_avg"), v = kept(g, param, "exp_avg_sq");
  const auto made = update.op("adamw",
                              {param, m, v, g.gradient(param), update.scaled_rate(lr_scale), g.update_number()},
                              {{"beta1", static_cast<double>(hyper.beta1)},
                               {"beta2", static_cast<double>(hyper.beta2)},
                               {"eps", static_cast<double>(hyper.eps)},
                               {"weight_decay", decay_of(g, param, static_cast<double>(hyper.weight_decay))}});
  g.next(param, made[0]);
  g.next(m, made[1]);
  g.next(v, made[2]);
}

void use_muon(Graph& g, Value param, const Muon& hyper) {
  if (g.status().ok() && param >= 0 && param < std::ssize(g.tensors()) && g.tensors()[param].type.shape.size() != 2)
    return g.fail(fmt::format("use_muon of '{}': Muon is for matrices, and this parameter is f32 {}",
                              g.tensors()[param].name, troupe::to_string(g.tensors()[param].type.shape)));
  UpdateOf update(g, param);
  const Value gradient = g.gradient(param);
  const Value m = kept(g, param, "momentum");
  const Value next = update.sum(hyper.momentum, m, 1 - hyper.momentum, gradient);
  const Value step = hyper.nesterov ? update.sum(hyper.momentum, next, 1 - hyper.momentum, gradient) : next;
  const Value whole = update.op("orthogonalize", {step}, {{"steps", hyper.steps}})[0];
  if (!g.status().ok()) return;
  const Shape shape = g.tensors()[param].type.shape;
  const double scale = std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
  const Value taken = update.sum(scale, whole, decay_of(g, param, hyper.weight_decay), param);
  g.next(m, next);
  g.next(param, update.sum(1, param, -1, update.times(taken, update.scaled_rate(hyper.lr_scale))));
}

Value keep_average(Graph& g, Value param, double decay) {
  UpdateOf update(g, param);
  const Value average = kept(g, param, "average");
  g.next(average, update.op("running_average", {average, g.updated(param), g.update_number()}, {{"decay", decay}})[0]);
  return average;
}

}  // namespace troupe::runtime
