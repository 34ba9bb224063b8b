#include "runtime/launch/fresh_number.h"

#include <random>

namespace troupe::runtime {

std::uint64_t fresh_number() {
  std::random_device random;
  return static_cast<std::uint64_t>(random()) << 32 | random() | 1;  // not 0
}

}  // namespace troupe::runtime
