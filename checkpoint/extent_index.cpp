#include "checkpoint/extent_index.h"

#include <algorithm>

namespace troupe::checkpoint {

namespace {
std::int64_t row(const Extent& e) { return e.dims.empty() ? 0 : e.dims[0].lo; }
std::int64_t rows(const Extent& e) { return e.dims.empty() ? 1 : e.dims[0].size(); }
}  // namespace

ExtentIndex::ExtentIndex(std::vector<Holding> holdings) : by_row_(std::move(holdings)) {
  std::stable_sort(by_row_.begin(), by_row_.end(), [](const Holding& a, const Holding& b) { return row(a.extent) < row(b.extent); });
  for (const Holding& h : by_row_) tallest_ = std::max(tallest_, rows(h.extent));
}

std::vector<Holding> ExtentIndex::holdings_intersecting(const Extent& extent) const {
  const std::int64_t lo = row(extent), hi = lo + rows(extent);
  std::vector<Holding> out;
  auto it = std::lower_bound(by_row_.begin(), by_row_.end(), lo - tallest_, [](const Holding& h, std::int64_t begin) { return row(h.extent) < begin; });
  for (; it != by_row_.end() && row(it->extent) < hi; ++it)
    if (!intersect(it->extent, extent).empty()) out.push_back(*it);
  return out;
}

}  // namespace troupe::checkpoint
