// The number that tells one job from another.
#pragma once

#include <cstdint>

namespace troupe::runtime {

/// A random number other than 0, which stands for "no job" (Catalog::claim).
std::uint64_t fresh_number();

}  // namespace troupe::runtime
