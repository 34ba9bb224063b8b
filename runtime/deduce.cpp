#include "runtime/deduce.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "runtime/lowered.h"

namespace troupe::runtime {

namespace {

using kernels::Signature;

constexpr std::size_t beam = 64;       // states kept after each op

double bytes_of(const TensorType& t) { return static_cast<double>(elements(t.shape) * size_of(t.dtype)); }

/// The largest part of a tensor over n places, of 1.
double share(const Sbp& sbp, const Shape& shape, std::int64_t n) {
  if (!sbp.is_split() || elements(shape) == 0) return 1;
  const auto whole = shape[static_cast<std::size_t>(sbp.dim)];
  return static_cast<double>(split_range({0, whole}, n, 0, sbp.unit).size()) / static_cast<double>(whole);
}

/// The same value before and after the op whose gradient flows back: a sum's gradient is whole, a whole's stays whole.
Sbp dual(const Sbp& sbp) { return sbp.is_partial() ? Sbp::B() : sbp; }

/// How a value lies, and what is paid for already: copies of it with other layouts, and layouts of its gradient (parts
/// of one layout are added first).
struct Lie {
  Sbp sbp;
  std::vector<Sbp> copies, paid;
};

void insert(std::vector<Sbp>& sorted, const Sbp& sbp) {
  auto less = [](const Sbp& a, const Sbp& b) { return std::tie(a.kind, a.dim, a.unit) < std::tie(b.kind, b.dim, b.unit); };
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), sbp, less), sbp);
}

struct State {
  std::map<Value, Lie> live;
  std::map<Value, Sbp> params;         // those that are read again
  LayoutCost cost;
  std::shared_ptr<const State> before;
  std::int32_t node = -1;              // of this step
  Signature signature;
};
using StatePtr = std::shared_ptr<const State>;

std::string key_of(const State& s) {
  std::string key;
  auto add = [&](Value v, const Sbp& sbp) {
    key += std::to_string(v) + to_string(sbp) + ' ';
  };
  for (const auto& [v, lie] : s.live) {
    add(v, lie.sbp);
    for (const auto* list : {&lie.copies, &lie.paid}) {
      for (const auto& p : *list) key += to_string(p);
      key += '|';
    }
  }
  for (const auto& [v, sbp] : s.params) add(v, sbp);
  return key;
}

/// One model axis of one program.
class AxisSearch {
 public:
  AxisSearch(const Graph& g, const std::vector<std::int32_t>& stage_of_unit, const Plan& plan, std::size_t axis, std::int32_t program,
             std::map<Value, Sbp>& params)
      : g_(g), stage_of_unit_(stage_of_unit), plan_(plan), axis_(axis), program_(program), params_(params) {}

