// Lowering of the ops of updates (Graph::next): how their values lie on the mesh of the parameters that they join.
//
// No boxing is inserted inside an update: along each axis a search takes a row of each op's SBP table such that all
// arguments lie as they are made. dp is an axis of this search, other than of that for microbatches: rows may be apart
// there (ZeRO).
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/compile/deduce.h"
#include "runtime/compile/lowering.h"
#include "runtime/plan/update_ops.h"

namespace troupe::runtime {

namespace {

using Kind = UpdateNode::Kind;

const UpdateNode* maker(const Graph& g, Value v) {
  const std::int32_t node = g.tensors()[v].update_node;
  return node < 0 ? nullptr : &g.update_nodes()[node];
}

/// What updated() of a parameter stands for that ops make: the value that next() was given.
Value resolved(const Graph& g, Value v) {
  for (std::size_t hops = 0; hops <= g.next_versions().size(); ++hops) {
    const UpdateNode* n = maker(g, v);
    if (!n || n->kind != Kind::updated) return v;
    const auto made = std::find_if(g.next_versions().begin(), g.next_versions().end(),
                                   [&](const NextVersion& next) { return next.param == n->in[0]; });
    if (made == g.next_versions().end()) return v;
    v = made->value;
  }
  return v;
}

/// Calls `visit` for each value that `value` is made of, itself included.
template <class Visit>
void for_each_upstream(const Graph& g, Value value, const Visit& visit) {
  std::vector<Value> left = {value};
  std::set<Value> seen;
  while (!left.empty()) {
    const Value v = resolved(g, left.back());
    left.pop_back();
    if (!seen.insert(v).second) continue;
    visit(v);
    // What is handed over lies elsewhere; what is kept, segments make.
    if (const UpdateNode* n = maker(g, v); n && n->kind != Kind::handed && n->kind != Kind::kept)
      left.insert(left.end(), n->in.begin(), n->in.end());
  }
}

/// How the values of one update lie along one axis of their mesh.
class AxisOfUpdate {
 public:
  AxisOfUpdate(const Graph& g, const std::vector<const UpdateNode*>& ops, const std::vector<NextVersion>& next,
               std::int64_t places)
      : g_(g), ops_(ops), next_(next), places_(places) {}
  /// The search leaves the parameter so.
  void fix(Value param, Sbp sbp) { of_[param] = sbp; }
  /// False where no rows of the ops fit.
  bool search() { return take(0); }
  /// B of what nothing divides.
  Sbp at(Value v) const {
    const auto it = of_.find(canonical(v));
    return it == of_.end() ? Sbp::B() : it->second;
  }
  /// Whether the search has ended before it had tried all rows.
  bool gave_up() const { return taken_ > most_taken; }
  /// The first op that no row fits, whatever rows those before it take; null: what comes behind the ops.
  const UpdateNode* stopped_at() const { return deepest_ < ops_.size() ? ops_[deepest_] : nullptr; }

