// ExtentIndex: holdings sorted by where their dim 0 begins, so that a query for a few of the many extents of a large
// tensor does not look at all of them.
#pragma once

#include <vector>

#include "placement/layout.h"

namespace troupe::checkpoint {

/// Holdings of one tensor, whole values (no terms). REQUIRES extents of equal numbers of dims.
class ExtentIndex final : public HoldingSet {
 public:
  explicit ExtentIndex(std::vector<Holding> holdings);
  std::int32_t terms() const override { return 1; }
  std::vector<Holding> holdings_intersecting(const Extent& extent) const override;

 private:
  std::vector<Holding> by_row_;        // sorted by where dim 0 begins
  std::int64_t tallest_ = 0;           // the most rows (indices of dim 0) of any holding
};

}  // namespace troupe::checkpoint
