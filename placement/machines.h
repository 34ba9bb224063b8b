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
  bool operator==(const Machine&) const = default;
};

/// By rank: the index of its machine. Ranks fill machines in order. Ranks r with equal r / `together` are on one
/// machine, the first that has room for all of them; where none has, they take what places are left, in order.
/// REQUIRES: the machines have so many places; together >= 1.
std::vector<std::int32_t> fill_machines(const std::vector<std::int64_t>& places, std::int64_t ranks,
                                        std::int64_t together);

}  // namespace troupe
