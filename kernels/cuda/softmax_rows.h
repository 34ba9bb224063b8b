// What softmax_cross_entropy_grad and lm_head_loss_grad share.
#pragma once

#include <cstdint>

namespace troupe::kernels::cuda {

/// dx (rows, n) = scale * (softmax(x) - onehot(target - first)), row by row, as softmax_row_grad of
/// kernels/cpu/softmax_row.h. May run in place.
void softmax_rows_grad(void* queue, const float* x, std::int64_t rows, std::int64_t n, const std::int32_t* target,
                       const float* lse, float scale, float* dx, std::int64_t first);

}  // namespace troupe::kernels::cuda
