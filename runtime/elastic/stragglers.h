// Stragglers: which places compute far longer than they should. A step is as long as its slowest place, so one slow
// machine (a hot processor, a neighbour, a failing fan) costs all of them; it does not hang, so nothing else names it.
//
//   SG-1  (peers) a place computes as long as the others of its stage, which run the same ops, for each microbatch;
//   SG-2  (history) and as long as it did at first, as far as the other places do: what slows all down names none;
//   SG-3  (window) medians of the last `window` steps are compared, and a place is named once it has taken named_at
//         times as long for named_after_ns, until it has been below over_at times for as long; not where the difference
//         is less than a tenth of a step.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// Of one plan. Not thread-safe.
class Stragglers {
 public:
  static constexpr std::int64_t window = 8, cold = 2;  ///< steps; the first `cold` touch memory for the first time
  static constexpr double named_at = 2, over_at = 1.5;
  static constexpr std::int64_t named_after_ns = 3'000'000'000, look_ns = 100'000'000;

  /// `plan` is read here only.
  explicit Stragglers(const Plan& plan);
  /// A generation begins with the same plan: what places took at first, and who was named, stays.
  void begin_generation();
  /// Another process takes the place of a rank. Whether the process before was named.
  bool forget(Rank rank);

  struct Change {
    Rank rank = -1;
    double times = 0;
    bool over = false;
  };
  /// A place has voted for its next step, for which it computed busy_ns. What has changed, where this was the last vote
  /// of a step.
  std::vector<Change> voted(Rank rank, std::int64_t busy_ns, std::int64_t now_ns);
  bool is_slow(Rank rank) const { return slow_.count(rank) > 0; }
  /// How many times as long a place took when all were last compared; 0: not known yet, or there is none to compare it
  /// with.
  double times(Rank rank) const { return places_[static_cast<std::size_t>(rank)].times; }

 private:
  struct Place {
    std::int32_t stage = 0;
    double microbatches = 1;  // of a step
    std::int64_t votes = 0;
    std::deque<double> recent;   // compute for each microbatch, ns
    double first = 0;            // their median in the first window
    double now = 0, times = 0;   // when all were last compared; 0: not known
    std::int64_t since_ns = -1;  // that it should be told of as slow, or as slow no more; -1: it should not
  };
  /// Compares all places: in time that grows with their number, and little more.
  void look();

  std::vector<Place> places_;
  std::set<Rank> slow_;
  std::int64_t votes_ = 0, last_ns_ = 0, looked_ns_ = 0;
  std::deque<double> step_ns_;
};

}  // namespace troupe::runtime