 private:
  /// A gradient, and what AdamW makes, lie as the parameter: the search settles one for all.
  Value canonical(Value v) const {
    v = resolved(g_, v);
    const UpdateNode* n = maker(g_, v);
    return n && (n->kind == Kind::gradient || n->kind == Kind::updated) ? n->in[0] : v;
  }
  /// Whether the value lies so; settles it where it is open.
  bool settle(Value v, const Sbp& sbp, std::vector<Value>& settled) {
    if (sbp.is_partial()) return false;
    const bool of_step = is_of_step(v);
    v = canonical(v);
    const Sbp have = of_step ? Sbp::B() : of_.count(v) > 0 ? of_.at(v) : sbp;
    if (!same_parts(have, sbp, g_.tensors()[v].type.shape, places_)) return false;
    if (of_.emplace(v, have).second) settled.push_back(v);
    return true;
  }
  bool take(std::size_t op) {
    deepest_ = std::max(deepest_, op);
    if (++taken_ > most_taken) return false;  // see gave_up()
    if (op == ops_.size()) return close();
    const UpdateNode& n = *ops_[op];
    Node node;
    node.op = n.op, node.attrs = n.attrs, node.in = n.in, node.out = n.out;
    for (const kernels::Signature& row : op_rows(g_, node)) {
      std::set<std::int64_t> units = {1};
      for (std::size_t i = 0; i < n.in.size(); ++i)
        if (is_known(n.in[i])) units.insert(update_ops::times_of(row.in[i], at(n.in[i])));
      for (const std::int64_t times : units)
        if (take(op, update_ops::in_units(row, times))) return true;
    }
    return false;
  }
  bool take(std::size_t op, const kernels::Signature& row) {
    const UpdateNode& n = *ops_[op];
    std::vector<Value> settled;
    bool fits = true;
    for (std::size_t i = 0; fits && i < n.in.size(); ++i) fits = settle(n.in[i], row.in[i], settled);
    for (std::size_t o = 0; fits && o < n.out.size(); ++o) fits = settle(n.out[o], row.out[o], settled);
    if (fits && take(op + 1)) return true;
    for (const Value v : settled) of_.erase(v);
    return false;
  }
  /// Each next version lies as its parameter; where nothing says how, whole.
  bool close() {
    std::vector<Value> settled;
    const auto settles = [&](const NextVersion& next, const Sbp& sbp) {
      return settle(next.value, sbp, settled) && settle(next.param, sbp, settled);
    };
    bool fits = true;
    for (std::size_t before = 1; fits && settled.size() != before;) {  // one that is known says how the other lies
      before = settled.size();
      for (const NextVersion& next : next_)
        if (fits && (is_known(next.param) || is_known(next.value)))
          fits = settles(next, at(is_known(next.param) ? next.param : next.value));
    }
    for (const NextVersion& next : next_) fits = fits && settles(next, at(next.param));
    if (!fits)
      for (const Value v : settled) of_.erase(v);
    return fits;
  }
  bool is_known(Value v) const { return is_of_step(v) || of_.count(canonical(v)) > 0; }
  bool is_of_step(Value v) const {
    const UpdateNode* n = maker(g_, v);
    return n && (n->kind == Kind::learning_rate || n->kind == Kind::number);
  }

  static constexpr int most_taken = 100'000;
  const Graph& g_;
  const std::vector<const UpdateNode*>& ops_;
  const std::vector<NextVersion>& next_;
  const std::int64_t places_;
  std::map<Value, Sbp> of_;
  std::size_t deepest_ = 0;
  int taken_ = 0;
};

/// One update.
class UpdateLowering {
 public:
  UpdateLowering(const Graph& g, Plan& plan, Lowered& low, TensorLayouts& layouts, const LinkedParams& linked)
      : g_(g), plan_(plan), low_(low), layouts_(layouts), linked_(linked) {
    std::set<Value> used;
    for (const NextVersion& next : g.next_versions())
      if (std::count(linked.params.begin(), linked.params.end(), next.param) > 0) {
        next_.push_back(next);
        for_each_upstream(g, next.value, [&](Value v) { used.insert(v); });
      }
    for (const UpdateNode& n : g.update_nodes())
      if (std::any_of(n.out.begin(), n.out.end(), [&](Value v) { return used.count(v) > 0; })) left_.push_back(&n);
  }

  Status run() {
    TROUPE_TRY(check_params());
    TROUPE_TRY(put_in_order());
    const std::int32_t first = param_index(linked_.params[0]);
    mesh_ = plan_.tensors[low_.params[first].tensor].mesh;
    update_.unit = low_.params[trained_first()].unit;
    TROUPE_TRY(lay_out());
    const auto index = static_cast<std::int32_t>(low_.updates.size());
    for (const Value v : linked_.params) {
      const std::int32_t p = param_index(v);
      low_.params[p].update = index;
      plan_.params[p].program = linked_.program;
    }
    make_tensors();
    for (const UpdateNode* n : nodes_) {
      if (n->kind == Kind::updated) continue;
      LoweredUpdateNode node{n->kind, n->op, n->name, n->attrs, -1, {}, {}};
      if (n->kind == Kind::gradient || n->kind == Kind::handed) node.param = param_index(n->in[0]);
      else if (n->kind != Kind::kept)
        for (const Value v : n->in) node.in.push_back(value(v));
      for (const Value v : n->out) node.out.push_back(layouts_.home[v]);
      update_.nodes.push_back(std::move(node));
    }
    for (const NextVersion& next : next_) {
      plan_.params[param_index(next.param)].by_ops = true;
      update_.makes.emplace_back(param_index(next.param), value(next.value));
    }
    for (const Value v : linked_.params)  // one that the ops only read, and nothing trains, stays as it is
      if (const std::int32_t p = param_index(v); low_.params[p].grads.empty() && !plan_.params[p].by_ops) {
        plan_.params[p].by_ops = true;
        update_.makes.emplace_back(p, UpdateValue{-1, p, false});
      }
    low_.updates.push_back(std::move(update_));
    return {};
  }

