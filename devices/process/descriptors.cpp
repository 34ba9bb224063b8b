#include "devices/process/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace troupe {

std::int64_t descriptors_max() {
  constexpr auto unlimited = std::numeric_limits<std::int64_t>::max();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return unlimited;
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, unlimited));
}

}  // namespace troupe
