// Mesh: places arranged along named axes, such as {dp: 2, tp: 4}.
//
// "Axis" always means a mesh axis, "dim" a tensor dimension (TorchTitan's two words). Pipeline stages
// are not an axis: each stage has a mesh of its own.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// A worker's index within a generation.
using Rank = std::int32_t;

struct Axis {
  std::string name;
  std::int64_t size = 1;
  bool operator==(const Axis&) const = default;
};

/// The ranks of a mesh, by position. A value type whose copies share one table, so a mesh, and a layout on it, is
/// copied as fast with many places as with few.
class Ranks {
 public:
  Ranks() = default;
  Ranks(std::vector<Rank> table) : table_(std::make_shared<std::vector<Rank>>(std::move(table))) {}
  Ranks(std::initializer_list<Rank> table) : Ranks(std::vector<Rank>(table)) {}

  const std::vector<Rank>& table() const;
  operator const std::vector<Rank>&() const { return table(); }
  std::size_t size() const { return table_ ? table_->size() : 0; }
  bool empty() const { return size() == 0; }
  /// REQUIRES, here and below: not empty, a position below size().
  Rank operator[](std::int64_t position) const { return (*table_)[static_cast<std::size_t>(position)]; }
  Rank front() const { return table_->front(); }
  Rank back() const { return table_->back(); }
  std::vector<Rank>::const_iterator begin() const { return table().begin(); }
  std::vector<Rank>::const_iterator end() const { return table().end(); }
  /// This object's own table, for changes: no other copy sees them. REQUIRES: it is not copied while it changes.
  std::vector<Rank>& edit();
  friend bool operator==(const Ranks& a, const Ranks& b) { return a.table_ == b.table_ || a.table() == b.table(); }

 private:
  std::shared_ptr<std::vector<Rank>> table_;  // null: empty
};

/// A dense n-d arrangement of ranks. Row-major: the last axis varies fastest. A value type.
struct Mesh {
  std::vector<Axis> axes;
  Ranks ranks;  ///< size() of them; position i has coordinates coord(i)

  /// Ranks `first`, `first + 1`, ... in row-major order. REQUIRES sizes >= 1.
  static Mesh dense(std::vector<Axis> axes, Rank first = 0);

  std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
  /// Coordinates of a position, one per axis.
  std::vector<std::int64_t> coord(std::int64_t position) const;
  /// The inverse of coord(). REQUIRES one coordinate per axis.
  std::int64_t position(const std::vector<std::int64_t>& coord) const;
  /// Position of a rank, or -1: guess()'s, else found by a linear search.
  std::int64_t find(Rank rank) const;
  /// Position of a rank, by arithmetic: right for a mesh whose ranks rise by a constant stride along each axis, as
  /// the ranks of a stage do. -1 where the rank is not at the computed position; it may still be at another.
  std::int64_t guess(Rank rank) const;
  /// Index of an axis by name, or -1.
  int axis(const std::string& name) const;
  /// Length of an axis by name; 1 when there is no such axis.
  std::int64_t axis_size(const std::string& name) const;
  /// Positions of the places that have the coordinates of `position` on all axes but the `free` ones (one flag per
  /// axis), ascending.
  std::vector<std::int64_t> group(std::int64_t position, const std::vector<bool>& free) const;
  /// The sub-mesh in which `axis` is fixed to `index` (the axis disappears). REQUIRES an axis of this mesh.
  Mesh slice(int axis, std::int64_t index) const;

  bool operator==(const Mesh&) const = default;
};

/// "{dp: 2, tp: 4}".
std::string to_string(const Mesh& mesh);

}  // namespace troupe
