#include "placement/machines.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe {

std::vector<std::int32_t> fill_machines(const std::vector<std::int64_t>& places, std::int64_t ranks,
                                        std::int64_t together) {
  REQUIRE(together >= 1, together);
  std::vector<std::int64_t> room = places;
  std::vector<std::int32_t> machine_of;
  while (std::ssize(machine_of) < ranks) {
    const std::int64_t wanted = std::min(together, ranks - std::ssize(machine_of));
    auto machine = std::find_if(room.begin(), room.end(), [&](std::int64_t r) { return r >= wanted; });
    for (std::int64_t n = 0; n < wanted; ++n) {
      if (machine == room.end() || *machine == 0)
        machine = std::find_if(room.begin(), room.end(), [](std::int64_t r) { return r > 0; });
      REQUIRE(machine != room.end(), ranks);
      --*machine;
      machine_of.push_back(static_cast<std::int32_t>(machine - room.begin()));
    }
  }
  return machine_of;
}

}  // namespace troupe
