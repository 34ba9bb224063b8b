// Lowering: forward ops take the layouts that deduce.h has found, backward ops those that fit what is there, else
// the cheapest; every difference becomes a boxing node. One axis at a time; dp is no axis of deduction: a
// microbatch is whole on one dp coordinate, so activations are S(0) there, parameters B, their gradients P.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "runtime/deduce.h"
#include "runtime/lowered.h"

namespace troupe::runtime {

kernels::OpCost op_cost(const kernels::OpDef& def, const std::vector<TensorType>& in,
                        const std::vector<TensorType>& out, const Attrs& attrs) {
  if (def.cost) return def.cost(in, out, attrs);
  kernels::OpCost cost;
  for (const auto* side : {&in, &out})
    for (const auto& t : *side) cost.bytes += static_cast<double>(elements(t.shape) * size_of(t.dtype));
  return cost;
}

namespace {

class Lowering {
 public:
  Lowering(const Graph& g, const std::vector<UnitPlace>& units, Plan& plan, Deduction deduced)
      : g_(g), units_(units), plan_(plan), deduced_(std::move(deduced)), home_(g.tensors().size(), -1) {
    for (const auto& grad : g.grads())
      for (Value v : grad.uses) param_of_grad_[v] = grad.param;
  }

  Expected<Lowered> run() {
    TROUPE_TRY(make_params());
    for (std::size_t i = 0; i < g_.nodes().size(); ++i) {
      const Node& n = g_.nodes()[i];
      Status s;
      switch (n.kind) {
        case Node::Kind::param: break;
        case Node::Kind::op: s = lower_op(n, deduced_.signatures[i]); break;
        case Node::Kind::actor: s = lower_actor(n); break;
        case Node::Kind::feed: s = lower_feed(n); break;
        case Node::Kind::report: s = lower_report(n); break;
      }
      if (!s.ok()) return s;
    }
    for (auto& p : low_.params)
      for (const auto& grad : g_.grads())
        if (home_[grad.param] == p.tensor)
          for (Value v : grad.uses) p.grads.push_back(home_[v]);
    return std::move(low_);
  }

 private:
  std::int32_t home_mesh(const Node& n) const { return units_[n.unit].mesh; }
  const Mesh& mesh(std::int32_t id) const { return plan_.meshes[id]; }

  std::int32_t add_tensor(PlanTensor t, std::int32_t producer) {
    plan_.tensors.push_back(std::move(t));
    low_.producer.push_back(producer);
    return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
  }

  /// A parameter lives where it is read; read on several stages, on their union: their dp widths side by side.
  Status make_params() {
    std::vector<std::set<std::int32_t>> meshes(g_.tensors().size());
    for (const Node& n : g_.nodes())
      for (Value v : n.in)
        if (g_.is_param(v)) meshes[v].insert(home_mesh(n));
    for (std::size_t i = 0; i < g_.nodes().size(); ++i) {
      const Node& n = g_.nodes()[i];
      if (n.kind != Node::Kind::param) continue;
      const auto& read_on = meshes[n.out[0]];
      if (read_on.empty()) continue;
      if (read_on.size() > 1 && *read_on.rbegin() >= plan_.stages)
        return invalid("parameter '" + n.name + "' is read in a shared unit, which divides it over the stages, and outside of one: read it in shared units only");
      LoweredParam p;
      p.graph_node = static_cast<std::int32_t>(i);
      p.unit = n.unit;
      PlanTensor t;
      t.name = n.name;
      t.shape = g_.tensors()[n.out[0]].type.shape;
      t.dtype = g_.tensors()[n.out[0]].type.dtype;
      t.rate = Rate::step;
      t.mesh = union_mesh({read_on.begin(), read_on.end()});
      p.stages = plan_.stages_on(t.mesh);
      t.sbp.assign(plan_.meshes[t.mesh].axes.size(), Sbp::B());
      p.tensor = home_[n.out[0]] = add_tensor(std::move(t), -1);
      plan_.params.push_back({n.name, p.tensor, n.init.kind, n.init.value, n.decay, 0});
      low_.params.push_back(std::move(p));
    }
    return {};
  }

