#include "checkpoint/cut.h"

#include <algorithm>

namespace troupe::checkpoint {

std::vector<Extent> cut_rows(const Extent& extent, std::int64_t item, std::int64_t most) {
  if (extent.empty()) return {};
  if (extent.dims.empty() || extent.elements() * item <= most) return {extent};
  const Range rows = extent.dims[0];
  const std::int64_t row_bytes = extent.elements() / rows.size() * item,
                     step = std::max<std::int64_t>(1, most / row_bytes);
  std::vector<Extent> out;
  for (std::int64_t lo = rows.lo; lo < rows.hi; lo += step) {
    out.push_back(extent);
    out.back().dims[0] = {lo, std::min(lo + step, rows.hi)};
  }
  return out;
}

}  // namespace troupe::checkpoint
