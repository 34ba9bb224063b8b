// Extent: an n-d rectangle of a logical tensor, the unit of everything that moves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/shape.h"

namespace troupe {

/// A half-open interval [lo, hi) of indices.
struct Range {
  std::int64_t lo = 0, hi = 0;
  std::int64_t size() const { return hi > lo ? hi - lo : 0; }
  bool operator==(const Range&) const = default;
};

/// The overlap of two ranges; empty (size 0) when they are disjoint.
Range intersect(Range a, Range b);

/// One range per tensor dim. The empty vector is the one element of a scalar.
struct Extent {
  std::vector<Range> dims;

  /// [0, n) in each dim of length n.
  static Extent whole(const Shape& shape);
  bool empty() const;
  std::int64_t elements() const;
  /// Lengths per dim.
  Shape shape() const;
  /// True also for every empty `other`. REQUIRES equal numbers of dims otherwise.
  bool contains(const Extent& other) const;
  bool operator==(const Extent&) const = default;
};

/// The overlap of two rectangles of one tensor; `empty()` when there is none. REQUIRES equal numbers of dims.
Extent intersect(const Extent& a, const Extent& b);
/// "[0:4, 128:256]".
std::string to_string(const Extent& extent);

/// True when `part`, which lies in `whole`, is one contiguous run of memory of a row-major buffer that holds `whole`.
bool contiguous_in(const Extent& part, const Extent& whole);
/// Element offset of `part`'s first element inside a row-major buffer that holds `whole`.
std::int64_t offset_in(const Extent& part, const Extent& whole);

/// Copies `part` from a buffer that holds `src_extent` to a buffer that holds `dst_extent`.
/// `part` lies in both; buffers are row-major and do not overlap; `item` = bytes per element.
void copy_extent(const Extent& part, const void* src, const Extent& src_extent, void* dst, const Extent& dst_extent,
                 std::int64_t item);

/// Calls f(element offset in a, element offset in b, run length) for each run of `part` that is contiguous in row-major
/// buffers which hold `a` and `b`, in row-major order. A scalar is one run of 1. REQUIRES that `part` lies in `a` and
/// in `b`.
template <class F>
void for_each_run(const Extent& part, const Extent& a, const Extent& b, F&& f);

}  // namespace troupe

#include "placement/extent_runs.h"
