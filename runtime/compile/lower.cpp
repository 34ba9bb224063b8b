// Lowering: forward ops take the layouts of deduce.h, backward ops those of backward_rows.h; every difference
// becomes a boxing node. One axis at a time; dp is no axis of deduction: a microbatch is whole on one dp coordinate, so
// activations are S(0) there, parameters B, their gradients P.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "placement/boxing.h"
#include "placement/collective.h"
#include "runtime/compile/backward_rows.h"
#include "runtime/compile/deduce.h"

namespace troupe::runtime {

namespace {

class Lowering {
 public:
  Lowering(const Graph& g, Staged& staged, Deduction deduced)
      : g_(g), staged_(staged), plan_(staged.plan), deduced_(std::move(deduced)) {
    layouts_.home.assign(g.tensors().size(), -1);
    for (const auto& grad : g.grads())
      for (Value v : grad.uses) layouts_.param_of_grad[v] = grad.param;
  }

  Expected<Lowered> run() {
    lower_params(g_, staged_.units, plan_, low_, layouts_);
    for (std::size_t i = 0; i < g_.nodes().size(); ++i) {
      const Node& n = g_.nodes()[i];
      Status s;
      switch (n.kind) {
        case Node::Kind::param: break;
        case Node::Kind::op: s = lower_op(n, deduced_.signatures[i]); break;
        case Node::Kind::actor: s = lower_actor(n); break;
        case Node::Kind::feed: s = lower_feed(n); break;
        case Node::Kind::report: s = lower_report(n); break;
        case Node::Kind::delay: s = lower_delay(n); break;
        case Node::Kind::feed_back: s = lower_feed_back(n); break;
      }
      if (!s.ok()) return s;
    }
    TROUPE_TRY(check_delays());
    for (auto& p : low_.params)
      for (const auto& grad : g_.grads()) {
        if (layouts_.home[grad.param] != p.tensor) continue;
        plan_.params[static_cast<std::size_t>(&p - low_.params.data())].program = grad.program;
        for (Value v : grad.uses) p.grads.push_back(layouts_.home[v]);
      }
    TROUPE_TRY(lower_updates(g_, plan_, low_, layouts_));
    return std::move(low_);
  }

 private:
  std::int32_t home_mesh(const Node& n) const { return staged_.units[n.unit].mesh; }
  const Mesh& mesh(std::int32_t id) const { return plan_.meshes[id]; }

  std::int32_t add_tensor(PlanTensor t, std::int32_t producer) {
    plan_.tensors.push_back(std::move(t));
    low_.producer.push_back(producer);
    return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
  }

  /// Sbp of a microbatch tensor on all axes: `model` on the model axes, S(0) on dp.
  NdSbp full(std::int32_t on, NdSbp model) const {
    const int axis = dp_axis(mesh(on));
    if (axis >= 0) model[axis] = Sbp::S(0);
    return model;
  }

  /// Returns the tensor that holds graph value `v` on mesh `on` with layout `sbp`; adds boxings if there is none.
  Expected<std::int32_t> want(Value v, std::int32_t on, const NdSbp& sbp, const Node& reader) {
    const std::int32_t home = layouts_.home[v];
    if (home < 0) return invalid("'" + reader.name + "' reads '" + g_.tensors()[v].name + "' before it is made");
    if (g_.is_param(v)) return want_param(v, home, sbp, reader);
    if (const auto grad = layouts_.param_of_grad.find(v); grad != layouts_.param_of_grad.end())
      return invalid("'" + reader.name + "' reads the gradient of parameter '" + g_.tensors()[grad->second].name +
                     "': it is an exact sum over a step, which norms and updates read and no other node");
    // Copy: add_tensor below may move plan_.tensors.
    const PlanTensor have = plan_.tensors[home];
    for (const std::int32_t there : layouts_.variants(home))
      if (plan_.tensors[there].mesh == on && fits(plan_.tensors[there].sbp, sbp, have.shape, on)) return there;
    const LoweredNode& from = low_.nodes[low_.producer[home]];
    if (from.program != reader.program)
      return invalid("'" + reader.name + "' of program '" + g_.programs()[reader.program] + "' reads '" + have.name +
                     "' of program '" + g_.programs()[from.program] + "': programs share parameters only");
    // From the nearest copy. An all-reduce goes through the split between its halves; everything else is one step.
    const int dp = have.mesh == on ? dp_axis(mesh(on)) : -1;
    auto part = [&](NdSbp all) {
      if (dp >= 0) all.erase(all.begin() + dp);
      return Layout{have.shape, have.dtype, dp >= 0 ? mesh(on).slice(dp, 0) : mesh(on), all};
    };
    std::int32_t at = home;
    std::vector<NdSbp> steps = {sbp};
    if (const std::int64_t n = terms(have.sbp, have.mesh), wanted = terms(sbp, on);
        have.mesh != on && n > 1 && wanted > 1 && n != wanted) {
      // Between stages with other model axes terms become one sum first.
      steps.insert(steps.begin(), sbp);
      for (Sbp& s : steps[0])
        if (s.is_partial()) s = Sbp::B();
    }
    if (have.mesh == on) {
      const auto bytes = [&](std::int32_t from) { return lower_bound_bytes(part(plan_.tensors[from].sbp), part(sbp)); };
      for (const std::int32_t there : layouts_.variants(home))
        if (plan_.tensors[there].mesh == on && sums_together(plan_.tensors[there].sbp, sbp) && bytes(there) < bytes(at))
          at = there;
      steps.clear();
      for (const Layout& l : lower_boxing(part(plan_.tensors[at].sbp), part(sbp))) {
        steps.push_back(l.sbp);
        if (dp >= 0) steps.back().insert(steps.back().begin() + dp, have.sbp[dp]);
      }
    }
    for (const NdSbp& step : steps) {
      at = box(at, have.name, on, step, reader);
      layouts_.boxed[home].push_back(at);
    }
    return at;
  }

