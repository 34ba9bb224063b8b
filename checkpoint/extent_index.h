// ExtentIndex: holdings that are found by where they begin, so that asking a large tensor for a few of its many extents
// does not look at all of them.
#pragma once

#include <vector>

#include "placement/layout.h"

namespace troupe::checkpoint {

/// Holdings of one tensor, whole values (no terms).
class ExtentIndex final : public HoldingSet {
 public:
  explicit ExtentIndex(std::vector<Holding> holdings);
  std::int32_t terms() const override { return 1; }
  std::vector<Holding> holdings_intersecting(const Extent& extent) const override;

 private:
  std::vector<Holding> by_row_;        // by where dim 0 begins
  std::int64_t tallest_ = 0;           // rows of the one that has most
};

}  // namespace troupe::checkpoint
