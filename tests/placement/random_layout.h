// Random meshes and layouts for property tests: small, and as irregular as a layout may be.
#pragma once

#include <algorithm>
#include <random>

#include "placement/layout.h"

namespace troupe {

/// 1 to 4 dims (rarely none), at most 96 elements, rarely none at all.
inline Shape random_shape(std::mt19937& random) {
  Shape shape;
  if (random() % 50 == 0) return shape;
  std::int64_t room = 96;
  for (auto dims = 1 + random() % 4; dims > 0; --dims) {
    const std::int64_t n = random() % 200 == 0
                               ? 0
                               : 1 + static_cast<std::int64_t>(random() % std::min<std::int64_t>(room, 12));
    shape.push_back(n);
    room = std::max<std::int64_t>(1, room / std::max<std::int64_t>(1, n));
  }
  return shape;
}

/// 1 to 3 axes of 1 to 4 places; ranks from `first` on, in order or shuffled.
inline Mesh random_mesh(std::mt19937& random, Rank first = 0) {
  static const char* names[] = {"a", "b", "c"};
  std::vector<Axis> axes;
  const auto count = 1 + random() % 3;
  for (unsigned i = 0; i < count; ++i) axes.push_back({names[i], 1 + static_cast<std::int64_t>(random() % 4)});
  Mesh mesh = Mesh::dense(axes, first);
  if (random() % 3 == 0) std::shuffle(mesh.ranks.edit().begin(), mesh.ranks.edit().end(), random);
  return mesh;
}

/// `partial`: whether P may occur.
inline Sbp random_sbp(std::mt19937& random, const Shape& shape, bool partial) {
  const auto kind = random() % (partial ? 6 : 5);
  if (kind == 5) return Sbp::P();
  if (kind >= 3 || shape.empty()) return Sbp::B();
  return Sbp::S(static_cast<std::int32_t>(random() % shape.size()), random() % 3 == 0 ? 1 + random() % 4 : 1);
}

inline Layout random_layout(std::mt19937& random, const Shape& shape, const Mesh& mesh, bool partial = true) {
  NdSbp sbp;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) sbp.push_back(random_sbp(random, shape, partial));
  return {shape, DType::f64, mesh, sbp};
}

}  // namespace troupe
