#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/softmax_row.h"

namespace troupe::kernels::cpu {

void softmax_cross_entropy(const Call& call) {
  const View& logits = call.in[0];  // (..., V)
  const auto V = logits.cols(), rows = call.in[1].size();
  const auto* target = call.in[1].as<std::int32_t>();
  float* lse = call.out[1].as<float>();
  auto* row_loss = reinterpret_cast<double*>(call.scratch.data());
  for_blocks(*call.par, rows, 32, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r) row_loss[r] = softmax_row(logits.as<float>() + r * V, V, target[r], lse + r);
  });
  double sum = 0;
  for (std::int64_t r = 0; r < rows; ++r) sum += row_loss[r];
  *call.out[0].as<double>() = sum;
}

void softmax_cross_entropy_grad(const Call& call) {
  const View& logits = call.in[0];
  const auto V = logits.cols(), rows = call.in[1].size();
  const auto* target = call.in[1].as<std::int32_t>();
  const float* lse = call.in[2].as<float>();
  const float scale = static_cast<float>(call.attrs->real("scale", 1));
  for_blocks(*call.par, rows, 32, [&](std::int64_t begin, std::int64_t end) {
    for (auto r = begin; r < end; ++r)
      softmax_row_grad(logits.as<float>() + r * V, V, target[r], lse[r], scale, call.out[0].as<float>() + r * V);
  });
}

}  // namespace troupe::kernels::cpu
