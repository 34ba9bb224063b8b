#include "runtime/compile/backward_rows.h"

#include <algorithm>
#include <cmath>

namespace troupe::runtime {

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

/// Whether the tensor's mesh and mesh `on` are equally wide along a model axis, so that an SBP means the same on both.
bool BackwardRows::alike(const PlanTensor& t, std::int32_t on, std::size_t axis) const {
  const auto &a = plan_.meshes[t.mesh].axes, &b = mesh(on).axes;
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
    if (alike(t, on, axis) && same_parts(t.sbp[axis], wanted, part_before(t, axis), mesh(on).axes[axis].size))
      return true;
  }
  return false;
}

/// Bytes that each place sends to have a value as `wanted` along a model axis of mesh `on`, from its nearest copy.
double BackwardRows::missing_bytes(Value v, std::int32_t on, std::size_t axis, const Sbp& wanted) const {
  const TensorType& type = g_.tensors()[v].type;
  const std::int64_t n = mesh(on).axes[axis].size;
  double least = std::numeric_limits<double>::infinity();
  for (const std::int32_t id : layouts_.variants(layouts_.home[v])) {
    const PlanTensor& t = plan_.tensors[id];
    const Sbp have = alike(t, on, axis) ? t.sbp[axis] : Sbp::B();
    const bool same = same_parts(have, wanted, part_before(t, axis), n);
    if (g_.is_param(v) && layouts_.fixed.count(v) && !same) continue;
    if (same) return 0;
    least = std::min(
        least, axis_boxing_bytes(have, wanted, static_cast<double>(elements(type.shape) * size_of(type.dtype)), n));
  }
  return least;
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
      c.bytes += missing_bytes(n.in[i], on, axis, sig.in[i]);
      c.boxings += !there(n.in[i], on, axis, sig.in[i]);
    }
    bool fits = true;
    for (std::size_t o = 0; o < n.out.size(); ++o)
      if (const auto it = layouts_.param_of_grad.find(n.out[o]); it != layouts_.param_of_grad.end()) {
        // A gradient lies like its parameter, or is a sum that is reduced to it once a step.
        const Sbp& param = plan_.tensors[layouts_.home[it->second]].sbp[axis];
        if (!sig.out[o].is_partial() || param.is_split())
          fits &= same_parts(sig.out[o], param, part_before(plan_.tensors[layouts_.home[it->second]], axis),
                             mesh(on).axes[axis].size);
      }
    if (fits && std::isfinite(c.bytes)) out.push_back(c);
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
  // Bytes first; a slice moves none, but is a boxing that a later op undoes.
  if (std::pair(now.bytes, now.boxings) >= std::pair(best.bytes, best.boxings)) return;
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
    now.bytes += c.bytes;
    now.boxings += c.boxings;
    extend(n, by_axis, in, now, best);
  }
  now = before;
  for (auto& sbp : in) sbp[axis] = Sbp::B();
}

}  // namespace troupe::runtime
