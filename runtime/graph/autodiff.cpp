// Differentiation is graph rewriting: backward ops are ordinary ops of the same graph, so that the compiler plans their
// boxings, memory and schedule as it plans those of forward ops.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "devices/base/text_table.h"
#include "runtime/graph/graph.h"

namespace troupe::runtime {

class Differentiator final : public kernels::GradContext {
 public:
  Differentiator(Graph& g, Value loss, const std::vector<Value>& trained)
      : g_(g), loss_(loss), trained_(trained.begin(), trained.end()) {}

  void run() {
    const std::int32_t last = g_.tensors_[loss_].node;
    if (last < 0 || g_.nodes_[last].kind != Node::Kind::op)
      return g_.fail("minimize: the loss is not the output of an op");
    const auto* def = g_.ops_->find(g_.nodes_[last].op);
    if (!def->is_loss) return g_.fail("minimize: op '" + g_.nodes_[last].op + "' is no loss (is_loss)");
    if (const auto p = g_.nodes_[last].program; g_.program_specs_[p].stateful)
      return g_.fail("minimize: program '" + g_.programs_[p] +
                     "' is stateful, so its microbatches run at one dp coordinate: train in another one");
    if (!check_trained()) return;
    mark_needs_grad(last);
    const auto unit = g_.unit_;
    const auto program = g_.program_;
    const bool needs_unit = std::exchange(g_.needs_unit_, false);
    g_.program_ = g_.nodes_[last].program;
    g_.backward_ = true;
    for (std::int32_t i = last; i >= 0 && g_.status_.ok(); --i) visit(i);
    g_.backward_ = false;
    g_.of_ = -1;
    g_.unit_ = unit;
    g_.needs_unit_ = needs_unit;
    g_.program_ = program;
    collect_params(g_.nodes_[last].program);
  }

  Value in(int i) const override { return g_.nodes_[node_].in[i]; }
  Value out(int i) const override { return g_.nodes_[node_].out[i]; }
  Value grad_out(int i) const override { return grad_out_.at(i); }
  bool needs_grad(int i) const override { return needs_[g_.nodes_[node_].in[i]]; }
  TensorType type(Value v) const override {
    return g_.check_values(this_gradient(), {v}) ? g_.tensors_[v].type : TensorType{};
  }
  const Attrs& attrs() const override { return attrs_; }
  std::vector<Value> emit(const std::string& op, std::vector<Value> in, Attrs attrs) override {
    return g_.op(op, in, std::move(attrs), name_ + ".grad");
  }
  void grad_in(int i, Value v) override {
    if (const auto& read = g_.nodes_[node_].in; i < 0 || static_cast<std::size_t>(i) >= read.size())
      return g_.fail(fmt::format("gradient of '{}' ({}): grad_in has a gradient of input {}, and the op has {}", name_,
                                 g_.nodes_[node_].op, i, counted(static_cast<std::int64_t>(read.size()), "input")));
    const Value x = in(i);
    if (!needs_[x] || !g_.check_values(this_gradient(), {v})) return;
    const Shape &own = g_.tensors_[x].type.shape, &given = g_.tensors_[v].type.shape;
    if (g_.status_.ok() && !(own == given))
      return g_.fail(fmt::format(
          "gradient of '{}' ({}): the gradient of input {}, '{}', has shape {} and the input {}: grad_in must be given "
          "a value of the input's shape",
          name_, g_.nodes_[node_].op, i, g_.tensors_[x].name, troupe::to_string(given), troupe::to_string(own)));
    if (!g_.is_param(x)) {
      mark(v, x);
      return pending_[x].push_back({v, g_.nodes_[node_].unit});
    }
    // A parameter's gradient accumulates over microbatches: in the kernel where it can, else one op later.
    const Node& producer = g_.nodes_[g_.tensors_[v].node];
    const auto* def = producer.kind == Node::Kind::op ? g_.ops_->find(producer.op) : nullptr;
    const auto output = std::find(producer.out.begin(), producer.out.end(), v) - producer.out.begin();
    if (!def || !(def->accumulates >> output & 1) || accumulated_.count(v)) v = emit("accumulate", {v}, {})[0];
    accumulated_.insert(v);
    uses_[x].push_back({node_, v});
  }

 private:
  std::string this_gradient() const { return "the gradient of '" + name_ + "'"; }

  /// A gradient that an op hands on, as `add` does, stays that of the op's output.
  void mark(Value gradient, Value of) {
    if (Value& known = g_.tensors_[gradient].gradient_of; known < 0) known = of;
  }

  bool check_trained() {
    if (trained_.empty() || !g_.check_values("minimize", {trained_.begin(), trained_.end()})) return trained_.empty();
    for (const Value v : trained_)
      if (!g_.is_param(v)) return g_.fail("minimize: '" + g_.tensors_[v].name + "' is no parameter"), false;
    return true;
  }

  /// A value needs a gradient if a parameter lies upstream of it that is trained here.
  void mark_needs_grad(std::int32_t last) {
    needs_.assign(g_.tensors_.size(), false);
    for (std::int32_t i = 0; i <= last; ++i) {
      const Node& n = g_.nodes_[i];
      bool any = n.kind == Node::Kind::param && (trained_.empty() || trained_.count(n.out[0]) > 0);
      if (n.kind == Node::Kind::op)
        for (Value v : n.in) any |= needs_[v];
      for (Value v : n.out) needs_[v] = any;
    }
  }