  /// Of how many terms a tensor is a sum along the axes of a mesh.
  std::int64_t terms(const NdSbp& sbp, std::int32_t on) const {
    std::int64_t n = 1;
    for (std::size_t a = 0; a < sbp.size(); ++a)
      if (sbp[a].is_partial()) n *= mesh(on).axes[a].size;
    return n;
  }

  bool fits(const NdSbp& have, const NdSbp& want, const Shape& shape, std::int32_t on) const {
    return same_layout(have, want, shape, mesh(on));
  }

  /// Adds one boxing node, which ends on mesh `on`; returns the tensor that it makes.
  std::int32_t box(std::int32_t from, const std::string& name, std::int32_t on, const NdSbp& sbp, const Node& reader) {
    PlanTensor t = plan_.tensors[from];
    t.name = fmt::format("{}@{}", name,
                         t.mesh == on        ? to_string(sbp)
                         : on < plan_.stages ? fmt::format("stage{}", on)
                                             : "stages");
    t.mesh = on;
    t.sbp = sbp;
    LoweredNode n;
    n.kind = LoweredNode::Kind::boxing;
    n.name = "box." + t.name;
    n.in = {from};
    n.mesh = on;
    n.virtual_stage = staged_.units[reader.unit].virtual_stage;
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
  Expected<std::int32_t> want_param(Value v, std::int32_t home, const NdSbp& sbp, const Node& reader) {
    PlanTensor& t = plan_.tensors[home];
    NdSbp target = sbp;
    const int axis = dp_axis(plan_.meshes[t.mesh]);
    if (axis >= 0) target[axis] = Sbp::B();
    if (!layouts_.fixed.count(v)) {
      t.sbp = target;
      layouts_.fixed.insert(v);
    } else if (!fits(t.sbp, target, t.shape, t.mesh)) {
      Layout from{t.shape, t.dtype, plan_.meshes[t.mesh], t.sbp}, to = from;
      to.sbp = target;
      const auto box = plan_boxing(from, to);
      return invalid(
          fmt::format("'{}' wants parameter '{}' as ({}), another reader has it as ({}); the boxing between them "
                      "({}, {}) is not inserted for parameters: give both readers the same hint",
                      reader.name, t.name, to_string(target), to_string(t.sbp), to_string(collective_of(from, to)),
                      box.ok() ? fmt::format("{} bytes", box->moved_bytes(size_of(t.dtype))) : box.status().message()));
    }
    return home;
  }

  /// A node where its unit runs, still without tensors.
  LoweredNode node_of(const Node& n, LoweredNode::Kind kind) const {
    LoweredNode node;
    node.kind = kind;
    node.op = n.op;
    node.name = n.name;
    node.attrs = n.attrs;
    node.mesh = home_mesh(n);
    node.virtual_stage = staged_.units[n.unit].virtual_stage;
    node.unit = n.unit;
    node.program = n.program;
    return node;
  }

  Status lower_op(const Node& n, const std::vector<kernels::Signature>& deduced) {
    const std::int32_t on = home_mesh(n);
    const auto& axes = mesh(on).axes;
    const int dp = dp_axis(mesh(on));
    std::vector<NdSbp> in(n.in.size(), NdSbp(axes.size(), Sbp::B())), out(n.out.size(), NdSbp(axes.size(), Sbp::B()));
    // Dim 0 of a parameter's gradient is no sample.
    const bool grad = std::any_of(n.out.begin(), n.out.end(),
                                  [&](Value v) { return layouts_.param_of_grad.count(v) != 0; });
    const auto table = !n.backward ? deduced : grad ? op_rows(g_, n) : model_rows(g_, n);
    std::vector<const kernels::Signature*> rows;
    if (n.backward) {
      TROUPE_ASSIGN(rows, backward_rows_.choose(n, table));
    } else {
      for (std::size_t a = 0; a < axes.size(); ++a)
        rows.push_back(static_cast<int>(a) == dp || axes[a].size == 1 ? nullptr : &deduced[a]);
    }
    for (std::size_t a = 0; a < axes.size(); ++a) {
      if (!rows[a]) continue;
      for (std::size_t i = 0; i < n.in.size(); ++i) in[i][a] = rows[a]->in[i];
      for (std::size_t o = 0; o < n.out.size(); ++o) out[o][a] = rows[a]->out[o];
    }
    LoweredNode node = node_of(n, LoweredNode::Kind::op);
    node.backward = n.backward;
    node.rate = n.out.empty() ? Rate::microbatch : g_.tensors()[n.out[0]].rate;
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      TROUPE_ASSIGN(const std::int32_t t, want(n.in[i], on, g_.is_param(n.in[i]) ? in[i] : full(on, in[i]), n));
      node.in.push_back(t);
    }
    const auto id = static_cast<std::int32_t>(low_.nodes.size());
    for (std::size_t o = 0; o < n.out.size(); ++o) {
      const auto& type = g_.tensors()[n.out[o]].type;
      PlanTensor t{g_.tensors()[n.out[o]].name, type.dtype, type.shape, on, full(on, out[o]),
                   g_.tensors()[n.out[o]].rate};
      if (layouts_.param_of_grad.count(n.out[o])) {
        if (dp < 0)
          return invalid(fmt::format("training needs a mesh with a dp axis ({} {})",
                                     on < plan_.stages ? fmt::format("stage {} has", on) : "all stages together have",
                                     to_string(mesh(on))));
        t.rate = Rate::step;
        t.dtype = DType::sum64;
        t.sbp[dp] = Sbp::P();
        t.gradient_of = add_terms(layouts_.param_of_grad.at(n.out[o]), n, t);
      }
      node.out.push_back(layouts_.home[n.out[o]] = add_tensor(std::move(t), id));
    }
    low_.nodes.push_back(std::move(node));
    return {};
  }