 private:
  std::int32_t param_index(Value v) const {
    const auto it = std::find_if(low_.params.begin(), low_.params.end(),
                                 [&](const LoweredParam& p) { return p.tensor == layouts_.home[v]; });
    return static_cast<std::int32_t>(it - low_.params.begin());
  }
  /// One number that an update keeps: no rows to divide.
  bool is_number(Value v) const {
    return elements(g_.tensors()[v].type.shape) == 1 && low_.params[param_index(v)].grads.empty();
  }
  std::int32_t trained_first() const {
    for (const Value v : linked_.params)
      if (const std::int32_t p = param_index(v); !low_.params[p].grads.empty()) return p;
    return param_index(linked_.params[0]);
  }

  /// Each op behind those whose values it reads. updated() may stand for what a later op makes.
  Status put_in_order() {
    std::set<Value> made;
    while (!left_.empty()) {
      const auto next = std::find_if(left_.begin(), left_.end(), [&](const UpdateNode* n) {
        return n->kind != Kind::op || std::all_of(n->in.begin(), n->in.end(), [&](Value v) {
                 const UpdateNode* from = maker(g_, resolved(g_, v));
                 return !from || from->kind != Kind::op || made.count(resolved(g_, v)) > 0;
               });
      });
      if (next == left_.end())
        return invalid("op '" + left_.front()->name + "' (" + left_.front()->op +
                       ") reads, through updated(), a next version that is made of what it makes itself");
      made.insert((*next)->out.begin(), (*next)->out.end());
      nodes_.push_back(*next);
      if ((*next)->kind == Kind::op) ops_.push_back(*next);
      left_.erase(next);
    }
    return {};
  }

  Status check_params() const {
    const std::string& program = g_.programs()[linked_.program];
    const std::string& name = g_.tensors()[next_.front().param].name;
    if (!g_.trains(linked_.program) && plan_.params[param_index(next_.front().param)].kept)
      return invalid("delay '" + name + "' over steps: program '" + program +
                     "' minimizes nothing, so it makes no versions in which a step's values could be: say step_delay() "
                     "in a program that does");
    if (!g_.trains(linked_.program))
      return invalid("next version of '" + name + "': program '" + program +
                     "' minimizes nothing, so it makes no updates: say next() in a program that does");
    for (const Value v : linked_.params) {
      const std::int32_t trainer = plan_.params[param_index(v)].program;
      if (trainer >= 0 && trainer != linked_.program)
        return invalid("next version of '" + name + "': it is joined to parameter '" + g_.tensors()[v].name +
                       "', which program '" + g_.programs()[trainer] + "' trains, and not '" + program +
                       "', whose update this is: say next() in program '" + g_.programs()[trainer] + "'");
    }
    for (const NextVersion& next : next_) TROUPE_TRY(check_reads(next));
    return {};
  }

