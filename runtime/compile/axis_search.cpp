#include "runtime/compile/axis_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/compile/row_cost.h"
#include "runtime/plan/stage_meshes.h"

namespace troupe::runtime {

namespace {

constexpr std::size_t beam = 64;  // states kept after each op

double bytes_of(const TensorType& t) { return static_cast<double>(elements(t.shape) * size_of(t.dtype)); }

/// The largest part of a tensor at one of n places, as a fraction of the whole.
double share(const Sbp& sbp, const Shape& shape, std::int64_t n) {
  if (!sbp.is_split() || elements(shape) == 0) return 1;
  const auto whole = shape[static_cast<std::size_t>(sbp.dim)];
  return static_cast<double>(split_range({0, whole}, n, 0, sbp.unit).size()) / static_cast<double>(whole);
}

/// Whether the SBP splits a dim that has one unit at most, so that one place keeps all of it.
bool is_one_unit(const Sbp& sbp, const Shape& shape) {
  return sbp.is_split() && shape[static_cast<std::size_t>(sbp.dim)] <= sbp.unit;
}

void insert(std::vector<Sbp>& sorted, const Sbp& sbp) {
  auto less = [](const Sbp& a, const Sbp& b) {
    return std::tie(a.kind, a.dim, a.unit) < std::tie(b.kind, b.dim, b.unit);
  };
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), sbp, less), sbp);
}

void add_to(std::vector<std::int64_t>& key, const Sbp& sbp) {
  key.insert(key.end(), {static_cast<std::int64_t>(sbp.kind), sbp.dim, sbp.unit});
}

}  // namespace

AxisSearch::Key AxisSearch::params_of(const State& s) {
  Key key;
  for (const auto& [v, sbp] : s.params) {
    key.push_back(v);
    add_to(key, sbp);
  }
  return key;
}

AxisSearch::Key AxisSearch::key_of(const State& s) {
  Key key = params_of(s);
  for (const auto& [v, layout] : s.live) {
    key.insert(key.end(), {-1, v});
    add_to(key, layout.sbp);
    for (const auto* list : {&layout.copies, &layout.paid}) {
      key.push_back(static_cast<std::int64_t>(list->size()));
      for (const auto& p : *list) add_to(key, p);
    }
  }
  return key;
}

Expected<LayoutCost> AxisSearch::run(std::vector<std::vector<Signature>>& signatures) {
  earlier_ = &signatures;
  find_ops();
  // After the last block; after the block before it.
  std::vector<StatePtr> states = {std::make_shared<State>()}, before;
  for (std::size_t b = 0; b + 1 < blocks_.size(); ++b) {
    before = states;
    searched_ += static_cast<std::int64_t>(block_size(b));
    for (std::size_t op = blocks_[b]; op < blocks_[b + 1]; ++op)
      if (Status s = search(op, states); !s.ok()) return s;
    if (b == 0 || !alike(b)) continue;
    std::size_t more = 0;
    while (b + more + 2 < blocks_.size() && alike(b + more + 1)) ++more;
    if (more == 0 || !repeats(before, states, b)) continue;
    states = skip_repeated(before, states, b, more);
    b += more;
  }
  for (StatePtr s = states.front(); s->before;) {
    if (s->repeated) {
      s = choose_repeated(*s, signatures);
    } else {
      choose(s->op, s->signature, signatures);
      s = s->before;
    }
  }
  return LayoutCost{states.front()->cost.param_bytes / multiple(), states.front()->cost.seconds};
}

double AxisSearch::multiple() const {
  std::int64_t of_all = 1;
  for (const Mesh& mesh : plan_.meshes) of_all = std::lcm(of_all, mesh.axes[axis_].size);
  return static_cast<double>(of_all);
}

void AxisSearch::choose(std::size_t op, const Signature& sig, std::vector<std::vector<Signature>>& signatures) {
  const Node& n = node(op);
  if (n.kind != Node::Kind::op) return;
  signatures[ops_[op]][axis_] = sig;
  for (std::size_t k = 0; k < n.in.size(); ++k)
    if (g_.is_param(n.in[k])) params_[n.in[k]] = sig.in[k];
}