  /// Adds the terms of a use's gradient to PlanParam::terms: those of the op, for each microbatch and each place of a
  /// model axis that makes a part of the sum. Returns the parameter's index.
  std::int32_t add_terms(Value param, const Node& n, const PlanTensor& grad) {
    std::int32_t index = 0;
    while (plan_.params[index].tensor != layouts_.home[param]) ++index;
    std::vector<TensorType> in;
    for (Value v : n.in) in.push_back(g_.tensors()[v].type);
    const auto& def = *g_.ops().find(n.op);
    std::int64_t terms = def.terms ? def.terms(in, n.attrs) : 1;
    const auto times = [&terms](std::int64_t n) {
      // On overflow, a number that the verifier refuses.
      if (terms > 0 && __builtin_mul_overflow(terms, n, &terms)) terms = std::numeric_limits<std::int64_t>::max() / 4;
    };
    times(plan_.programs[n.program].spec.microbatches);
    const Mesh& on = mesh(grad.mesh);
    for (std::size_t a = 0; a < on.axes.size(); ++a)
      if (static_cast<int>(a) != dp_axis(on) && grad.sbp[a].is_partial()) times(on.axes[a].size);
    auto& all = plan_.params[index].terms;
    if (counted_.insert(index).second) all = terms;
    else if (terms < 1 || all < 1) all = std::min(terms, all);  // the verifier refuses it
    else if (__builtin_add_overflow(all, terms, &all)) all = std::numeric_limits<std::int64_t>::max();
    return index;
  }

  Status port_sbp(const Node& n, const std::optional<NdSbp>& hint, const std::string& port, NdSbp& sbp) const {
    const std::int32_t on = home_mesh(n);
    sbp.assign(mesh(on).axes.size(), Sbp::B());
    if (hint) {
      if (hint->size() != sbp.size())
        return invalid(
            fmt::format("actor '{}', port '{}': its stage's mesh {} needs {} SBPs, one per axis, and the port has ({})",
                        n.name, port, to_string(mesh(on)), sbp.size(), to_string(*hint)));
      sbp = *hint;
    }
    sbp = full(on, sbp);
    return {};
  }

