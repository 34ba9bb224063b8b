// Square sums of a gradient's rows, of which its norm is made.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.h"

namespace troupe::kernels {

/// sums[r] = sum of squares of row r of g (rows, cols), in double. Column c goes to accumulator c mod 8, in
/// order of c; the eight combine as ((0+4)+(2+6)) + ((1+5)+(3+7)). NU-0 (kernels): address and threads change no bit.
void row_square_sums(const Gradient& g, std::int64_t rows, std::int64_t cols, double* sums, Parallel& par);

}  // namespace troupe::kernels