void AxisSearch::find_ops() {
  maker_.assign(g_.tensors().size(), -1);
  first_reader_ = last_reader_ = maker_;
  needs_grad_.assign(g_.tensors().size(), false);
  for (const ParamGrad& grad : g_.grads())
    if (grad.program == program_) needs_grad_[grad.param] = true;
  std::int32_t unit = -1;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(g_.nodes().size()); ++i) {
    const Node& n = g_.nodes()[i];
    if (n.program != program_ || n.backward || n.kind == Node::Kind::param) continue;
    const auto op = static_cast<std::int64_t>(ops_.size());
    if (n.unit != unit) blocks_.push_back(ops_.size());
    unit = n.unit;
    ops_.push_back(i);
    tables_.push_back(rows(n, i));
    bool any = false;
    for (Value v : n.in) {
      last_reader_[v] = op;
      if (first_reader_[v] < 0) first_reader_[v] = op;
      any |= n.kind == Node::Kind::op && needs_grad_[v];
    }
    // Nothing flows back through an op without a gradient.
    any &= n.kind == Node::Kind::op && g_.ops().find(n.op)->gradient != nullptr;
    for (Value v : n.out) {
      maker_[v] = op;
      needs_grad_[v] = any && plan_.is_step_program(program_);
    }
  }
  blocks_.push_back(ops_.size());
}

/// Whether a row leaves each output as Graph::require asks.
bool AxisSearch::as_required(const Node& n, const Signature& row) const {
  for (std::size_t o = 0; o < n.out.size(); ++o) {
    const Tensor& t = g_.tensors()[n.out[o]];
    if (t.required && axis_ < t.hint->size() && !same_parts((*t.hint)[axis_], row.out[o], t.type.shape, places(n)))
      return false;
  }
  return true;
}

/// What each row does of an op of which none is as required.
std::string AxisSearch::why_not_required(const Node& n) const {
  std::string text, wanted;
  for (std::size_t o = 0; o < n.out.size(); ++o)
    if (const Tensor& t = g_.tensors()[n.out[o]]; t.required && axis_ < t.hint->size())
      wanted += fmt::format("{}'{}' in {}", wanted.empty() ? "" : " and ", t.name, to_string((*t.hint)[axis_]));
  const auto taken = model_rows(g_, n);
  for (const Signature& row : op_rows(g_, n)) {
    const bool divides_samples = std::find(taken.begin(), taken.end(), row) == taken.end();
    text += fmt::format(
        "\n  ({}) -> ({}){}", to_string(row.in), to_string(row.out),
        divides_samples ? ": divides samples (dim 0 of what is made for each microbatch), as dp does" : "");
  }
  return fmt::format("op '{}' ({}): no row of its SBP table leaves {} on axis '{}', as is required (Graph::require):{}",
                     n.name, n.op, wanted, axis_name(n), text);
}

/// The rows of an op's table on this axis; of another node the one row that its ports ask for.
std::vector<AxisSearch::Signature> AxisSearch::rows(const Node& n, std::int32_t index) const {
  const Signature whole{std::vector<Sbp>(n.in.size(), Sbp::B()), std::vector<Sbp>(n.out.size(), Sbp::B())};
  if (n.kind != Node::Kind::op) {
    Signature ports = whole;
    for (std::size_t i = 0; i < n.in_sbp.size(); ++i)
      if (n.in_sbp[i] && axis_ < n.in_sbp[i]->size()) ports.in[i] = (*n.in_sbp[i])[axis_];
    for (std::size_t o = 0; o < n.out.size(); ++o)
      if (const auto& hint = g_.tensors()[n.out[o]].hint; n.kind == Node::Kind::actor && hint && axis_ < hint->size())
        ports.out[o] = (*hint)[axis_];
    return {ports};
  }
  if (places(n) == 1) return {whole};
  auto table = model_rows(g_, n);
  std::erase_if(table, [&](const Signature& row) { return !as_required(n, row); });
  if (allowed_) std::erase_if(table, [&](const Signature& row) { return !allowed_(index, axis_, row); });
  return table;
}

