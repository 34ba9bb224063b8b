#include "placement/mesh.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe {

Mesh Mesh::dense(std::vector<Axis> axes, Rank first) {
  Mesh m;
  std::int64_t n = 1;
  for (auto& a : axes) {
    REQUIRE(a.size >= 1, a.name, a.size);
    n *= a.size;
  }
  m.axes = std::move(axes);
  for (std::int64_t i = 0; i < n; ++i) m.ranks.push_back(first + static_cast<Rank>(i));
  return m;
}

std::vector<std::int64_t> Mesh::coord(std::int64_t position) const {
  std::vector<std::int64_t> c(axes.size());
  for (int i = static_cast<int>(axes.size()) - 1; i >= 0; --i) {
    c[i] = position % axes[i].size;
    position /= axes[i].size;
  }
  return c;
}

std::int64_t Mesh::position(const std::vector<std::int64_t>& coord) const {
  ASSERT(coord.size() == axes.size(), coord.size(), axes.size());
  std::int64_t p = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) p = p * axes[i].size + coord[i];
  return p;
}

std::int64_t Mesh::find(Rank rank) const {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  return it == ranks.end() ? -1 : it - ranks.begin();
}

int Mesh::axis(const std::string& name) const {
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == name) return static_cast<int>(i);
  return -1;
}

std::int64_t Mesh::axis_size(const std::string& name) const {
  const int a = axis(name);
  return a < 0 ? 1 : axes[a].size;
}

Mesh Mesh::slice(int axis, std::int64_t index) const {
  ASSERT(axis >= 0 && axis < static_cast<int>(axes.size()), axis);
  Mesh m;
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (static_cast<int>(i) != axis) m.axes.push_back(axes[i]);
  for (std::int64_t p = 0; p < size(); ++p)
    if (coord(p)[axis] == index) m.ranks.push_back(ranks[p]);
  return m;
}

std::string to_string(const Mesh& mesh) {
  std::string out = "{";
  for (std::size_t i = 0; i < mesh.axes.size(); ++i)
    out += (i ? ", " : "") + mesh.axes[i].name + ": " + std::to_string(mesh.axes[i].size);
  return out + "}";
}

}  // namespace troupe
