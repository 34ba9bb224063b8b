#include "placement/layout.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe {

std::string to_string(const Holding& h) {
  return "{rank " + std::to_string(h.holder) + ", " + to_string(h.extent) + ", term " + std::to_string(h.term.lo) +
         ":" + std::to_string(h.term.hi) + "}";
}

Layout::Layout(Shape s, DType d, Mesh m, NdSbp n)
    : shape(std::move(s)), dtype(d), mesh(std::move(m)), sbp(std::move(n)) {}

Status Layout::validate() const {
  if (sbp.size() != mesh.axes.size())
    return invalid("a layout on mesh " + to_string(mesh) + " needs " + std::to_string(mesh.axes.size()) +
                   " SBPs, one per axis, and has " + std::to_string(sbp.size()));
  for (std::size_t a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_split() && (sbp[a].dim < 0 || sbp[a].dim >= static_cast<int>(shape.size()) || sbp[a].unit < 1))
      return invalid(to_string(sbp[a]) + " on axis " + mesh.axes[a].name + " does not fit shape " + to_string(shape));
  return {};
}

Extent Layout::extent_at(std::int64_t position) const {
  Extent e = Extent::whole(shape);
  const auto c = mesh.coord(position);
  for (std::size_t a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_split()) {
      Range& r = e.dims[sbp[a].dim];
      r = split_range(r, mesh.axes[a].size, c[a], sbp[a].unit);
    }
  return e;
}

std::int32_t Layout::terms() const {
  std::int64_t n = 1;
  for (std::size_t a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) n *= mesh.axes[a].size;
  return static_cast<std::int32_t>(n);
}

Holding Layout::holding_at(std::int64_t position) const {
  const auto c = mesh.coord(position);
  std::int64_t term = 0;
  for (std::size_t a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) term = term * mesh.axes[a].size + c[a];
  const auto t = static_cast<std::int32_t>(term);
  return {mesh.ranks[position], extent_at(position), {t, t + 1}};
}

std::int64_t Layout::bytes_at(std::int64_t position) const { return extent_at(position).elements() * size_of(dtype); }

std::vector<Holding> Layout::holdings_intersecting(const Extent& extent) const {
  // Axis by axis: along a split axis only the parts that touch the extent; along B and P all of them.
  std::vector<Holding> out;
  std::vector<std::int64_t> coord(mesh.axes.size(), 0);
  std::function<void(std::size_t, const Extent&)> walk = [&](std::size_t axis, const Extent& sofar) {
    if (axis == mesh.axes.size()) {
      out.push_back(holding_at(mesh.position(coord)));
      return;
    }
    const std::int64_t places = mesh.axes[axis].size;
    const Sbp& s = sbp[axis];
    if (!s.is_split()) {
      for (coord[axis] = 0; coord[axis] < places; ++coord[axis]) walk(axis + 1, sofar);
      return;
    }
    const Range whole = sofar.dims[s.dim];
    const Range parts = parts_overlapping(whole, places, extent.dims[s.dim], s.unit);
    for (std::int64_t i = parts.lo; i < parts.hi; ++i) {
      coord[axis] = i;
      Extent part = sofar;
      part.dims[s.dim] = split_range(whole, places, i, s.unit);
      walk(axis + 1, part);
    }
  };
  if (!extent.empty()) walk(0, Extent::whole(shape));
  return out;
}

std::string to_string(const Layout& l) {
  return to_string(l.shape) + " " + to_string(l.dtype) + " " + to_string(l.mesh) + " (" + to_string(l.sbp) + ")";
}

std::vector<Holding> HoldingList::holdings_intersecting(const Extent& extent) const {
  std::vector<Holding> out;
  for (const auto& h : holdings_)
    if (!intersect(h.extent, extent).empty()) out.push_back(h);
  return out;
}

bool same_parts(const Sbp& a, const Sbp& b, const Shape& shape, std::int64_t n) {
  if (a == b || n == 1) return true;
  if (!a.is_split() || !b.is_split() || a.dim != b.dim) return false;
  const auto whole = shape[static_cast<std::size_t>(a.dim)];
  for (std::int64_t i = 0; i < n; ++i)
    if (!(split_range({0, whole}, n, i, a.unit) == split_range({0, whole}, n, i, b.unit))) return false;
  return true;
}

namespace {

/// True when the splits of `dim` by `a` (of in_a) and by `b` (of in_b), from `axis` on, give every place the same
/// range.
bool same_ranges(const NdSbp& a, const NdSbp& b, Range in_a, Range in_b, std::int32_t dim, std::size_t axis,
                 const Mesh& mesh) {
  if (axis == mesh.axes.size()) return in_a == in_b;
  const std::int64_t n = mesh.axes[axis].size;
  if (n == 1 || !a[axis].is_split() || a[axis].dim != dim) return same_ranges(a, b, in_a, in_b, dim, axis + 1, mesh);
  for (std::int64_t i = 0; i < n; ++i)
    if (!same_ranges(a, b, split_range(in_a, n, i, a[axis].unit), split_range(in_b, n, i, b[axis].unit), dim, axis + 1,
                     mesh))
      return false;
  return true;
}

}  // namespace

bool same_layout(const NdSbp& a, const NdSbp& b, const Shape& shape, const Mesh& mesh) {
  if (a == b) return true;
  for (std::size_t axis = 0; axis < b.size(); ++axis)
    if (mesh.axes[axis].size > 1 &&
        (a[axis].kind != b[axis].kind || (a[axis].is_split() && a[axis].dim != b[axis].dim)))
      return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (!same_ranges(a, b, {0, shape[dim]}, {0, shape[dim]}, static_cast<std::int32_t>(dim), 0, mesh)) return false;
  return true;
}

bool sums_together(const NdSbp& from, const NdSbp& to) {
  bool before = false, after = false, same = true;
  for (std::size_t a = 0; a < to.size(); ++a) {
    before |= from[a].is_partial();
    after |= to[a].is_partial();
    same &= from[a].is_partial() == to[a].is_partial();
  }
  return same || !before || !after;
}

Shape part_of(Shape shape, const NdSbp& sbp, std::size_t axes, const Mesh& mesh) {
  for (std::size_t a = 0; a < axes; ++a)
    if (sbp[a].is_split()) {
      auto& n = shape[static_cast<std::size_t>(sbp[a].dim)];
      n = split_range({0, n}, mesh.axes[a].size, 0, sbp[a].unit).size();
    }
  return shape;
}

}  // namespace troupe
