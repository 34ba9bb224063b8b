#include "placement/machines.h"

#include <algorithm>
#include <set>
#include <span>

#include "devices/base/check.h"

namespace troupe {

std::vector<std::int32_t> fill_machines(const std::vector<std::int64_t>& places, std::int64_t ranks,
                                        std::int64_t together, const std::vector<std::int32_t>& seated) {
  REQUIRE(together >= 1, together);
  constexpr std::int32_t none = -1;
  std::vector<std::int64_t> room = places;
  std::vector<std::int32_t> machine_of = seated;
  machine_of.resize(static_cast<std::size_t>(ranks), none);
  for (std::int64_t first = 0; first < ranks; first += together) {
    const auto group = std::span(machine_of)
                           .subspan(static_cast<std::size_t>(first),
                                    static_cast<std::size_t>(std::min(together, ranks - first)));
    const std::int64_t wanted = std::count(group.begin(), group.end(), none);
    const std::set<std::int32_t> own(group.begin(), group.end());
    const auto with_room = [&](std::int64_t least, bool of_group) {
      for (std::size_t m = 0; m < room.size(); ++m)
        if (room[m] >= least && (!of_group || own.count(static_cast<std::int32_t>(m)) > 0))
          return static_cast<std::int32_t>(m);
      return none;
    };
    std::int32_t machine = with_room(wanted, true);
    if (machine == none) machine = with_room(wanted, false);
    for (std::int32_t& rank : group) {
      if (rank != none) continue;
      if (machine == none || room[static_cast<std::size_t>(machine)] == 0) machine = with_room(1, false);
      REQUIRE(machine != none, ranks);
      --room[static_cast<std::size_t>(machine)];
      rank = machine;
    }
  }
  return machine_of;
}

}  // namespace troupe
