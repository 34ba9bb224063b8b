// Sums of values that other kernels have made, in an order that is written: what their parallel part leaves to do.
#pragma once

#include <cstdint>

#include "kernels/term_target.h"

namespace troupe::kernels::cuda {

/// *sum = values[0] + values[1] + ..., added in this order: a chain of n additions in double, some ten cycles each
/// (16,384 rows of a loss: about 0.1 ms).
void sum_in_order(void* queue, const double* values, std::int64_t n, double* sum);

/// Puts one term into each column: parts[0, c] + parts[1, c] + ..., added in this order; 0 where there are no parts.
void put_sums_of_columns(void* queue, const float* parts, std::int64_t count, std::int64_t cols, const Terms& out);

}  // namespace troupe::kernels::cuda