  /// Fills signatures_[node][axis]. Answers the cost.
  Expected<LayoutCost> run(std::vector<std::vector<Signature>>& signatures) {
    find_readers();
    std::vector<StatePtr> states = {std::make_shared<State>()};
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(g_.nodes().size()); ++i) {
      const Node& n = g_.nodes()[i];
      if (n.program != program_ || n.backward || n.kind == Node::Kind::param) continue;
      std::map<std::string, StatePtr> next;
      for (const auto& s : states)
        for (const auto& sig : rows(n)) {
          auto made = step(s, i, n, sig);
          if (!made) continue;
          auto& best = next[key_of(*made)];
          if (!best || made->cost < best->cost) best = std::move(made);
        }
      if (next.empty())
        return invalid("op '" + n.name + "' (" + n.op + "): no row of its SBP table fits the parameters as other ops or hints have them on axis '" +
                       axis_name(n) + "'");
      states.clear();
      for (auto& [key, s] : next) states.push_back(std::move(s));
      std::stable_sort(states.begin(), states.end(), [](const StatePtr& a, const StatePtr& b) { return a->cost < b->cost; });
      // For each layout of the parameters that are read again: a cheap one may be one that a later op cannot read.
      std::map<std::string, std::size_t> kept;
      std::erase_if(states, [&](const StatePtr& s) {
        std::string params;
        for (const auto& [v, sbp] : s->params) params += std::to_string(v) + to_string(sbp);
        return ++kept[params] > beam;
      });
    }
    for (StatePtr s = states.front(); s->node >= 0; s = s->before) {
      const Node& n = g_.nodes()[s->node];
      if (n.kind != Node::Kind::op) continue;
      signatures[s->node][axis_] = s->signature;
      for (std::size_t k = 0; k < n.in.size(); ++k)
        if (g_.is_param(n.in[k])) params_[n.in[k]] = s->signature.in[k];
    }
    return states.front()->cost;
  }

 private:
  std::int64_t places(const Node& n) const { return plan_.meshes[stage_of_unit_[n.unit]].axes[axis_].size; }
  std::string axis_name(const Node& n) const { return plan_.meshes[stage_of_unit_[n.unit]].axes[axis_].name; }

  void find_readers() {
    last_reader_.assign(g_.tensors().size(), -1);
    needs_grad_.assign(g_.tensors().size(), false);
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(g_.nodes().size()); ++i) {
      const Node& n = g_.nodes()[i];
      if (n.kind == Node::Kind::param) needs_grad_[n.out[0]] = g_.trains();
      if (n.program != program_ || n.backward || n.kind == Node::Kind::param) continue;
      bool any = false;
      for (Value v : n.in) {
        last_reader_[v] = i;
        any |= n.kind == Node::Kind::op && needs_grad_[v];
      }
      // Nothing flows back through an op without a gradient.
      any &= n.kind == Node::Kind::op && g_.ops().find(n.op)->gradient != nullptr;
      for (Value v : n.out) needs_grad_[v] = any && program_ == 0;
    }
  }

  /// The rows of an op's table on this axis; of anything else the one that its ports ask for.
  std::vector<Signature> rows(const Node& n) const {
    const Signature whole{std::vector<Sbp>(n.in.size(), Sbp::B()), std::vector<Sbp>(n.out.size(), Sbp::B())};
    if (n.kind != Node::Kind::op) {
      Signature ports = whole;
      for (std::size_t i = 0; i < n.in_sbp.size(); ++i)
        if (n.in_sbp[i] && axis_ < n.in_sbp[i]->size()) ports.in[i] = (*n.in_sbp[i])[axis_];
      for (std::size_t o = 0; o < n.out.size(); ++o)
        if (const auto& hint = g_.tensors()[n.out[o]].hint; n.kind == Node::Kind::actor && hint && axis_ < hint->size()) ports.out[o] = (*hint)[axis_];
      return {ports};
    }
    if (places(n) == 1) return {whole};
    return model_rows(g_, n);
  }

  double boxing_s(const Sbp& from, const Sbp& to, const TensorType& type, std::int64_t n) const {
    if (same_parts(from, to, type.shape, n)) return 0;
    return axis_boxing_seconds(from, to, bytes_of(type), n, plan_.costs.intra_node);
  }

  StatePtr step(const StatePtr& s, std::int32_t index, const Node& n, const Signature& sig) const {
    const std::int64_t k = places(n);
    auto out = std::make_shared<State>();
    out->live = s->live;
    out->params = s->params;
    out->cost = s->cost;
    out->before = s;
    out->node = index;
    out->signature = sig;
    double split = 1;
    std::vector<TensorType> in, made;
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      const Value v = n.in[i];
      const TensorType& type = g_.tensors()[v].type;
      in.push_back(type);
      split = std::min(split, share(sig.in[i], type.shape, k));
      if (g_.is_param(v)) {
        if (!read_param(*out, v, sig, i, k)) return nullptr;
        continue;
      }
      auto& lie = out->live.at(v);
      double nearest = boxing_s(lie.sbp, sig.in[i], type, k);
      for (const auto& copy : lie.copies) nearest = std::min(nearest, boxing_s(copy, sig.in[i], type, k));
      out->cost.seconds += nearest;
      if (nearest > 0) insert(lie.copies, sig.in[i]);
      if (n.kind != Node::Kind::op || !needs_grad_[v]) continue;
      const Sbp grad = gradient_lies(sig, i);
      if (std::find(lie.paid.begin(), lie.paid.end(), grad) != lie.paid.end()) continue;
      out->cost.seconds += boxing_s(grad, dual(lie.sbp), type, k);
      insert(lie.paid, grad);
    }
    bool trains = false;
    for (std::size_t o = 0; o < n.out.size(); ++o) {
      const Tensor& t = g_.tensors()[n.out[o]];
      made.push_back(t.type);
      split = std::min(split, share(sig.out[o], t.type.shape, k));
      trains |= needs_grad_[n.out[o]];
      if (n.kind == Node::Kind::op && t.hint && axis_ < t.hint->size())
        out->cost.seconds += boxing_s(sig.out[o], (*t.hint)[axis_], t.type, k);
      if (last_reader_[n.out[o]] > index) out->live[n.out[o]] = {sig.out[o], {}, {}};
    }
    if (n.kind == Node::Kind::op) {
      const auto cost = op_cost(*g_.ops().find(n.op), in, made, n.attrs);
      out->cost.seconds += (trains ? 3 : 1) * plan_.costs.kernel_s(n.op, cost.flops * split, cost.bytes * split);
    }
    for (Value v : n.in)
      if (last_reader_[v] == index) out->live.erase(v), out->params.erase(v);
    return out;
  }

  /// A parameter takes the layout of its first reader; later ones must agree. False: they do not.
  bool read_param(State& s, Value v, const Signature& sig, std::size_t input, std::int64_t n) const {
    const Tensor& t = g_.tensors()[v];
    const Sbp& wanted = sig.in[input];
    if (wanted.is_partial()) return false;
    if (t.hint && axis_ < t.hint->size() && !same_parts((*t.hint)[axis_], wanted, t.type.shape, n)) return false;
    auto agrees = [&](const std::map<Value, Sbp>& known) {
      const auto it = known.find(v);
      return it == known.end() || same_parts(it->second, wanted, t.type.shape, n);
    };
    if (!agrees(s.params) || !agrees(params_)) return false;
    if (program_ == 0 && !s.params.count(v)) s.cost.param_bytes += bytes_of(t.type) / (wanted.is_split() ? static_cast<double>(n) : 1);
    s.params[v] = wanted;
    // A gradient that is a sum over this axis is reduced once a step.
    if (needs_grad_[v] && program_ == 0 && gradient_lies(sig, input).is_partial())
      s.cost.seconds += boxing_s(Sbp::P(), wanted, t.type, n) / static_cast<double>(plan_.program_specs[0].microbatches);
    return true;
  }

  const Graph& g_;
  const std::vector<std::int32_t>& stage_of_unit_;
  const Plan& plan_;
  std::size_t axis_;
  std::int32_t program_;
  std::map<Value, Sbp>& params_;       // decided by earlier programs
  std::vector<std::int32_t> last_reader_;
  std::vector<bool> needs_grad_;
};

}  // namespace