  Status check_reads(const NextVersion& next) const {
    const std::string &program = g_.programs()[linked_.program], &name = g_.tensors()[next.param].name;
    std::vector<const UpdateNode*> read;
    for_each_upstream(g_, next.value, [&](Value v) {
      if (const UpdateNode* n = maker(g_, v)) read.push_back(n);
    });
    for (const UpdateNode* n : read) {
      if (n->program != linked_.program)
        return invalid("next version of '" + name + "' of program '" + program + "' reads '" + n->name +
                       "' of program '" + g_.programs()[n->program] + "': programs share parameters only");
      if (n->kind == Kind::handed && param_index(n->in[0]) == std::ssize(low_.params))
        return invalid("next version of '" + name + "': parameter '" + g_.tensors()[n->in[0]].name +
                       "', which is handed over, is read by no op and made by none");
      if (n->kind != Kind::gradient && n->kind != Kind::updated) continue;
      if (n->kind == Kind::updated && std::any_of(next_.begin(), next_.end(), [&](const NextVersion& other) {
            return other.param == n->in[0];
          }))  // else it would stand for what next() was given
        return invalid("next version of '" + name + "' is that of '" + g_.tensors()[n->in[0]].name +
                       "', which is made of it: updated() leads from one to the other and back");
      const std::string& param = g_.tensors()[n->in[0]].name;
      if (low_.params[param_index(n->in[0])].grads.empty())
        return invalid("next version of '" + name + "' reads " + n->name + ": no loss of program '" + program +
                       "' trains parameter '" + param + "': minimize one that depends on it, or read another one");
    }
    return {};
  }

  Status lay_out() {
    const Mesh& mesh = plan_.meshes[mesh_];
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
      const bool dp = static_cast<int>(a) == dp_axis(mesh);
      if (mesh.axes[a].size == 1 && !dp) continue;
      AxisOfUpdate axis(g_, ops_, next_, mesh.axes[a].size);
      bool rows = true;
      for (const Value v : linked_.params) {
        const PlanTensor& t = plan_.tensors[layouts_.home[v]];
        if (dp && is_number(v)) axis.fix(v, Sbp::B());
        else if (dp) axis.fix(v, Sbp::S(0)), rows &= !t.shape.empty();
        else if (layouts_.fixed.count(v) > 0) axis.fix(v, t.sbp[a]);
        else if (const auto& hint = g_.tensors()[v].hint) {
          if (hint->size() != mesh.axes.size())
            return invalid(fmt::format("parameter '{}': its layout ({}) has {} SBPs, and its stage's mesh {} {} axes",
                                       g_.tensors()[v].name, to_string(*hint), hint->size(), to_string(mesh),
                                       mesh.axes.size()));
          axis.fix(v, (*hint)[a]);
        }
      }
      const bool fits = (rows || !dp) && axis.search();
      if (dp) update_.by_rows = fits;
      if (!fits && (!dp || axis.gave_up())) return refuse(axis, mesh.axes[a].name, a);
      if (!dp)
        for (const Value v : linked_.params) plan_.tensors[layouts_.home[v]].sbp[a] = axis.at(v);
      axes_.emplace(a, std::move(axis));
    }
    for (const Value v : linked_.params) layouts_.fixed.insert(v);
    return {};
  }

  Status refuse(const AxisOfUpdate& axis, const std::string& name, std::size_t a) const {
    const UpdateNode* op = axis.stopped_at();
    if (axis.gave_up())
      return invalid(
          fmt::format("next version of '{}': no layout along axis {} was found among the first that were "
                      "tried: require() layouts of the parameters that only updates read",
                      g_.tensors()[next_.front().param].name, name));
    std::string lies;
    for (const Value v : linked_.params)
      if (layouts_.fixed.count(v) > 0)
        lies += fmt::format("{}'{}' as {}", lies.empty() ? "" : ", ", g_.tensors()[v].name,
                            to_string(plan_.tensors[layouts_.home[v]].sbp[a]));
    return invalid(fmt::format(
        "next version of '{}': along axis {} parameters lie as ops of microbatches read them ({}), and no row of {} "
        "has its arguments so, without partial sums: no boxing is inserted inside an update. Give the op such a row, "
        "or require() a layout of the parameter that it has",
        g_.tensors()[next_.front().param].name, name, lies,
        op ? "op '" + op->name + "' (" + op->op + ")" : std::string("its ops, taken together,")));
  }