  std::int32_t union_mesh(const std::vector<std::int32_t>& stages) {
    if (stages.size() == 1) return stages[0];
    Mesh u = mesh(stages[0]);
    const int axis = dp_axis(u);
    for (std::size_t i = 1; i < stages.size() && axis >= 0; ++i) {
      const Mesh& more = mesh(stages[i]);
      // Row-major with dp innermost: append each outer row's ranks to the row.
      const std::int64_t have = u.axes[axis].size, extra = more.axes[axis].size;
      std::vector<Rank> ranks;
      for (std::int64_t row = 0; row * have < u.size(); ++row) {
        ranks.insert(ranks.end(), u.ranks.begin() + row * have, u.ranks.begin() + (row + 1) * have);
        ranks.insert(ranks.end(), more.ranks.begin() + row * extra, more.ranks.begin() + (row + 1) * extra);
      }
      u.axes[axis].size += extra;
      u.ranks = std::move(ranks);
    }
    const auto it = std::find(plan_.meshes.begin(), plan_.meshes.end(), u);
    if (it != plan_.meshes.end()) return static_cast<std::int32_t>(it - plan_.meshes.begin());
    plan_.meshes.push_back(std::move(u));
    return static_cast<std::int32_t>(plan_.meshes.size()) - 1;
  }

  /// Sbp of a microbatch tensor on all axes: `model` on the model axes, S(0) on dp.
  NdSbp full(std::int32_t on, NdSbp model) const {
    const int axis = dp_axis(mesh(on));
    if (axis >= 0) model[axis] = Sbp::S(0);
    return model;
  }

  /// The tensor that holds graph value `v` on `stage` with layout `sbp`: as it lies, or through a boxing.
  Expected<std::int32_t> want(Value v, std::int32_t stage, const NdSbp& sbp, const Node& reader) {
    const std::int32_t home = home_[v];
    if (home < 0) return invalid("'" + reader.name + "' reads '" + g_.tensors()[v].name + "' before it is made");
    if (g_.is_param(v)) return want_param(v, home, stage, sbp, reader);
    // Copy: add_tensor below may move plan_.tensors.
    const PlanTensor have = plan_.tensors[home];
    for (const std::int32_t there : variants(home))
      if (plan_.tensors[there].mesh == stage && fits(plan_.tensors[there].sbp, sbp, have.shape, stage)) return there;
    const LoweredNode& from = low_.nodes[low_.producer[home]];
    if (from.program != reader.program)
      return invalid("'" + reader.name + "' of program '" + g_.programs()[reader.program] + "' reads '" + have.name +
                     "' of program '" + g_.programs()[from.program] + "': programs share parameters only");
    // An all-reduce goes through the split between its halves; everything else is one step.
    const int dp = have.mesh == stage ? dp_axis(mesh(stage)) : -1;
    auto part = [&](NdSbp all) {
      if (dp >= 0) all.erase(all.begin() + dp);
      return Layout{have.shape, have.dtype, dp >= 0 ? mesh(stage).slice(dp, 0) : mesh(stage), all};
    };
    std::vector<NdSbp> steps;
    if (have.mesh == stage)
      for (const Layout& l : lower_boxing(part(have.sbp), part(sbp))) {
        steps.push_back(l.sbp);
        if (dp >= 0) steps.back().insert(steps.back().begin() + dp, have.sbp[dp]);
      }
    if (steps.empty()) steps = {sbp};
    std::int32_t at = home;
    for (const NdSbp& step : steps) {
      at = box(at, have.name, stage, step, reader);
      boxed_[home].push_back(at);
    }
    return at;
  }

  /// A tensor as it was made, and every boxed copy of it.
  std::vector<std::int32_t> variants(std::int32_t home) const {
    std::vector<std::int32_t> all = {home};
    if (const auto it = boxed_.find(home); it != boxed_.end()) all.insert(all.end(), it->second.begin(), it->second.end());
    return all;
  }
  bool fits(const NdSbp& have, const NdSbp& want, const Shape& shape, std::int32_t stage) const {
    return same_layout(have, want, shape, mesh(stage));
  }

