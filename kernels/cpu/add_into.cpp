#include "kernels/add_into.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace troupe::kernels {

using namespace simd;

void add_into(float* dst, const float* src, std::int64_t n, Parallel& par) {
  for_blocks(par, n, element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, dst + i, [](v16 a, v16 b) { return a + b; }, dst + i, src + i);
  });
}

}  // namespace troupe::kernels
