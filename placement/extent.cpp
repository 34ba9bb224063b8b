#include "placement/extent.h"

#include <algorithm>
#include <cstring>

#include "devices/base/check.h"

namespace troupe {

std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
    case DType::sum64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::sum64: return "sum64";
  }
  return "?";
}

std::int64_t elements(const Shape& shape) {
  std::int64_t n = 1;
  for (auto d : shape) n *= d;
  return n;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Range intersect(Range a, Range b) {
  const Range r{std::max(a.lo, b.lo), std::min(a.hi, b.hi)};
  return r.lo < r.hi ? r : Range{r.lo, r.lo};
}

Extent Extent::whole(const Shape& shape) {
  Extent e;
  for (auto d : shape) e.dims.push_back({0, d});
  return e;
}

bool Extent::empty() const {
  return std::any_of(dims.begin(), dims.end(), [](Range r) { return r.size() == 0; });
}

std::int64_t Extent::elements() const {
  std::int64_t n = 1;
  for (auto r : dims) n *= r.size();
  return n;
}

Shape Extent::shape() const {
  Shape s;
  for (auto r : dims) s.push_back(r.size());
  return s;
}

bool Extent::contains(const Extent& other) const {
  if (other.empty()) return true;
  ASSERT(dims.size() == other.dims.size(), dims.size(), other.dims.size());
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (other.dims[d].lo < dims[d].lo || other.dims[d].hi > dims[d].hi) return false;
  return true;
}

Extent intersect(const Extent& a, const Extent& b) {
  ASSERT(a.dims.size() == b.dims.size(), a, b);
  Extent e;
  for (std::size_t d = 0; d < a.dims.size(); ++d) e.dims.push_back(intersect(a.dims[d], b.dims[d]));
  return e;
}

std::string to_string(const Extent& extent) {
  std::string out = "[";
  for (std::size_t i = 0; i < extent.dims.size(); ++i)
    out += (i ? ", " : "") + std::to_string(extent.dims[i].lo) + ":" + std::to_string(extent.dims[i].hi);
  return out + "]";
}

bool contiguous_in(const Extent& part, const Extent& whole) {
  // Dims of length 1, then at most one partial dim, then only whole dims.
  std::size_t d = 0;
  while (d < part.dims.size() && part.dims[d].size() == 1) ++d;
  for (++d; d < part.dims.size(); ++d)
    if (!(part.dims[d] == whole.dims[d])) return false;
  return true;
}

std::int64_t offset_in(const Extent& part, const Extent& whole) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < part.dims.size(); ++d)
    offset = offset * whole.dims[d].size() + (part.dims[d].lo - whole.dims[d].lo);
  return offset;
}

void copy_extent(const Extent& part, const void* src, const Extent& src_extent, void* dst, const Extent& dst_extent,
                 std::int64_t item) {
  for_each_run(part, src_extent, dst_extent, [&](std::int64_t from, std::int64_t to, std::int64_t run) {
    std::memcpy(static_cast<char*>(dst) + to * item, static_cast<const char*>(src) + from * item,
                static_cast<std::size_t>(run * item));
  });
}

}  // namespace troupe
