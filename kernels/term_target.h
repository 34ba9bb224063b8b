// Where a kernel puts the terms of a weight gradient (what a term is: kernels/exact_sum.h).
#pragma once

#include "kernels/op.h"

namespace troupe::kernels {

/// A matrix (rows of ld elements) that terms go to: into exact sums, or as f32. Exactly one of `sums` and `values`.
struct Terms {
  std::int64_t* sums = nullptr;
  float* values = nullptr;
  std::int32_t exponent = 0;  ///< of sums
  bool accumulate = false;    ///< += rather than =
  float* peak = nullptr;      ///< raised to the largest |term|; NaN above all
  std::int64_t ld = 0;
};

/// The output of a call.
inline Terms terms_of(const View& out, bool accumulate) {
  const bool exact = out.dtype == DType::sum64;
  return {exact ? out.as<std::int64_t>() : nullptr,
          exact ? nullptr : out.as<float>(),
          out.exponent,
          accumulate,
          out.peak,
          out.cols()};
}

}  // namespace troupe::kernels
