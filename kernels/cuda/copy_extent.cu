// Rectangles of tensors from one buffer to another, in the widest words (16 bytes at most) that all runs, strides and
// addresses are multiples of.
#include "kernels/cuda/extents.cuh"
#include "kernels/cuda/vector.cuh"

namespace troupe::kernels::cuda {

namespace {

template <class Word>
TROUPE_KERNEL void TROUPE_THREADS(vector_threads) copy_words(Walk w, std::int64_t n, const Word* src, Word* dst) {
  for_mine(n, [&](std::int64_t i) {
    std::int64_t a = w.first_a, b = w.first_b;
    for (int d = 0; d < w.dims - 1; ++d) {
      const Quotient q = divide(i, w.size[d]);
      a += q.rest * w.in_a[d];
      b += q.rest * w.in_b[d];
      i = q.whole;
    }
    dst[b + i * w.in_b[w.dims - 1]] = src[a + i * w.in_a[w.dims - 1]];
  });
}

template <class Word>
void issue(const Walk& w, const void* src, void* dst, void* queue) {
  const std::int64_t n = w.runs() * w.size[0];
  launch(queue, vector_grid(n), copy_words<Word>, w, n, static_cast<const Word*>(src), static_cast<Word*>(dst));
}

}  // namespace

void copy_extent(const Extent& part, const void* src, const Extent& src_extent, void* dst, const Extent& dst_extent,
                 std::int64_t item, void* queue) {
  REQUIRE(item == 1 || item == 2 || item == 4 || item == 8, item);
  if (part.empty()) return;
  Walk w = walk(part, src_extent, dst_extent);
  if (w.dims == 1) {
    return copy(queue, static_cast<char*>(dst) + w.first_b * item, static_cast<const char*>(src) + w.first_a * item,
                w.size[0] * item);
  }
  // In bytes: the lowest bit of `all` is of the word.
  std::int64_t all = (w.size[0] | w.first_a | w.first_b) * item;
  for (int d = 1; d < w.dims; ++d) all |= (w.in_a[d] | w.in_b[d]) * item;
  all |= static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(src) | reinterpret_cast<std::uintptr_t>(dst)) | 16;
  const std::int64_t word = all & -all;
  const auto in_words = [&](std::int64_t& items) { items = items * item / word; };
  in_words(w.size[0]);
  in_words(w.first_a);
  in_words(w.first_b);
  for (int d = 1; d < w.dims; ++d) {
    in_words(w.in_a[d]);
    in_words(w.in_b[d]);
  }
  switch (word) {
    case 16: return issue<Float4>(w, src, dst, queue);
    case 8: return issue<std::uint64_t>(w, src, dst, queue);
    case 4: return issue<std::uint32_t>(w, src, dst, queue);
    case 2: return issue<std::uint16_t>(w, src, dst, queue);
    default: return issue<std::uint8_t>(w, src, dst, queue);
  }
}

}  // namespace troupe::kernels::cuda