  void make_tensors() {
    const Mesh& mesh = plan_.meshes[mesh_];
    const int dp = dp_axis(mesh);
    for (const UpdateNode* n : nodes_) {
      if (n->kind == Kind::updated) continue;
      if (n->kind == Kind::kept) {
        layouts_.home[n->out[0]] = layouts_.home[n->in[0]];
        continue;
      }
      for (const Value v : n->out) {
        PlanTensor t;
        t.name = g_.tensors()[v].name;
        t.dtype = g_.tensors()[v].type.dtype;
        t.shape = g_.tensors()[v].type.shape;
        t.mesh = mesh_;
        t.rate = Rate::step;
        t.sbp.assign(mesh.axes.size(), Sbp::B());
        const bool of_step = n->kind == Kind::learning_rate || n->kind == Kind::number;
        for (const auto& [a, axis] : axes_)
          if (static_cast<int>(a) != dp && !of_step) t.sbp[a] = axis.at(v);
        layouts_.home[v] = static_cast<std::int32_t>(plan_.tensors.size());
        if (update_.by_rows && !of_step)
          update_.row_sbp[layouts_.home[v]] = axes_.at(static_cast<std::size_t>(dp)).at(v);
        plan_.tensors.push_back(std::move(t));
        low_.producer.push_back(-1);
      }
    }
  }

  UpdateValue value(Value v) const {
    v = resolved(g_, v);
    if (g_.is_param(v)) return {-1, param_index(v), false};
    if (const UpdateNode* n = maker(g_, v); n->kind == Kind::updated) return {-1, param_index(n->in[0]), true};
    return {layouts_.home[v], -1, false};
  }

  const Graph& g_;
  Plan& plan_;
  Lowered& low_;
  TensorLayouts& layouts_;
  const LinkedParams& linked_;
  std::vector<NextVersion> next_;
  std::vector<const UpdateNode*> left_, nodes_, ops_;
  std::map<std::size_t, AxisOfUpdate> axes_;  // of the mesh: dp, and model axes of several places
  std::int32_t mesh_ = 0;
  LoweredUpdate update_;
};

}  // namespace

std::vector<LinkedParams> linked_params(const Graph& g) {
  std::map<Value, Value> root;
  const auto find = [&](Value v) {
    while (root.at(v) != v) v = root.at(v);
    return v;
  };
  for (const NextVersion& next : g.next_versions()) {
    root.emplace(next.param, next.param);
    for_each_upstream(g, next.value, [&](Value v) {
      if (!g.is_param(v)) return;
      root.emplace(v, v);
      root[find(v)] = find(next.param);
    });
  }
  std::map<Value, std::size_t> at;  // by root
  std::vector<LinkedParams> out;
  for (const auto& [v, above] : root) {
    const auto [it, fresh] = at.emplace(find(v), out.size());
    if (fresh) out.emplace_back();
    out[it->second].params.push_back(v);
  }
  for (const NextVersion& next : g.next_versions()) out[at.at(find(next.param))].program = next.program;
  return out;
}

Status lower_updates(const Graph& g, Plan& plan, Lowered& low, TensorLayouts& layouts) {
  std::set<Value> used;
  for (const NextVersion& next : g.next_versions()) for_each_upstream(g, next.value, [&](Value v) { used.insert(v); });
  for (const UpdateNode& n : g.update_nodes())
    if (n.kind == Kind::op && std::none_of(n.out.begin(), n.out.end(), [&](Value v) { return used.count(v) > 0; }))
      return invalid("op '" + n.name + "' (" + n.op +
                     ") reads parameters only, so it is one of an update, and no next version is made of it: pass what "
                     "it makes to Graph::next, or apply it to activations");
  const auto all = linked_params(g);
  for (const LinkedParams& linked : all) {
    for (const NextVersion& next : g.next_versions())
      if (next.program != linked.program && std::count(linked.params.begin(), linked.params.end(), next.param) > 0)
        return invalid("next version of '" + g.tensors()[next.param].name + "': programs '" +
                       g.programs()[next.program] + "' and '" + g.programs()[linked.program] +
                       "' make versions of parameters that ops join: say next() of all of them in one program");
    TROUPE_TRY(UpdateLowering(g, plan, low, layouts, linked).run());
  }
  return {};
}

}  // namespace troupe::runtime