  /// One boxing node; answers the tensor after it.
  std::int32_t box(std::int32_t from, const std::string& name, std::int32_t stage, const NdSbp& sbp, const Node& reader) {
    PlanTensor t = plan_.tensors[from];
    t.name = name + "@" + (t.mesh == stage ? to_string(sbp) : stage < plan_.stages ? "stage" + std::to_string(stage) : "stages");
    t.mesh = stage;
    t.sbp = sbp;
    LoweredNode n;
    n.kind = LoweredNode::Kind::boxing;
    n.name = "box." + t.name;
    n.in = {from};
    n.mesh = stage;
    n.depth = units_[reader.unit].depth;
    n.unit = reader.unit;
    n.program = reader.program;
    n.backward = reader.backward;
    n.rate = t.rate;
    const std::int32_t id = add_tensor(std::move(t), static_cast<std::int32_t>(low_.nodes.size()));
    n.out = {id};
    low_.nodes.push_back(std::move(n));
    return id;
  }

  /// Parameters take the layout that their first reader wants; later ones must agree.
  Expected<std::int32_t> want_param(Value v, std::int32_t home, std::int32_t, const NdSbp& sbp, const Node& reader) {
    PlanTensor& t = plan_.tensors[home];
    NdSbp target = sbp;
    const int axis = dp_axis(plan_.meshes[t.mesh]);
    if (axis >= 0) target[axis] = Sbp::B();
    if (!param_fixed_.count(v)) {
      t.sbp = target;
      param_fixed_.insert(v);
    } else if (!fits(t.sbp, target, t.shape, t.mesh)) {
      Layout from{t.shape, t.dtype, plan_.meshes[t.mesh], t.sbp}, to = from;
      to.sbp = target;
      const auto box = plan_boxing(from, to);
      return invalid("'" + reader.name + "' wants parameter '" + t.name + "' as (" + to_string(target) +
                     "), another reader has it as (" + to_string(t.sbp) + "); the boxing between them (" +
                     to_string(collective_of(from, to)) + ", " +
                     (box.ok() ? std::to_string(box->moved_bytes(size_of(t.dtype))) + " bytes" : box.status().message()) +
                     ") is not inserted for parameters: give both readers the same hint");
    }
    return home;
  }

  /// The tensor's mesh and that of a stage are equally wide along a model axis, so an SBP means the same on both.
  bool alike(const PlanTensor& t, std::int32_t stage, std::size_t axis) const {
    const auto &a = plan_.meshes[t.mesh].axes, &b = mesh(stage).axes;
    return a.size() == b.size() && a[axis] == b[axis];
  }

  /// The largest part of a tensor that the axes before one leave.
  Shape part_before(const PlanTensor& t, std::size_t axis) const { return part_of(t.shape, t.sbp, axis, plan_.meshes[t.mesh]); }

  /// A copy of the value lies that way already.
  bool there(Value v, std::int32_t stage, std::size_t axis, const Sbp& wanted) const {
    for (const std::int32_t id : variants(home_[v])) {
      const PlanTensor& t = plan_.tensors[id];
      if (alike(t, stage, axis) && same_parts(t.sbp[axis], wanted, part_before(t, axis), mesh(stage).axes[axis].size)) return true;
    }
    return false;
  }

  /// Bytes that each place sends to have a value as `wanted` along a model axis of `stage`, from its nearest copy.
  double missing_bytes(Value v, std::int32_t stage, std::size_t axis, const Sbp& wanted) const {
    const TensorType& type = g_.tensors()[v].type;
    const std::int64_t n = mesh(stage).axes[axis].size;
    double least = std::numeric_limits<double>::infinity();
    for (const std::int32_t id : variants(home_[v])) {
      const PlanTensor& t = plan_.tensors[id];
      const Sbp lies = alike(t, stage, axis) ? t.sbp[axis] : Sbp::B();
      const bool same = same_parts(lies, wanted, part_before(t, axis), n);
      if (g_.is_param(v) && param_fixed_.count(v) && !same) continue;
      if (same) return 0;
      least = std::min(least, axis_boxing_bytes(lies, wanted, static_cast<double>(elements(type.shape) * size_of(type.dtype)), n));
    }
    return least;
  }

