#include "kernels/digest.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/cpu/philox_block.h"
#include "kernels/digest_words.h"

namespace troupe::kernels {
namespace {

template <class Bits>
Digest run_digest(const std::byte* data, std::int64_t n, std::uint64_t index) {
  std::uint64_t a = 0, b = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    const std::uint64_t e = index + static_cast<std::uint64_t>(i), x = bits;
    a += digest_detail::first_word(x, e);
    b += digest_detail::second_word(x, e);
  }
  return {a, b};
}

Digest run_digest(DType dtype, const std::byte* data, std::int64_t n, std::uint64_t index) {
  switch (size_of(dtype)) {
    case 8: return run_digest<std::uint64_t>(data, n, index);
    case 4: return run_digest<std::uint32_t>(data, n, index);
    case 2: return run_digest<std::uint16_t>(data, n, index);
    default: return run_digest<std::uint8_t>(data, n, index);
  }
}

}  // namespace

bool all_finite(const float* values, std::int64_t n) {
  constexpr std::uint32_t exponent = 0x7f800000;  // all of its bits: NaN and the infinities, no other value
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    std::uint32_t found = 0;
    for (std::int64_t i = begin; i < std::min(n, begin + block); ++i)
      found |= (std::bit_cast<std::uint32_t>(values[i]) & exponent) == exponent;
    if (found != 0) return false;
  }
  return true;
}

Digest digest(const View& view, Parallel& par) {
  std::atomic<std::uint64_t> a{0}, b{0};  // additions commute: the order of threads does not matter
  const auto item = size_of(view.dtype);
  par_runs(par, 1, view.extent, Extent::whole(view.logical), [&](std::int64_t, Run run) {
    const Digest d = run_digest(view.dtype, view.data + run.local * item, run.count,
                                static_cast<std::uint64_t>(run.global));
    a.fetch_add(d[0], std::memory_order_relaxed);
    b.fetch_add(d[1], std::memory_order_relaxed);
  });
  return {a.load(), b.load()};
}

}  // namespace troupe::kernels
