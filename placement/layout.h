// Layout: shape, dtype, mesh and one Sbp per axis. Holding: what one rank has of a logical tensor.
//
// Invariants:
//   LY-1  (whole terms) the extents of one term cover every element of the tensor exactly once per replica set;
//   LY-2  (nested splits) nested splits of one dim divide in axis order (the first axis cuts first);
//   LY-3  (intersection) Layout::holdings_intersecting visits, on a split axis, only the parts that overlap the extent.
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

/// {holder, extent, term}: an n-d rectangle of a logical tensor that rank `holder` has.
struct Holding {
  Rank holder = 0;
  Extent extent;
  Term term;
  bool operator==(const Holding&) const = default;
};
std::string to_string(const Holding& holding);

/// A set of holdings of one logical tensor: a layout's, or a list, as the extents of a checkpoint manifest are.
class HoldingSet {
 public:
  virtual ~HoldingSet() = default;
  /// Number of leaves of the reduction tree; 1: the values are whole.
  virtual std::int32_t terms() const = 0;
  /// Every holding that overlaps `extent` (whole holdings, not clipped).
  virtual std::vector<Holding> holdings_intersecting(const Extent& extent) const = 0;
};

/// How a logical tensor lies on a mesh. A value type. The members after validate() REQUIRE that validate() is ok, and
/// positions in [0, mesh.size()).
struct Layout : HoldingSet {
  Shape shape;
  DType dtype = DType::f32;
  Mesh mesh;
  NdSbp sbp;

  Layout() = default;
  Layout(Shape shape, DType dtype, Mesh mesh, NdSbp sbp);

  /// Ok, or `invalid`: another number of Sbps than axes, a split of a dim that the shape lacks, a unit below 1.
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
  HoldingList(std::vector<Holding> holdings, std::int32_t terms = 1) : holdings_(std::move(holdings)), terms_(terms) {}
  std::int32_t terms() const override { return terms_; }
  std::vector<Holding> holdings_intersecting(const Extent& extent) const override;
  const std::vector<Holding>& all() const { return holdings_; }

 private:
  std::vector<Holding> holdings_;
  std::int32_t terms_;
};

/// True when `a` and `b` cut a tensor of this shape into the same parts over the `n` places of one axis.
bool same_parts(const Sbp& a, const Sbp& b, const Shape& shape, std::int64_t n);

/// True when every place of the mesh has the same part under `a` as under `b`. Compares the nested splits, not axis by
/// axis: a unit that makes no difference on one axis alone may make one inside the parts of an earlier axis.
bool same_layout(const NdSbp& a, const NdSbp& b, const Shape& shape, const Mesh& mesh);

/// True when one boxing can lead from `from` to `to`. A boxing adds a partial sum on all of its axes at once or on
/// none: so both must be partial on the same axes, or at most one of them partial at all. REQUIRES from.size() >=
/// to.size(); compares the first to.size() axes.
bool sums_together(const NdSbp& from, const NdSbp& to);

/// The shape of the largest part (the one at coordinates 0) after the splits of the first `axes` axes of a mesh.
Shape part_of(Shape shape, const NdSbp& sbp, std::size_t axes, const Mesh& mesh);

}  // namespace troupe
