// Mesh: places arranged along named axes, such as {dp: 2, tp: 4}.
//
// "Axis" always means a mesh axis, "dim" a tensor dimension (TorchTitan's two words). Pipeline stages
// are not an axis: each stage has a mesh of its own.
#pragma once

#include <cstdint>
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

/// A dense n-d arrangement of ranks. Row-major: the last axis varies fastest. A value type.
struct Mesh {
  std::vector<Axis> axes;
  std::vector<Rank> ranks;  ///< size() of them; position i has coordinates coord(i)

  /// Ranks `first`, `first + 1`, ... in row-major order. REQUIRES sizes >= 1.
  static Mesh dense(std::vector<Axis> axes, Rank first = 0);

  std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
  /// Coordinates of a position, one per axis.
  std::vector<std::int64_t> coord(std::int64_t position) const;
  /// The inverse of coord(). REQUIRES one coordinate per axis.
  std::int64_t position(const std::vector<std::int64_t>& coord) const;
  /// Position of a rank, or -1: that of guess(), else found by a linear search.
  std::int64_t find(Rank rank) const;
  /// Position of a rank, by arithmetic: right for a mesh whose ranks rise by a constant stride along each axis, as
  /// those of a stage do. -1 where the rank is not at the computed position; it may still be at another.
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