  /// True where a row reads what the forward op has read and made as the forward op did.
  bool mirrors(const Node& n, const kernels::Signature& sig, std::size_t axis) const {
    if (n.of < 0) return true;
    const Node& f = g_.nodes()[n.of];
    const kernels::Signature& forward = deduced_.signatures[n.of][axis];
    auto agrees = [&](std::size_t i, const std::vector<Value>& values, const std::vector<Sbp>& lies) {
      for (std::size_t j = 0; j < values.size(); ++j)
        if (values[j] == n.in[i] && !lies[j].is_partial() &&
            !same_parts(lies[j], sig.in[i], part_before(plan_.tensors[home_[n.in[i]]], axis), mesh(home_mesh(n)).axes[axis].size))
          return false;
      return true;
    };
    for (std::size_t i = 0; i < n.in.size(); ++i)
      if (!agrees(i, f.in, forward.in) || !agrees(i, f.out, forward.out)) return false;
    return true;
  }

  /// One row of a backward op's table on one axis, and what it moves.
  struct Candidate {
    const kernels::Signature* row;
    double bytes;
    int boxings;
  };

  /// The rows that mirror the forward op and that can be had along a model axis, with their cost there.
  std::vector<Candidate> candidates(const Node& n, const std::vector<kernels::Signature>& table, std::size_t axis) const {
    const std::int32_t s = home_mesh(n);
    std::vector<Candidate> out;
    for (const auto& sig : table) {
      if (!mirrors(n, sig, axis)) continue;
      Candidate c{&sig, 0, 0};
      for (std::size_t i = 0; i < n.in.size(); ++i) {
        c.bytes += missing_bytes(n.in[i], s, axis, sig.in[i]);
        c.boxings += !there(n.in[i], s, axis, sig.in[i]);
      }
      bool fits = true;
      for (std::size_t o = 0; o < n.out.size(); ++o)
        if (const auto it = param_of_grad_.find(n.out[o]); it != param_of_grad_.end()) {
          // A gradient lies like its parameter, or is a sum that is reduced to it once a step.
          const Sbp& param = plan_.tensors[home_[it->second]].sbp[axis];
          if (!sig.out[o].is_partial() || param.is_split())
            fits &= same_parts(sig.out[o], param, part_before(plan_.tensors[home_[it->second]], axis), mesh(s).axes[axis].size);
        }
      if (fits && std::isfinite(c.bytes)) out.push_back(c);
    }
    return out;
  }

  /// Whether what lies somewhere can be boxed to `in`, where that is known: the first `axes` axes.
  bool may_box(const Node& n, const std::vector<NdSbp>& in, std::size_t axes) const {
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      const PlanTensor& t = plan_.tensors[home_[n.in[i]]];
      if (g_.is_param(n.in[i]) || plan_.meshes[t.mesh].axes != mesh(home_mesh(n)).axes) continue;
      const auto end = static_cast<std::ptrdiff_t>(axes);
      if (!sums_together({t.sbp.begin(), t.sbp.begin() + end}, {in[i].begin(), in[i].begin() + end})) return false;
    }
    return true;
  }

  /// The rows that a backward op takes along the model axes: of those that can be had together, the ones that move least.
  struct Choice {
    std::vector<const kernels::Signature*> rows;   // by axis; null: not a model axis
    double bytes = std::numeric_limits<double>::infinity();
    int boxings = 0;
  };
  void choose(const Node& n, const std::vector<std::vector<Candidate>>& by_axis, std::vector<NdSbp>& in, Choice& now, Choice& best) const {
    const std::size_t axis = now.rows.size();
    // Bytes first; a slice moves none, but is a boxing that somebody undoes later.
    if (std::pair(now.bytes, now.boxings) >= std::pair(best.bytes, best.boxings)) return;
    if (axis == by_axis.size()) {
      best = now;
      return;
    }
    const auto before = now;
    if (by_axis[axis].empty()) {
      now.rows.push_back(nullptr);
      choose(n, by_axis, in, now, best);
    }
    for (const Candidate& c : by_axis[axis]) {
      for (std::size_t i = 0; i < n.in.size(); ++i) in[i][axis] = c.row->in[i];
      if (!may_box(n, in, axis + 1)) continue;
      now = before;
      now.rows.push_back(c.row);
      now.bytes += c.bytes;
      now.boxings += c.boxings;
      choose(n, by_axis, in, now, best);
    }
    now = before;
    for (auto& sbp : in) sbp[axis] = Sbp::B();
  }

