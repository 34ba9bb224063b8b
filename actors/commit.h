// Commit: what the session's decision at the end of a step says to the updates, which make version v + 1 of the
// parameters from version v (SE-2 versions, runtime/session/decisions.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe::actors {

/// What a commit says to the updates of a program's step. A commit's payload is a Commit for each program that trains,
/// in the plan's order; then the exponents of the next step's gradient sums: an int32 for each parameter of the plan.
struct Commit {
  double grad_scale = 1;    ///< clip factor
  double lr = 0;            ///< learning rate
  std::int64_t update = 1;  ///< 1-based number of the update (Adam's bias correction)
  bool void_step = false;   ///< the update stores the exponents and changes nothing else
};
/// Bytes of a commit's payload in a plan of `params` parameters, of which so many programs train some.
inline std::int64_t commit_bytes(std::size_t params, std::size_t programs = 1) {
  return static_cast<std::int64_t>(programs * sizeof(Commit) + params * sizeof(std::int32_t));
}

}  // namespace troupe::actors