/// Extends every state by every row of one op; keeps the cheapest of those with equal keys.
Status AxisSearch::search(std::size_t op, std::vector<StatePtr>& states) const {
  std::map<Key, StatePtr> next;
  for (const auto& s : states)
    for (const auto& sig : tables_[op]) {
      auto made = step(s, op, sig);
      if (!made) continue;
      auto& best = next[key_of(*made)];
      if (!best || made->cost < best->cost) best = std::move(made);
    }
  const Node& n = node(op);
  if (tables_[op].empty() && !allowed_) return invalid(why_not_required(n));
  if (next.empty() && n.kind != Node::Kind::op)
    return invalid(
        fmt::format("'{}' does not read its parameters as other ops or hints have them on axis '{}': give "
                    "the layouts of its inputs (in_sbp)",
                    n.name, axis_name(n)));
  if (next.empty())
    return invalid("op '" + n.name + "' (" + n.op +
                   "): no row of its SBP table fits the parameters as other ops or hints have them on axis '" +
                   axis_name(n) + "'");
  states.clear();
  for (auto& [key, s] : next) states.push_back(std::move(s));
  std::stable_sort(states.begin(), states.end(),
                   [](const StatePtr& a, const StatePtr& b) { return a->cost < b->cost; });
  // Keeps `beam` states for each layout of the parameters that are read again: a later op may be unable to read the
  // parameters of the cheapest states.
  std::map<Key, std::size_t> kept;
  std::erase_if(states, [&](const StatePtr& s) { return ++kept[params_of(*s)] > beam; });
  return {};
}

/// Time of one place's part of an op. All states of a search ask for the same few.
double AxisSearch::work_s(std::size_t op, double split) const {
  const auto [known, fresh] = work_s_.try_emplace({op, split}, 0);
  if (!fresh) return known->second;
  const Node& n = node(op);
  std::vector<TensorType> in, out;
  for (Value v : n.in) in.push_back(g_.tensors()[v].type);
  for (Value v : n.out) out.push_back(g_.tensors()[v].type);
  const auto cost = op_cost(*g_.ops().find(n.op), in, out, n.attrs);
  return known->second = costs_.kernel_s(n.op, cost.flops * split, cost.bytes * split);
}

AxisSearch::StatePtr AxisSearch::step(const StatePtr& s, std::size_t op, const Signature& sig) const {
  const Node& n = node(op);
  const std::int32_t index = ops_[op];
  const std::int64_t k = places(n);
  const RowCost cost(costs_, k);
  auto out = std::make_shared<State>();
  out->live = s->live;
  out->params = s->params;
  out->cost = s->cost;
  out->before = s;
  out->op = op;
  out->signature = sig;
  double split = 1;
  for (std::size_t i = 0; i < n.in.size(); ++i) {
    const Value v = n.in[i];
    const TensorType type = part(n, v, index, [i](const Signature& s) { return s.in[i]; });
    split = std::min(split, share(sig.in[i], type.shape, k));
    if (g_.is_param(v)) {
      if (!read_param(*out, n, type, sig, i, k)) return nullptr;
      continue;
    }
    if (maker_[v] < 0) continue;  // the backward pass makes it, which has no layout yet: lowering says who may read it
    auto& layout = out->live.at(v);
    if (!may_box(v, layout.sbp, n, index, i, sig.in[i])) return nullptr;
    double nearest = cost.boxing_s(layout.sbp, sig.in[i], type);
    for (const auto& copy : layout.copies) nearest = std::min(nearest, cost.boxing_s(copy, sig.in[i], type));
    out->cost.seconds += nearest;
    if (nearest > 0) insert(layout.copies, sig.in[i]);
    if (n.kind != Node::Kind::op || !needs_grad_[v]) continue;
    const Sbp grad = gradient_sbp(sig, i);
    if (std::find(layout.paid.begin(), layout.paid.end(), grad) != layout.paid.end()) continue;
    out->cost.seconds += cost.boxing_s(grad, dual(layout.sbp), type);
    insert(layout.paid, grad);
  }
  bool trains = false;
  for (std::size_t o = 0; o < n.out.size(); ++o) {
    const Tensor& t = g_.tensors()[n.out[o]];
    const TensorType type = part(n, n.out[o], index, [o](const Signature& s) { return s.out[o]; });
    split = std::min(split, share(sig.out[o], type.shape, k));
    trains |= needs_grad_[n.out[o]];
    if (n.kind == Node::Kind::op && t.hint && axis_ < t.hint->size())
      out->cost.seconds += cost.boxing_s(sig.out[o], (*t.hint)[axis_], type);
    if (last_reader_[n.out[o]] > static_cast<std::int64_t>(op)) out->live[n.out[o]] = {sig.out[o], {}, {}};
  }
  if (n.kind == Node::Kind::op) out->cost.seconds += (trains ? 3 : 1) * work_s(op, split);
  for (Value v : n.in)
    if (last_reader_[v] == static_cast<std::int64_t>(op)) out->live.erase(v), out->params.erase(v);
  return out;
}

