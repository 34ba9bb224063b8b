// Layout: shape, dtype, mesh and one Sbp per axis. Holding: what somebody has of a logical tensor.
//
// Invariants:
//   LY-1  the extents of one term cover every element of the tensor exactly once per replica set;
//   LY-2  nested splits of one dim divide in axis order (the first axis cuts first);
//   LY-3  holdings_intersecting never enumerates places outside the answer's axes product.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "placement/extent.h"
#include "placement/mesh.h"
#include "placement/sbp.h"

namespace troupe {

/// A set of terms of a partial sum: the leaves [lo, hi) of a reduction tree (see tree.h).
/// A tensor that is no partial sum has one term, {0, 1} of a tree with one leaf.
struct Term {
  std::int32_t lo = 0, hi = 1;
  bool operator==(const Term&) const = default;
};

/// {holder, extent, term}: an n-d rectangle of a logical tensor that somebody has.
struct Holding {
  Rank holder = 0;
  Extent extent;
  Term term;
  bool operator==(const Holding&) const = default;
};
std::string to_string(const Holding& holding);

/// Anything that can say who holds what: a layout, a checkpoint's manifest, the survivors of a failure.
class HoldingSet {
 public:
  virtual ~HoldingSet() = default;
  /// Number of leaves of the reduction tree; 1: the values are whole.
  virtual std::int32_t terms() const = 0;
  /// Every holding that overlaps `extent` (whole holdings, not clipped).
  virtual std::vector<Holding> holdings_intersecting(const Extent& extent) const = 0;
};

/// A value type. `sbp.size() == mesh.axes.size()`.
struct Layout : HoldingSet {
  Shape shape;
  DType dtype = DType::f32;
  Mesh mesh;
  NdSbp sbp;

  Layout() = default;
  Layout(Shape shape, DType dtype, Mesh mesh, NdSbp sbp);

  /// Ok, or what is wrong with it (wrong number of Sbps, a split of a dim that is not there, ...).
  Status validate() const;

  /// The rectangle at mesh position `position`.
  Extent extent_at(std::int64_t position) const;
  /// The holding of a position; P axes number the terms, in axis order.
  Holding holding_at(std::int64_t position) const;
  /// Bytes at a position.
  std::int64_t bytes_at(std::int64_t position) const;

  std::int32_t terms() const override;
  std::vector<Holding> holdings_intersecting(const Extent& extent) const override;

  bool operator==(const Layout& o) const {
    return shape == o.shape && dtype == o.dtype && mesh == o.mesh && sbp == o.sbp;
  }
};
/// "[8, 384] f32 {dp: 2} (S(0))".
std::string to_string(const Layout& layout);

/// An explicit list of holdings.
class HoldingList final : public HoldingSet {
 public:
  HoldingList(std::vector<Holding> holdings, std::int32_t terms = 1)
      : holdings_(std::move(holdings)), terms_(terms) {}
  std::int32_t terms() const override { return terms_; }
  std::vector<Holding> holdings_intersecting(const Extent& extent) const override;
  const std::vector<Holding>& all() const { return holdings_; }

 private:
  std::vector<Holding> holdings_;
  std::int32_t terms_;
};

/// True when both cut a tensor of this shape into the same parts over `n` places.
bool same_parts(const Sbp& a, const Sbp& b, const Shape& shape, std::int64_t n);

/// True when every place of a mesh has the same part either way. Splits of one dim nest, so a unit that makes no difference
/// on one axis alone may make one inside the parts of another.
bool same_layout(const NdSbp& a, const NdSbp& b, const Shape& shape, const Mesh& mesh);

/// Whether one boxing can do that: a sum over several axes is added up on all of them at once, or stays the sum that it is.
/// Both over the same axes, which may be the first few of a mesh.
bool sums_together(const NdSbp& from, const NdSbp& to);

/// The largest part of `shape` after the splits of the first `axes` axes of a mesh.
Shape part_of(Shape shape, const NdSbp& sbp, std::size_t axes, const Mesh& mesh);

}  // namespace troupe