  Status lower_op(const Node& n, const std::vector<kernels::Signature>& deduced) {
    if (!n.out.empty() && g_.tensors()[n.out[0]].rate == Rate::step)
      return invalid("op '" + n.name + "' (" + n.op + ") reads parameters only; ops on parameters are not in this version: apply it to activations");
    const std::int32_t s = home_mesh(n);
    const auto& axes = mesh(s).axes;
    const int dp = dp_axis(mesh(s));
    std::vector<NdSbp> in(n.in.size(), NdSbp(axes.size(), Sbp::B())), out(n.out.size(), NdSbp(axes.size(), Sbp::B()));
    // Dim 0 of a parameter's gradient is no sample.
    const bool grad = std::any_of(n.out.begin(), n.out.end(), [&](Value v) { return param_of_grad_.count(v) != 0; });
    const auto table = !n.backward ? deduced : grad ? op_rows(g_, n) : model_rows(g_, n);
    Choice now{{}, 0, 0}, best;
    if (n.backward) {
      std::vector<std::vector<Candidate>> by_axis(axes.size());
      for (std::size_t a = 0; a < axes.size(); ++a) {
        if (static_cast<int>(a) == dp || axes[a].size == 1) continue;
        by_axis[a] = candidates(n, table, a);
        if (by_axis[a].empty())
          return invalid("op '" + n.name + "' (" + n.op + "): no row of its SBP table gives a gradient that lies like its parameter on axis '" +
                         axes[a].name + "'");
      }
      choose(n, by_axis, in, now, best);
      if (best.rows.empty()) return invalid("op '" + n.name + "' (" + n.op + "): its rows on the axes of " + to_string(mesh(s)) + " cannot be had together");
    } else {
      for (std::size_t a = 0; a < axes.size(); ++a)
        best.rows.push_back(static_cast<int>(a) == dp || axes[a].size == 1 ? nullptr : &deduced[a]);
    }
    for (std::size_t a = 0; a < axes.size(); ++a) {
      if (!best.rows[a]) continue;
      for (std::size_t i = 0; i < n.in.size(); ++i) in[i][a] = best.rows[a]->in[i];
      for (std::size_t o = 0; o < n.out.size(); ++o) out[o][a] = best.rows[a]->out[o];
    }
    LoweredNode node;
    node.kind = LoweredNode::Kind::op;
    node.op = n.op;
    node.name = n.name;
    node.attrs = n.attrs;
    node.mesh = s;
    node.depth = units_[n.unit].depth;
    node.unit = n.unit;
    node.program = n.program;
    node.backward = n.backward;
    node.rate = n.out.empty() ? Rate::microbatch : g_.tensors()[n.out[0]].rate;
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      TROUPE_ASSIGN(const std::int32_t t, want(n.in[i], s, g_.is_param(n.in[i]) ? in[i] : full(s, in[i]), n));
      node.in.push_back(t);
    }
    const auto id = static_cast<std::int32_t>(low_.nodes.size());
    for (std::size_t o = 0; o < n.out.size(); ++o) {
      const auto& type = g_.tensors()[n.out[o]].type;
      PlanTensor t{g_.tensors()[n.out[o]].name, type.dtype, type.shape, s, full(s, out[o]), g_.tensors()[n.out[o]].rate, false};
      if (param_of_grad_.count(n.out[o])) {
        if (dp < 0) return invalid("training needs a mesh with a dp axis (stage " + std::to_string(s) + " has " + to_string(mesh(s)) + ")");
        t.rate = Rate::step;
        t.lane_terms = true;
        t.sbp[dp] = Sbp::P();
      }
      node.out.push_back(home_[n.out[o]] = add_tensor(std::move(t), id));
    }
    low_.nodes.push_back(std::move(node));
    return {};
  }

