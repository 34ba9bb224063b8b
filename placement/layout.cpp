#include "placement/layout.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe {

std::string to_string(const Holding& h) {
  return "{rank " + std::to_string(h.holder) + ", " + to_string(h.extent) + ", term " +
         std::to_string(h.term.lo) + ":" + std::to_string(h.term.hi) + "}";
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

std::int64_t Layout::bytes_at(std::int64_t position) const {
  return extent_at(position).elements() * size_of(dtype);
}

std::vector<Holding> Layout::holdings_intersecting(const Extent& extent) const {
  // Axis by axis: along a split axis only the parts that touch the extent; along B and P all of them.
  std::vector<Holding> out;
  std::vector<std::int64_t> coord(mesh.axes.size(), 0);
  std::function<void(std::size_t, const Extent&)> walk = [&](std::size_t axis, const Extent& sofar) {
    if (axis == mesh.axes.size()) {
      out.push_back(holding_at(mesh.position(coord)));
      return;
    }
    for (std::int64_t i = 0; i < mesh.axes[axis].size; ++i) {
      coord[axis] = i;
      if (!sbp[axis].is_split()) {
        walk(axis + 1, sofar);
        continue;
      }
      Extent part = sofar;
      Range& r = part.dims[sbp[axis].dim];
      r = split_range(r, mesh.axes[axis].size, i, sbp[axis].unit);
      if (intersect(r, extent.dims[sbp[axis].dim]).size() > 0) walk(axis + 1, part);
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

}  // namespace troupe
