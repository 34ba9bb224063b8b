#include "runtime/compile/backward_rows.h"

#include <algorithm>
#include <cmath>

#include "runtime/compile/row_cost.h"

namespace troupe::runtime {

BackwardRows::BackwardRows(const Graph& g, const Staged& staged, const Deduction& deduced, const TensorLayouts& layouts)
    : g_(g), units_(staged.units), plan_(staged.plan), costs_(staged.layout_costs), deduced_(deduced),
      layouts_(layouts), readers_(g.tensors().size()) {
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(g.nodes().size()); ++i)
    if (const Node& n = g.nodes()[i]; n.kind == Node::Kind::op && !n.backward && plan_.is_step_program(n.program))
      for (std::size_t k = 0; k < n.in.size(); ++k) readers_[n.in[k]].push_back({i, k});
}

Expected<std::vector<const kernels::Signature*>> BackwardRows::choose(
    const Node& n, const std::vector<kernels::Signature>& table) const {
  const auto& axes = mesh(home_mesh(n)).axes;
  std::vector<std::vector<Candidate>> by_axis(axes.size());
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (static_cast<int>(a) == dp_axis(mesh(home_mesh(n))) || axes[a].size == 1) continue;
    by_axis[a] = candidates(n, table, a);
    if (by_axis[a].empty())
      return invalid("op '" + n.name + "' (" + n.op +
                     "): no row of its SBP table gives a gradient that lies like its parameter on axis '" +
                     axes[a].name + "'");
  }
  std::vector<NdSbp> in(n.in.size(), NdSbp(axes.size(), Sbp::B()));
  Choice now{{}, 0, 0}, best;
  extend(n, by_axis, in, now, best);
  if (best.rows.empty())
    return invalid("op '" + n.name + "' (" + n.op + "): its rows on the axes of " + to_string(mesh(home_mesh(n))) +
                   " cannot be had together");
  return best.rows;
}

/// Whether two meshes are equally wide along a model axis, so that an SBP means the same on both.
bool BackwardRows::alike(std::int32_t mesh_a, std::int32_t mesh_b, std::size_t axis) const {
  const auto &a = mesh(mesh_a).axes, &b = mesh(mesh_b).axes;
  return a.size() == b.size() && a[axis] == b[axis];
}

/// The largest part of a tensor that the axes before one leave.
Shape BackwardRows::part_before(const PlanTensor& t, std::size_t axis) const {
  return part_of(t.shape, t.sbp, axis, plan_.meshes[t.mesh]);
}

/// Whether a copy of the value has this layout on mesh `on` already.
bool BackwardRows::there(Value v, std::int32_t on, std::size_t axis, const Sbp& wanted) const {
  for (const std::int32_t id : layouts_.variants(layouts_.home[v])) {
    const PlanTensor& t = plan_.tensors[id];
    if (alike(t.mesh, on, axis) && same_parts(t.sbp[axis], wanted, part_before(t, axis), mesh(on).axes[axis].size))
      return true;
  }
  return false;
}

/// Seconds that each place sends to have a value as `wanted` along a model axis of mesh `on`, from its nearest copy.
double BackwardRows::argument_s(Value v, std::int32_t on, std::size_t axis, const Sbp& wanted) const {
  const RowCost cost(costs_, mesh(on).axes[axis].size);
  double least = std::numeric_limits<double>::infinity();
  for (const std::int32_t id : layouts_.variants(layouts_.home[v])) {
    const PlanTensor& t = plan_.tensors[id];
    const Sbp have = alike(t.mesh, on, axis) ? t.sbp[axis] : Sbp::B();
    const TensorType part{t.dtype, part_before(t, axis)};
    if (g_.is_param(v) && layouts_.fixed.count(v) && !same_parts(have, wanted, part.shape, mesh(on).axes[axis].size))
      continue;
    least = std::min(least, cost.boxing_s(have, wanted, part));
  }
  return least;
}

/// Whether a reader of `v` other than the forward op of `n` makes its term of the gradient of `v` in this layout.
bool BackwardRows::has_term(Value v, const Node& n, std::size_t axis, const Sbp& made) const {
  for (const auto& [reader, input] : readers_[v])
    if (reader != n.of && alike(home_mesh(g_.nodes()[reader]), home_mesh(n), axis) &&
        gradient_sbp(deduced_.signatures[reader][axis], input) == made)
      return true;
  return false;
}