  Status port_sbp(const Node& n, const std::optional<NdSbp>& hint, const std::string& port, NdSbp& sbp) const {
    const std::int32_t s = home_mesh(n);
    sbp.assign(mesh(s).axes.size(), Sbp::B());
    if (hint) {
      if (hint->size() != sbp.size())
        return invalid("actor '" + n.name + "', port '" + port + "': its stage's mesh " + to_string(mesh(s)) + " needs " +
                       std::to_string(sbp.size()) + " SBPs, one per axis, and the port has (" + to_string(*hint) + ")");
      sbp = *hint;
    }
    sbp = full(s, sbp);
    return {};
  }

  Status lower_actor(const Node& n) {
    LoweredNode node;
    node.kind = LoweredNode::Kind::actor;
    node.op = n.op;
    node.name = n.name;
    node.attrs = n.attrs;
    node.mesh = home_mesh(n);
    node.depth = units_[n.unit].depth;
    node.unit = n.unit;
    node.program = n.program;
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      NdSbp sbp;
      TROUPE_TRY(port_sbp(n, n.in_sbp[i], "input " + std::to_string(i), sbp));
      TROUPE_ASSIGN(const std::int32_t t, want(n.in[i], node.mesh, sbp, n));
      node.in.push_back(t);
    }
    const auto id = static_cast<std::int32_t>(low_.nodes.size());
    for (Value v : n.out) {
      const Tensor& graph_tensor = g_.tensors()[v];
      NdSbp sbp;
      TROUPE_TRY(port_sbp(n, graph_tensor.hint, graph_tensor.name, sbp));
      PlanTensor t{graph_tensor.name, graph_tensor.type.dtype, graph_tensor.type.shape, node.mesh, sbp, Rate::microbatch, false};
      if (Status st = Layout(t.shape, t.dtype, mesh(node.mesh), t.sbp).validate(); !st.ok()) return st.in("actor '" + n.name + "'");
      node.out.push_back(home_[v] = add_tensor(std::move(t), id));
    }
    low_.nodes.push_back(std::move(node));
    return {};
  }

  Status lower_feed(const Node& n) {
    if (g_.is_shared(n.unit)) return invalid("feed '" + n.op + "' is in the shared unit '" + g_.units()[n.unit] + "': name it in the unit before, on whose stage it arrives");
    LoweredNode node;
    node.kind = LoweredNode::Kind::feed;
    node.op = n.op;
    node.attrs = n.attrs;
    node.name = n.name;
    node.mesh = home_mesh(n);
    node.depth = units_[n.unit].depth;
    node.unit = n.unit;
    node.program = n.program;
    const auto& type = g_.tensors()[n.out[0]].type;
    PlanTensor t{n.op, type.dtype, type.shape, node.mesh, full(node.mesh, NdSbp(mesh(node.mesh).axes.size(), Sbp::B())), Rate::microbatch, false};
    node.out = {home_[n.out[0]] = add_tensor(std::move(t), static_cast<std::int32_t>(low_.nodes.size()))};
    low_.nodes.push_back(std::move(node));
    return {};
  }

  Status lower_report(const Node& n) {
    const std::int32_t s = plan_.stages_on(plan_.tensors[home_[n.in[0]]].mesh).back();   // one place speaks
    NdSbp sbp = full(s, NdSbp(mesh(s).axes.size(), Sbp::B()));
    TROUPE_ASSIGN(const std::int32_t t, want(n.in[0], s, sbp, n));
    LoweredNode node;
    node.kind = LoweredNode::Kind::report;
    node.name = n.op;
    node.attrs = n.attrs;
    node.in = {t};
    node.mesh = s;
    node.depth = units_[n.unit].depth;
    node.unit = n.unit;
    node.program = n.program;
    low_.nodes.push_back(std::move(node));
    return {};
  }

  const Graph& g_;
  const std::vector<UnitPlace>& units_;
  Plan& plan_;
  Deduction deduced_;
  Lowered low_;
  std::vector<std::int32_t> home_;                       // graph value -> plan tensor
  std::map<Value, Value> param_of_grad_;
  std::set<Value> param_fixed_;
  std::map<std::int32_t, std::vector<std::int32_t>> boxed_;   // home -> its copies with other layouts
};

}  // namespace

Expected<Lowered> lower(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan) {
  TROUPE_ASSIGN(Deduction deduced, deduce(graph, units, plan));
  return Lowering(graph, units, plan, std::move(deduced)).run();
}

}  // namespace troupe::runtime
