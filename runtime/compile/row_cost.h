// RowCost: what the rows of SBP tables cost beside the work of their ops. The search for forward rows (axis_search.h)
// and the choice of gradient rows (backward_rows.h) both count with it, so that gradients take the way that the search
// has charged.
#pragma once

#include "placement/cost.h"
#include "runtime/graph/graph.h"

namespace troupe::runtime {

/// The layout in which the maker of a value reads its gradient: of a sum (P) the gradient is whole, else it lies as the
/// value does.
inline Sbp dual(const Sbp& sbp) { return sbp.is_partial() ? Sbp::B() : sbp; }

/// Along one model axis of n places.
class RowCost {
 public:
  /// REQUIRES: `costs` outlives this object.
  RowCost(const CostModel& costs, std::int64_t n) : costs_(costs), n_(n) {}

  /// Seconds that each place sends to bring a value from one layout to another; 0 where they are the same parts.
  /// `part`: the largest part of the value that the axes before this one leave at a place.
  double boxing_s(const Sbp& have, const Sbp& wanted, const TensorType& part) const {
    if (same_parts(have, wanted, part.shape, n_)) return 0;
    return axis_boxing_seconds(have, wanted, static_cast<double>(elements(part.shape) * size_of(part.dtype)), n_,
                               costs_.axis_link(n_), costs_.handover_s);
  }

 private:
  const CostModel& costs_;
  std::int64_t n_;
};

}  // namespace troupe::runtime