  /// An actor that waits would hold up the end of a run that others end.
  Status check_waiting(const Node& n) const {
    if (n.attrs.integer("waits") == 0 || n.attrs.integer("finishes") != 0) return {};
    for (const Node& other : g_.nodes())
      if (other.kind == Node::Kind::actor && other.attrs.integer("finishes") != 0)
        return invalid("actor '" + n.name + "' waits for the outside, and the run, which '" + other.name +
                       "' ends, would not end before it does: let it finish too (the attribute \"finishes\")");
    return {};
  }

  Status lower_actor(const Node& n) {
    TROUPE_TRY(check_waiting(n));
    if (n.attrs.integer("finishes") != 0 && !plan_.is_step_program(n.program))
      return invalid("actor '" + n.name + "' has the attribute \"finishes\", and its program '" +
                     g_.programs()[n.program] + "' is none of those whose steps a run consists of: let an actor of '" +
                     g_.programs()[plan_.step_program()] + "' end the run");
    LoweredNode node = node_of(n, LoweredNode::Kind::actor);
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      NdSbp sbp;
      TROUPE_TRY(port_sbp(n, n.in_sbp[i], fmt::format("input {}", i), sbp));
      TROUPE_ASSIGN(const std::int32_t t, want(n.in[i], node.mesh, sbp, n));
      node.in.push_back(t);
    }
    const auto id = static_cast<std::int32_t>(low_.nodes.size());
    for (Value v : n.out) {
      const Tensor& graph_tensor = g_.tensors()[v];
      NdSbp sbp;
      TROUPE_TRY(port_sbp(n, graph_tensor.hint, graph_tensor.name, sbp));
      PlanTensor t{graph_tensor.name, graph_tensor.type.dtype, graph_tensor.type.shape, node.mesh, sbp,
                   Rate::microbatch};
      if (Status st = Layout(t.shape, t.dtype, mesh(node.mesh), t.sbp).validate(); !st.ok())
        return st.in("actor '" + n.name + "'");
      node.out.push_back(layouts_.home[v] = add_tensor(std::move(t), id));
    }
    low_.nodes.push_back(std::move(node));
    return {};
  }

  Status lower_feed(const Node& n) {
    if (g_.is_shared(n.unit))
      return invalid("feed '" + n.op + "' is in the shared unit '" + g_.units()[n.unit] +
                     "': name it in the unit before, on whose stage it arrives");
    const std::string& after = n.attrs.text("after");
    const auto reports = [&](const Node& other) {
      return other.program == n.program &&
             (other.kind == Node::Kind::report ? other.op == after
                                               : other.kind == Node::Kind::actor && lists_report(other.attrs, after));
    };
    const auto makers = std::count_if(g_.nodes().begin(), g_.nodes().end(), reports);
    if (const std::string waits = "feed '" + n.op + "' of program '" + g_.programs()[n.program] +
                                  "' waits for report '" + after + "', which ";
        !after.empty() && makers == 0)
      return invalid(waits +
                     "this program does not make: name a report of it, or say in the attribute \"reports\" of "
                     "the actor whose body reports it");
    else if (!after.empty() && makers > 1)
      return invalid(
          fmt::format("{}{} actors or ops of this program make: name a report that one makes", waits, makers));
    for (const Node& other : g_.nodes())
      if (other.kind == Node::Kind::feed && other.op == n.op && other.program < n.program &&
          plan_.is_step_program(other.program) && plan_.is_step_program(n.program))
        return invalid("feed '" + n.op + "' is of program '" + g_.programs()[other.program] + "' and of '" +
                       g_.programs()[n.program] + "', which train together: give each a name of its own");
    LoweredNode node = node_of(n, LoweredNode::Kind::feed);
    const auto& type = g_.tensors()[n.out[0]].type;
    PlanTensor t{n.op,
                 type.dtype,
                 type.shape,
                 node.mesh,
                 full(node.mesh, NdSbp(mesh(node.mesh).axes.size(), Sbp::B())),
                 Rate::microbatch};
    node.out = {layouts_.home[n.out[0]] = add_tensor(std::move(t), static_cast<std::int32_t>(low_.nodes.size()))};
    low_.nodes.push_back(std::move(node));
    return {};
  }

