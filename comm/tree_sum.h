// Sums of floating-point terms along the fixed tree of placement/tree.h: the same bits whatever the order of arrival.
#pragma once

#include <vector>

#include "placement/extent.h"
#include "placement/shape.h"
#include "placement/tree.h"

namespace troupe::comm {

/// One term's values of the destination extent, and the buffer in which they lie now.
struct TermBuffer {
  Term term;
  const std::byte* data = nullptr;
  Extent extent;                 // of the buffer that data points to
  std::byte* scratch = nullptr;  // non-null: may be overwritten
};

/// Adds the operands (same destination piece, consecutive terms) along the tree into `out`, whose extent is
/// `out_extent`.
/// REQUIRES: the terms are 0 .. terms - 1 together; f32 or f64; at most one pair of operands without scratch is added.
void combine(std::vector<TermBuffer> operands, const Extent& piece, std::int32_t terms, DType dtype, std::byte* out,
             const Extent& out_extent);

}  // namespace troupe::comm