/// The largest part of a value that the axes before this one leave at an op.
template <class SbpOf>
TensorType AxisSearch::part(const Node& n, Value v, std::int32_t index, SbpOf sbp_of) const {
  TensorType type = g_.tensors()[v].type;
  if (n.kind != Node::Kind::op) return type;
  NdSbp sbp;
  for (std::size_t a = 0; a < axis_; ++a) sbp.push_back(sbp_of((*earlier_)[index][a]));
  type.shape = part_of(std::move(type.shape), sbp, axis_, plan_.meshes[units_[n.unit].mesh]);
  return type;
}

/// Whether a boxing exists to an op's input that changes the layout on this axis and on those before it at once.
bool AxisSearch::may_box(Value v, const Sbp& have, const Node& n, std::int32_t index, std::size_t input,
                         const Sbp& wanted) const {
  const std::int32_t maker = g_.tensors()[v].node;
  const Node& m = g_.nodes()[maker];
  if (axis_ == 0 || n.kind != Node::Kind::op || m.kind != Node::Kind::op) return true;
  const std::int32_t from_mesh = units_[m.unit].mesh, to_mesh = units_[n.unit].mesh;
  if (std::max(from_mesh, to_mesh) < plan_.stages && !same_model_axes(plan_.meshes[from_mesh], plan_.meshes[to_mesh]))
    return true;  // terms become one sum on their way, where need be
  const auto output = static_cast<std::size_t>(std::find(m.out.begin(), m.out.end(), v) - m.out.begin());
  NdSbp from, to;
  for (std::size_t a = 0; a < axis_; ++a) {
    from.push_back((*earlier_)[maker][a].out[output]);
    to.push_back((*earlier_)[index][a].in[input]);
  }
  from.push_back(have);
  to.push_back(wanted);
  return sums_together(from, to);
}

/// True where the axes before this one have left a single unit (a key-value head) of what the op's table would divide:
/// a whole parameter then counts as divided.
bool AxisSearch::is_one_unit_left(const Node& reader, const TensorType& type, std::size_t input) const {
  if (reader.kind != Node::Kind::op) return false;  // its ports ask for one layout
  const auto [known, unknown] = one_unit_left_.try_emplace({&reader, input}, false);
  if (!unknown) return known->second;
  const auto table = model_rows(g_, reader);
  std::map<std::int32_t, bool> one_unit;  // by dim: no row divides it further
  for (const auto& row : table)
    if (row.in[input].is_split()) {
      const auto [it, fresh] = one_unit.try_emplace(row.in[input].dim, true);
      it->second &= is_one_unit(row.in[input], type.shape);
    }
  return known->second = std::any_of(one_unit.begin(), one_unit.end(), [](const auto& dim) { return dim.second; });
}

/// A parameter takes the layout of its first reader; later ones must agree. False: they do not.
bool AxisSearch::read_param(State& s, const Node& reader, const TensorType& type, const Signature& sig,
                            std::size_t input, std::int64_t n) const {
  const Value v = reader.in[input];
  const Tensor& t = g_.tensors()[v];
  const Sbp& wanted = sig.in[input];
  if (wanted.is_partial()) return false;
  if (t.hint && axis_ < t.hint->size() && !same_parts((*t.hint)[axis_], wanted, t.type.shape, n)) return false;
  auto agrees = [&](const std::map<Value, Sbp>& known) {
    const auto it = known.find(v);
    return it == known.end() || same_parts(it->second, wanted, t.type.shape, n);
  };
  if (!agrees(s.params) || !agrees(params_)) return false;
  const bool divided = wanted.is_split() || (wanted.is_broadcast() && is_one_unit_left(reader, type, input));
  if (plan_.is_step_program(program_) && !s.params.count(v) && !params_.count(v))
    s.cost.param_bytes += bytes_of(type) * (divided ? multiple() / static_cast<double>(n) : multiple());
  s.params[v] = wanted;
  // A gradient that is a sum over this axis is reduced once a step.
  if (needs_grad_[v] && plan_.is_step_program(program_) && gradient_sbp(sig, input).is_partial())
    s.cost.seconds += RowCost(costs_, n).boxing_s(Sbp::P(), wanted, type) /
                      static_cast<double>(plan_.spec(program_).microbatches);
  return true;
}

}  // namespace troupe::runtime