  Status check_delays() const {
    const auto is_made = [&](Value param) {
      return std::any_of(g_.next_versions().begin(), g_.next_versions().end(),
                         [&](const NextVersion& next) { return next.param == param; });
    };
    for (const Node& n : g_.nodes())
      if (n.kind == Node::Kind::delay &&
          (n.over_steps() ? !is_made(n.in[0]) : low_.nodes[low_.producer[layouts_.home[n.out[0]]]].delayed < 0))
        return invalid("delay '" + n.op + "' of program '" + g_.programs()[n.program] +
                       "' has no value to give: say feed_back(...)");
    return {};
  }

  /// An op that reads a tensor late, and (lower_feed_back) one that leaves it: data of the delay is whole on the stage
  /// of its unit, and both ends are ops of segments, wherever the value is made and read. Over steps the tensor is a
  /// parameter.
  Status lower_delay(const Node& n) {
    if (g_.is_shared(n.unit))
      return invalid("delay '" + n.op + "' is in the shared unit '" + g_.units()[n.unit] +
                     "': name it in the unit before, on whose stage it lies");
    LoweredNode node = node_of(n, LoweredNode::Kind::op);
    node.op = n.over_steps() ? "kept_microbatch" : "delay";
    node.end = LoweredNode::End::of_delay;
    node.attrs = {};
    if (!n.over_steps()) node.lag = n.attrs.integer("lag");
    for (const Value kept : n.in) {
      node.in.push_back(layouts_.home[kept]);
      layouts_.fixed.insert(kept);  // whole on the model axes, as lower_params leaves it
    }
    node.out = {add_end(n, n.name, g_.tensors()[n.out[0]].type)};
    layouts_.home[n.out[0]] = node.out[0];
    low_.nodes.push_back(std::move(node));
    return {};
  }

  Status lower_feed_back(const Node& n) {
    const auto delay = static_cast<Value>(n.attrs.integer("delay"));
    LoweredNode node = node_of(n, LoweredNode::Kind::op);
    node.op = n.over_steps() ? "keep_microbatch" : "delay";
    node.end = n.over_steps() ? LoweredNode::End::keeps : LoweredNode::End::of_delay;
    node.attrs = {};
    TROUPE_ASSIGN(const std::int32_t t,
                  want(n.in[0], node.mesh, full(node.mesh, NdSbp(mesh(node.mesh).axes.size(), Sbp::B())), n));
    node.in = {t};
    if (n.over_steps()) {
      const TensorType& all = g_.tensors()[n.out[0]].type;
      node.attrs.set("microbatches", all.shape[0]);
      node.out = {layouts_.home[n.out[0]] = add_end(n, n.name, all, Rate::step)};
      low_.nodes.push_back(std::move(node));
      return {};
    }
    node.out = {add_end(n, n.name, g_.tensors()[delay].type)};
    low_.nodes[low_.producer[layouts_.home[delay]]].delayed = node.out[0];
    low_.nodes.push_back(std::move(node));
    return {};
  }

  /// The tensor that an end of a delay makes: the next node's. Along dp it is S(0): a whole microbatch, or (of rate
  /// step) those that a coordinate runs.
  std::int32_t add_end(const Node& n, const std::string& name, const TensorType& type, Rate rate = Rate::microbatch) {
    const std::int32_t on = home_mesh(n);
    return add_tensor({name, type.dtype, type.shape, on, full(on, NdSbp(mesh(on).axes.size(), Sbp::B())), rate},
                      static_cast<std::int32_t>(low_.nodes.size()));
  }

  Status lower_report(const Node& n) {
    // one stage reports
    const std::int32_t s = plan_.stages_on(plan_.tensors[layouts_.home[n.in[0]]].mesh).back();
    NdSbp sbp = full(s, NdSbp(mesh(s).axes.size(), Sbp::B()));
    TROUPE_ASSIGN(const std::int32_t t, want(n.in[0], s, sbp, n));
    LoweredNode node = node_of(n, LoweredNode::Kind::report);
    node.name = std::exchange(node.op, {});  // the session knows a report by this name
    node.in = {t};
    node.mesh = s;
    low_.nodes.push_back(std::move(node));
    return {};
  }

  const Graph& g_;
  const Staged& staged_;
  Plan& plan_;  // staged_'s
  Deduction deduced_;
  Lowered low_;
  TensorLayouts layouts_;
  BackwardRows backward_rows_{g_, staged_, deduced_, layouts_};
  std::set<std::int32_t> counted_;  // parameters whose terms are counted
};

}  // namespace

Expected<Lowered> lower(const Graph& graph, Staged& staged) {
  TROUPE_TRY(check_param_stages(graph, staged));  // first: no layout could be found for it
  TROUPE_ASSIGN(Deduction deduced, deduce(graph, staged));
  return Lowering(graph, staged, std::move(deduced)).run();
}

}  // namespace troupe::runtime
