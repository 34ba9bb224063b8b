#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/square_sum.h"

namespace troupe::kernels::cpu {

using namespace simd;

void mse_loss(const Call& call) {
  const float *y = call.in[0].as<float>(), *target = call.in[1].as<float>();
  const auto n = call.in[0].size();
  auto* block_sum = reinterpret_cast<double*>(call.scratch.data());
  for_blocks(*call.par, n, element_block, [=](std::int64_t begin, std::int64_t end) {
    block_sum[begin / element_block] = square_sum(end - begin, [=](std::int64_t i, std::int64_t w) {
      return load8(y + begin + i, w) - load8(target + begin + i, w);
    });
  });
  double sum = 0;
  for (std::int64_t i = 0; i * element_block < n; ++i) sum += block_sum[i];
  *call.out[0].as<double>() = sum;
}

void mse_loss_grad(const Call& call) {
  const float *y = call.in[0].as<float>(), *target = call.in[1].as<float>();
  float* dy = call.out[0].as<float>();
  const v16 f = splat(static_cast<float>(2 * call.attrs->real("scale", 1)));
  for_blocks(*call.par, call.in[0].size(), element_block, [=](std::int64_t i, std::int64_t end) {
    map(
        end - i, dy + i, [f](v16 a, v16 b) { return f * (a - b); }, y + i, target + i);
  });
}

}  // namespace troupe::kernels::cpu