/// Seconds that each place sends to bring a gradient that op `n` makes to the layout in which the value's maker reads
/// it. 0 for a term that another one is like: they are added first, and the search has charged one way for all.
double BackwardRows::gradient_s(const Node& n, Value gradient, std::size_t axis, const Sbp& made) const {
  const Value v = g_.tensors()[gradient].gradient_of;
  if (v < 0) return 0;
  const PlanTensor& t = plan_.tensors[layouts_.home[v]];
  const bool term = n.of >= 0;  // else the sum of the terms
  if (!alike(t.mesh, home_mesh(n), axis) || (term && has_term(v, n, axis, made))) return 0;
  const TensorType part{t.dtype, part_before(t, axis)};
  return RowCost(costs_, mesh(home_mesh(n)).axes[axis].size).boxing_s(made, dual(t.sbp[axis]), part);
}

/// True where a row reads what the forward op has read and made as the forward op did.
bool BackwardRows::mirrors(const Node& n, const kernels::Signature& sig, std::size_t axis) const {
  if (n.of < 0) return true;
  const Node& f = g_.nodes()[n.of];
  const kernels::Signature& forward = deduced_.signatures[n.of][axis];
  auto agrees = [&](std::size_t i, const std::vector<Value>& values, const std::vector<Sbp>& sbps) {
    for (std::size_t j = 0; j < values.size(); ++j)
      if (values[j] == n.in[i] && !sbps[j].is_partial() &&
          !same_parts(sbps[j], sig.in[i], part_before(plan_.tensors[layouts_.home[n.in[i]]], axis),
                      mesh(home_mesh(n)).axes[axis].size))
        return false;
    return true;
  };
  for (std::size_t i = 0; i < n.in.size(); ++i)
    if (!agrees(i, f.in, forward.in) || !agrees(i, f.out, forward.out)) return false;
  return true;
}

/// The rows that mirror the forward op and that can be had along a model axis, with their cost there.
std::vector<BackwardRows::Candidate> BackwardRows::candidates(const Node& n,
                                                              const std::vector<kernels::Signature>& table,
                                                              std::size_t axis) const {
  const std::int32_t on = home_mesh(n);
  std::vector<Candidate> out;
  for (const auto& sig : table) {
    if (!mirrors(n, sig, axis)) continue;
    Candidate c{&sig, 0, 0};
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      c.seconds += argument_s(n.in[i], on, axis, sig.in[i]);
      c.boxings += !there(n.in[i], on, axis, sig.in[i]);
    }
    bool fits = true;
    for (std::size_t o = 0; o < n.out.size(); ++o) {
      c.seconds += gradient_s(n, n.out[o], axis, sig.out[o]);
      if (const auto it = layouts_.param_of_grad.find(n.out[o]); it != layouts_.param_of_grad.end()) {
        // A gradient lies like its parameter, or is a sum that is reduced to it once a step.
        const Sbp& param = plan_.tensors[layouts_.home[it->second]].sbp[axis];
        if (!sig.out[o].is_partial() || param.is_split())
          fits &= same_parts(sig.out[o], param, part_before(plan_.tensors[layouts_.home[it->second]], axis),
                             mesh(on).axes[axis].size);
      }
    }
    if (fits && std::isfinite(c.seconds)) out.push_back(c);
  }
  return out;
}

/// Whether the op's arguments can be boxed to `in` along the first `axes` axes, as far as `in` is known.
bool BackwardRows::may_box(const Node& n, const std::vector<NdSbp>& in, std::size_t axes) const {
  for (std::size_t i = 0; i < n.in.size(); ++i) {
    const PlanTensor& t = plan_.tensors[layouts_.home[n.in[i]]];
    if (g_.is_param(n.in[i]) || plan_.meshes[t.mesh].axes != mesh(home_mesh(n)).axes) continue;
    const auto end = static_cast<std::ptrdiff_t>(axes);
    if (!sums_together({t.sbp.begin(), t.sbp.begin() + end}, {in[i].begin(), in[i].begin() + end})) return false;
  }
  return true;
}

void BackwardRows::extend(const Node& n, const std::vector<std::vector<Candidate>>& by_axis, std::vector<NdSbp>& in,
                          Choice& now, Choice& best) const {
  const std::size_t axis = now.rows.size();
  // Time first; a slice takes none, but is a boxing that a later op undoes.
  if (std::pair(now.seconds, now.boxings) >= std::pair(best.seconds, best.boxings)) return;
  if (axis == by_axis.size()) {
    best = now;
    return;
  }
  const auto before = now;
  if (by_axis[axis].empty()) {
    now.rows.push_back(nullptr);
    extend(n, by_axis, in, now, best);
  }
  for (const Candidate& c : by_axis[axis]) {
    for (std::size_t i = 0; i < n.in.size(); ++i) in[i][axis] = c.row->in[i];
    if (!may_box(n, in, axis + 1)) continue;
    now = before;
    now.rows.push_back(c.row);
    now.seconds += c.seconds;
    now.boxings += c.boxings;
    extend(n, by_axis, in, now, best);
  }
  now = before;
  for (auto& sbp : in) sbp[axis] = Sbp::B();
}

}  // namespace troupe::runtime
