// The part of a Graph that says how an update makes parameters: Graph::next, and what its ops read.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/graph/graph.h"

namespace troupe::runtime {

bool Graph::are_of_update(const std::vector<Value>& in) const {
  return !in.empty() && std::all_of(in.begin(), in.end(), [this](Value v) {
    return v >= 0 && v < std::ssize(tensors_) && tensors_[v].rate == Rate::step;
  });
}

Value Graph::update_value(UpdateNode::Kind kind, const std::string& call, const std::vector<Value>& of) {
  if (!may_add(call, of, true)) return 0;
  if (!of.empty() && !is_param(of[0]))
    return fail(call + " of '" + tensors_[of[0]].name + "', which is no parameter"), 0;
  for (const UpdateNode& n : update_nodes_)
    if (n.kind == kind && n.program == program_ && n.in == of) return n.out[0];
  const TensorType type = of.empty() ? TensorType{DType::f32, {1}} : tensors_[of[0]].type;
  UpdateNode n{kind, "",      unique((of.empty() ? programs_[program_] : tensors_[of[0]].name) + "." + call), {}, of,
               {},   program_};
  n.out.push_back(add_tensor(n.name, type, Rate::step, -1));
  tensors_.back().update_node = static_cast<std::int32_t>(update_nodes_.size());
  update_nodes_.push_back(std::move(n));
  return update_nodes_.back().out[0];
}

Value Graph::gradient(Value param) { return update_value(UpdateNode::Kind::gradient, "gradient", {param}); }
Value Graph::updated(Value param) { return update_value(UpdateNode::Kind::updated, "updated", {param}); }
Value Graph::learning_rate() { return update_value(UpdateNode::Kind::learning_rate, "learning_rate", {}); }
Value Graph::update_number() { return update_value(UpdateNode::Kind::number, "update_number", {}); }

void Graph::hand_over(Value from, Value to, std::int64_t lag) {
  if (!may_add("hand_over", {from, to}, true)) return;
  for (const Value v : {from, to})
    if (!is_param(v)) return fail("hand_over: '" + tensors_[v].name + "' is no parameter");
  const std::string name = tensors_[to].name;
  constexpr std::int64_t most = 1000;
  if (lag < 1 || lag > most)
    return fail(
        fmt::format("hand_over of '{}' to '{}' with lag {}: expected 1 to {}; ops that read '{}' itself have "
                    "its version of the step",
                    tensors_[from].name, name, lag, most, tensors_[from].name));
  if (from == to) return fail("hand_over of '" + name + "' to itself");
  keep_versions("hand_over of '" + tensors_[from].name + "' to '" + name + "'",
                update_value(UpdateNode::Kind::handed, "handed", {from}), to, lag);
}

void Graph::keep_versions(const std::string& caller, Value value, Value to, std::int64_t lag) {
  const std::string name = tensors_[to].name;
  const Node own = nodes_[tensors_[to].node];
  const std::int32_t unit = std::exchange(unit_, own.unit);
  const bool needs_unit = std::exchange(needs_unit_, false);
  for (std::int64_t n = 1; n < lag && status_.ok(); ++n) {
    const std::string kept = fmt::format("{}.lag{}", name, n);
    if (names_.count(kept) > 0)
      return fail(caller + " keeps a version as parameter '" + kept +
                  "', a name that this graph has: choose another one there");
    const Value between = add_param(kept, tensors_[to].type, own.init, own.decay, own.kept);
    next(between, value);
    value = between;
  }
  unit_ = unit;
  needs_unit_ = needs_unit;
  next(to, value);
}

void Graph::next(Value param, Value value) {
  if (!may_add("next", {param, value}, true)) return;
  const Tensor &to = tensors_[param], &from = tensors_[value];
  if (!is_param(param)) return fail("next: '" + to.name + "' is no parameter");
  const std::string caller = "next version of '" + to.name + "'";
  if (from.rate != Rate::step)
    return fail(caller + ": '" + from.name +
                "' is made once for each microbatch; an update has parameters, gradient(), updated(), learning_rate(), "
                "update_number(), and what ops make of these");
  if (!check_program(caller, {value})) return;
  if (from.type != to.type)
    return fail(fmt::format("{}: '{}' is {} {}, and the parameter {} {}", caller, from.name, to_string(from.type.dtype),
                            troupe::to_string(from.type.shape), to_string(to.type.dtype),
                            troupe::to_string(to.type.shape)));
  for (const NextVersion& other : next_versions_)
    if (other.param == param) return fail(caller + " has been said already: each parameter has one");
  next_versions_.push_back({param, value, program_});
}

}  // namespace troupe::runtime
