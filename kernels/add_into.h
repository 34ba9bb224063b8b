// A sum of two long vectors, outside the graph of ops.
#pragma once

#include <cstdint>

#include "devices/device.h"

namespace troupe::kernels {

/// dst[i] += src[i]. NU-0 (kernels): the bits of an element do not depend on where the vectors are cut.
void add_into(float* dst, const float* src, std::int64_t n, Parallel& par);

}  // namespace troupe::kernels
