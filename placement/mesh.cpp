#include "placement/mesh.h"

#include <algorithm>
#include <limits>

#include "devices/base/check.h"

namespace troupe {

const std::vector<Rank>& Ranks::table() const {
  static const std::vector<Rank> none;
  return table_ ? *table_ : none;
}

std::vector<Rank>& Ranks::edit() {
  if (!table_ || table_.use_count() > 1) table_ = std::make_shared<std::vector<Rank>>(table());
  return *table_;
}

Mesh Mesh::dense(std::vector<Axis> axes, Rank first) {
  Mesh m;
  std::int64_t n = 1;
  for (auto& a : axes) {
    REQUIRE(a.size >= 1, a.name, a.size);
    n *= a.size;
  }
  m.axes = std::move(axes);
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) ranks.push_back(first + static_cast<Rank>(i));
  m.ranks = std::move(ranks);
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

std::int64_t Mesh::guess(Rank rank) const {
  if (ranks.empty() || rank < ranks[0] || rank > ranks[size() - 1]) return -1;
  std::int64_t left = std::int64_t{rank} - ranks[0], position = 0;
  if (left < size() && ranks[left] == rank) return left;  // most meshes: ranks one after the other

  // The longest strides first.
  std::int64_t passed = std::numeric_limits<std::int64_t>::max();  // the stride that the previous iteration took
  for (std::size_t done = 0; done < axes.size(); ++done) {
    std::int64_t stride = 0, step = 1, step_of = 1, size_of = 1;
    for (std::size_t a = axes.size(); a-- > 0; step *= axes[a].size) {
      if (axes[a].size == 1) continue;
      if (step >= size()) return -1;  // the axes' sizes multiply to more than size()
      const std::int64_t here = std::int64_t{ranks[step]} - ranks[0];
      if (here > stride && here < passed) stride = here, step_of = step, size_of = axes[a].size;
    }
    if (stride == 0) break;
    const std::int64_t index = std::clamp<std::int64_t>(left / stride, 0, size_of - 1);
    left -= index * stride;
    position += index * step_of;
    passed = stride;
  }
  return left == 0 && position < size() && ranks[position] == rank ? position : -1;
}

std::int64_t Mesh::find(Rank rank) const {
  if (const std::int64_t p = guess(rank); p >= 0) return p;
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  return it == ranks.end() ? -1 : it - ranks.begin();
}

std::vector<std::int64_t> Mesh::group(std::int64_t position, const std::vector<bool>& free) const {
  std::vector<std::int64_t> out = {position};
  std::int64_t step = 1;
  std::vector<std::int64_t> steps(axes.size());
  for (std::size_t a = axes.size(); a-- > 0; step *= axes[a].size) {
    steps[a] = step;
    if (free[a]) out[0] -= position / step % axes[a].size * step;
  }
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (!free[a]) continue;
    std::vector<std::int64_t> more;
    more.reserve(out.size() * static_cast<std::size_t>(axes[a].size));
    for (const auto p : out)
      for (std::int64_t i = 0; i < axes[a].size; ++i) more.push_back(p + i * steps[a]);
    out = std::move(more);
  }
  return out;
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
  std::int64_t inner = 1;
  for (std::size_t i = static_cast<std::size_t>(axis) + 1; i < axes.size(); ++i) inner *= axes[i].size;
  std::vector<Rank> fixed;
  for (std::int64_t p = index * inner; p < size(); p += axes[axis].size * inner)
    fixed.insert(fixed.end(), ranks.begin() + p, ranks.begin() + p + inner);
  m.ranks = std::move(fixed);
  return m;
}

std::string to_string(const Mesh& mesh) {
  std::string out = "{";
  for (std::size_t i = 0; i < mesh.axes.size(); ++i)
    out += (i ? ", " : "") + mesh.axes[i].name + ": " + std::to_string(mesh.axes[i].size);
  return out + "}";
}

}  // namespace troupe
