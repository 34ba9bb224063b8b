// How extents are cut before they are written, so that a reader's memory is bounded and readers can share the work.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/extent.h"

namespace troupe::checkpoint {

/// Bytes of the largest piece, where a row is not larger.
inline constexpr std::int64_t piece_bytes = std::int64_t{16} << 20;

/// `extent` as runs of whole rows (indices of dim 0) of at most `most` bytes, or of one row, at `item` bytes
/// per element: in a row-major buffer of the extent they follow each other. Empty for an empty extent.
std::vector<Extent> cut_rows(const Extent& extent, std::int64_t item, std::int64_t most = piece_bytes);

}  // namespace troupe::checkpoint