  void visit(std::int32_t i) {
    {
      const Node& n = g_.nodes_[i];
      if (n.kind != Node::Kind::op || n.backward || n.program != g_.program_ || n.out.empty()) return;
      const bool is_root = n.out[0] == loss_;
      grad_out_.clear();
      bool any = is_root;
      const std::int32_t unit = g_.unit_ = n.unit;
      node_ = i;
      g_.of_ = -1;  // the op that adds gradients of one value is part of no forward node's gradient
      name_ = n.name;
      attrs_ = n.attrs;
      const auto outputs = n.out;
      for (Value v : outputs) {
        const auto& parts = pending_[v];
        // Contributions of one unit are added there: one tensor leaves it (and crosses stages), not several.
        Value sum = kernels::no_value;
        for (const auto& [part, from] : parts) {
          g_.unit_ = from;
          sum = sum < 0 ? part : g_.op("add", {sum, part}, {}, name_ + ".sum")[0];
          mark(sum, v);
        }
        g_.unit_ = unit;
        grad_out_.push_back(sum);
        any |= sum >= 0;
      }
      if (!any || !needs_[outputs[0]]) return;
    }
    g_.of_ = i;
    const auto* def = g_.ops_->find(g_.nodes_[i].op);
    if (!def->gradient)
      return g_.fail("op '" + name_ + "' (" + def->name + ") has no gradient, and the loss depends on it");
    if (Status s = def->gradient(*this); !s.ok()) g_.fail("gradient of '" + name_ + "': " + s.message());
  }

  void collect_params(std::int32_t program) {
    if (!g_.status_.ok()) return;
    const std::string loss = "the loss '" + g_.tensors_[loss_].name + "'";
    if (uses_.empty())
      return g_.fail("minimize: " + loss + " depends on no parameter" +
                     (trained_.empty() ? "" : " that it is to train") + ", so there is nothing to train");
    for (const Node& n : g_.nodes_) {
      if (n.kind != Node::Kind::param) continue;
      auto it = uses_.find(n.out[0]);
      if (it == uses_.end()) {
        if (trained_.count(n.out[0]) > 0)
          return g_.fail("minimize: " + loss + " does not depend on parameter '" + n.name + "', which it is to train");
        continue;
      }
      for (const ParamGrad& other : g_.grads_)
        if (other.param == n.out[0])
          return g_.fail("minimize: parameter '" + n.name + "' is trained by program '" + g_.programs_[other.program] +
                         "', and by '" + g_.programs_[program] +
                         "': name for each loss the parameters that it trains (the third argument)");
      const Tensor& param = g_.tensors_[n.out[0]];
      if (const Shape& shape = param.type.shape; !shape.empty() && shape[0] > gradient_rows_max)
        return g_.fail(fmt::format("minimize: parameter '{}' {} has more than {} rows, whose squares a norm can add",
                                   n.name, troupe::to_string(shape), gradient_rows_max));
      std::sort(it->second.begin(), it->second.end());  // by forward node: graph order
      ParamGrad grad{n.out[0], program, {}};
      for (const auto& [node, value] : it->second) grad.uses.push_back(value);
      g_.grads_.push_back(std::move(grad));
    }
  }

  Graph& g_;
  Value loss_;
  const std::set<Value> trained_;  // none: all parameters upstream
  std::vector<bool> needs_;
  std::map<Value, std::vector<std::pair<Value, std::int32_t>>> pending_;
  std::set<Value> accumulated_;  // values that are the gradient of a use already
  std::map<Value, std::vector<std::pair<std::int32_t, Value>>> uses_;
  std::int32_t node_ = 0;
  std::string name_;
  Attrs attrs_;
  std::vector<Value> grad_out_;
};

namespace {

Status check_hyper(const kernels::AdamW& h) {
  const auto check = [](const char* name, double value, bool legal, const char* expected) {
    return legal && std::isfinite(value) ? Status{}
                                         : invalid(fmt::format("AdamW::{} is {}: expected {}", name, value, expected));
  };
  TROUPE_TRY(check("lr", h.lr, h.lr >= 0, "a finite number of 0 or more"));
  TROUPE_TRY(check("beta1", h.beta1, h.beta1 >= 0 && h.beta1 < 1, "0 to below 1"));
  TROUPE_TRY(check("beta2", h.beta2, h.beta2 >= 0 && h.beta2 < 1, "0 to below 1"));
  TROUPE_TRY(check("eps", h.eps, h.eps > 0, "a finite number above 0"));
  TROUPE_TRY(check("weight_decay", h.weight_decay, h.weight_decay >= 0, "a finite number of 0 or more"));
  TROUPE_TRY(check("grad_scale", h.grad_scale, h.grad_scale == 1, "1: the run sets it (SessionOptions::clip)"));
  return check("step", static_cast<double>(h.step), h.step == 1, "1: the run counts its updates");
}

}  // namespace

void Graph::minimize(Value loss, kernels::AdamW hyper, const std::vector<Value>& trained) {
  if (!may_add("minimize", {loss})) return;
  const std::int32_t of = nodes_[tensors_[loss].node].program;
  if (trains(of)) return fail("minimize: program '" + programs_[of] + "' has a loss already");
  if (const Status s = check_hyper(hyper); !s.ok()) return fail("minimize: " + s.message());
  Differentiator(*this, loss, trained).run();
  if (!status_.ok()) return;
  hyper_[of] = hyper;
  const auto program = std::exchange(program_, of);
  report("loss", loss);
  nodes_.back().attrs.set("loss", 1);
  program_ = program;
}

}  // namespace troupe::runtime