bool same_parts(const Sbp& a, const Sbp& b, const Shape& shape, std::int64_t n) {
  if (a == b) return true;
  if (!a.is_split() || !b.is_split() || a.dim != b.dim) return false;
  const auto whole = shape[static_cast<std::size_t>(a.dim)];
  for (std::int64_t i = 0; i < n; ++i)
    if (!(split_range({0, whole}, n, i, a.unit) == split_range({0, whole}, n, i, b.unit))) return false;
  return true;
}

std::vector<Signature> op_rows(const Graph& graph, const Node& node) {
  const auto* def = graph.ops().find(node.op);
  std::vector<TensorType> types;
  for (Value v : node.in) types.push_back(graph.tensors()[v].type);
  auto table = def->signatures ? def->signatures(types, node.attrs) : std::vector<Signature>{};
  table.push_back({std::vector<Sbp>(node.in.size(), Sbp::B()), std::vector<Sbp>(node.out.size(), Sbp::B())});
  return table;
}

std::vector<Signature> model_rows(const Graph& graph, const Node& node) {
  auto table = op_rows(graph, node);
  std::erase_if(table, [&](const Signature& sig) {
    for (std::size_t i = 0; i < node.in.size(); ++i)
      if (graph.tensors()[node.in[i]].rate == Rate::microbatch && sig.in[i].is_split() && sig.in[i].dim == 0) return true;
    return false;
  });
  return table;
}

Sbp gradient_lies(const Signature& signature, std::size_t input) {
  const Sbp& own = signature.in[input];
  if (own.is_split()) return own;
  if (own.is_partial()) return Sbp::B();
  // A whole input of an op that divides its work: every place knows its part of the sum.
  auto whole = [](const Sbp& s) { return s.is_broadcast(); };
  const bool divided = !std::all_of(signature.in.begin(), signature.in.end(), whole) ||
                       !std::all_of(signature.out.begin(), signature.out.end(), whole);
  return divided ? Sbp::P() : Sbp::B();
}

Expected<Deduction> deduce(const Graph& graph, const std::vector<std::int32_t>& stage_of_unit, const Plan& plan) {
  Deduction out;
  out.signatures.resize(graph.nodes().size());
  std::size_t axes = 0;
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    const auto own = plan.meshes[stage_of_unit[n.unit]].axes.size();
    axes = std::max(axes, own);
    if (n.kind == Node::Kind::op && !n.backward)
      out.signatures[i].assign(own, {std::vector<Sbp>(n.in.size(), Sbp::B()), std::vector<Sbp>(n.out.size(), Sbp::B())});
  }
  for (std::size_t a = 0; a < axes; ++a) {
    bool model = true, wide = false;
    for (std::int32_t s = 0; s < plan.stages; ++s) {
      model &= a < plan.meshes[s].axes.size() && dp_axis(plan.meshes[s]) != static_cast<int>(a);
      wide |= model && plan.meshes[s].axes[a].size > 1;
    }
    if (!model || !wide) continue;
    std::map<Value, Sbp> params;
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(graph.programs().size()); ++p) {
      TROUPE_ASSIGN(const LayoutCost cost, AxisSearch(graph, stage_of_unit, plan, a, p, params).run(out.signatures));
      if (p == 0) out.cost.param_bytes += cost.param_bytes, out.cost.seconds += cost.seconds;
    }
  }
  return out;
}

}  // namespace troupe::runtime
