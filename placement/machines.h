// Which machines have the ranks of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/mesh.h"

namespace troupe {

/// A machine as a job knows it before it starts.
struct Machine {
  std::string name;  ///< empty: not known
  std::int64_t places = 1;
  std::int64_t bytes = 0;  ///< of memory that its places may use together; 0: not known
  bool operator==(const Machine&) const = default;
};

/// By rank: the index of its machine. Ranks fill machines in order. Ranks r with equal r / `together` are on one
/// machine, the first that has room for all of them; where none has, they take what places are left, in order.
/// `seated`: by rank: its machine, where it has a place already, which is none of `places`; else, and behind the end,
/// -1. The others of its group then take places of a machine of the group, if one has room for all of them. REQUIRES:
/// the machines have places for all other ranks; together >= 1.
std::vector<std::int32_t> fill_machines(const std::vector<std::int64_t>& places, std::int64_t ranks,
                                        std::int64_t together, const std::vector<std::int32_t>& seated = {});

}  // namespace troupe
