// GuardRule: which versions of the state the machines of a job guard for each other, and by when (decision 0039).
//
//   CO-8  (guards) at the commit of step v, where version v is due, each place copies its part of that version (what
//         SavedParts gives to it) into a slot of memory that outlives its process, and sends it to a place of the next
//         machine, which keeps it in a slot likewise. A place votes for step s only when it has copied all versions
//         that are due before s, and when all that are due before s - window are whole with it: its own copy, and what
//         it keeps for others. So when all have voted for step s, the newest version that is due before s - window lies
//         whole on two machines, wherever its only copy was. The two slots take turns, and `every` is more than
//         `window`: that version stays until a later one is as whole.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace troupe::runtime {

struct GuardRule {
  std::int64_t every = 0;              ///< versions from one that is due to the next; 0: no version is guarded
  std::int64_t window = 0;             ///< steps, beside the first, that a version has until it must be whole
  std::vector<std::int32_t> machines;  ///< by rank
  bool on() const { return every > 0; }
  /// Whether a version is due, of a generation that begins with version `first`.
  bool due(std::int64_t version, std::int64_t first) const {
    return on() && version >= first && (version - first) % every == 0;
  }
  /// The newest version that is due up to `version`; -1: none is.
  std::int64_t newest_due(std::int64_t version, std::int64_t first) const {
    return on() && version >= first ? version - (version - first) % every : -1;
  }
  /// The newest version that must be whole at a place that votes for `step`; -1: none.
  std::int64_t whole_at_vote(std::int64_t step, std::int64_t first) const {
    return newest_due(step - 1 - window, first);
  }
};

/// A job that loses a machine repeats so many steps at most, and no fewer can be promised than this.
inline constexpr std::int64_t guard_within_least = 2;
inline constexpr std::int64_t guard_within_most = 1'000'000'000;
/// A part travels in messages of so many bytes, and so many of them are under way at a time.
inline constexpr std::int64_t guard_message_bytes = 1 << 20;
inline constexpr int guard_messages_at_once = 4;
/// The rule with which at most `steps` are repeated. Of these steps one is that whose votes prove a guard whole; of the
/// others a guard has as many as it can have, but `window_most`, to be whole. Without machines. REQUIRES: steps >=
/// guard_within_least, window_most >= 0.
inline GuardRule guard_within(std::int64_t steps, std::int64_t window_most = std::numeric_limits<std::int64_t>::max()) {
  const std::int64_t window = std::min((steps - guard_within_least) / 2, window_most);
  return {steps - 1 - window, window, {}};
}

}  // namespace troupe::runtime
