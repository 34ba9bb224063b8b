// The order in which a session speaks to a place. A message out of this order is an error of the session's process,
// reported before it reaches an actor: actors rely on the order of their tokens.
//
//   SO-1  (commits) one BeginRun first; then the commits of all steps, each once and after the place has closed the
//         step;
//   SO-2  (steps) steps of the step program, and with it of those that are begun as it, begin in order, at most two
//         ahead of the commits;
//   SO-3  (other programs) any other program begins on the newest version only, and only if BeginRun or the commit
//         named it, once;
//   SO-4  (feeds) a feed's microbatches come in the order in which this place runs them, those of each run of its
//         program after that run begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/session/control.h"

namespace troupe::runtime {

/// A feed that a place reads.
struct FedChannel {
  std::string name;
  std::int32_t program = 0;
  std::size_t bytes = 0;                   ///< of one microbatch
  std::vector<std::int32_t> microbatches;  ///< of one run of its program at this place, in their order
};

/// What the order depends on, of the plan and the place.
struct OrderSpec {
  std::int32_t step_program = 0;
  std::vector<std::int32_t> begun_as;  ///< per program: Plan::begun_as
  /// per program: actors of the place that close its step; of the step program: that of all that are begun as it
  std::vector<std::int32_t> closers;
  std::size_t exponents = 0;      ///< that BeginRun and commits carry: one for each parameter, none without training
  std::size_t commits = 0;        ///< that a CommitStep carries: one for each program that trains
  std::vector<FedChannel> feeds;  ///< that the place reads
};

/// Checks SO-1..4 at one place. Owned by its conductor.
class SessionOrder {
 public:
  explicit SessionOrder(OrderSpec spec);

  /// Takes the next message. Error: it is out of order; names the message and what was due.
  Status check(const ToWorker& message);
  /// The place has closed a step.
  void closed(std::int64_t step) { closed_ = step; }

 private:
  Status check(const BeginRun& m);
  Status check(const Go& m);
  Status check(const CommitStep& m);
  Status check(const Feed& m);
  Status reads(const std::string& what, ProgramMask readers);

  struct Run {
    std::int64_t step = -1;
    std::size_t next = 0;  // microbatches of the feed that have come
  };
  const OrderSpec spec_;
  std::vector<Run> runs_;            // by index of OrderSpec::feeds
  std::vector<std::int64_t> begun_;  // per program: the newest step
  bool running_ = false;
  std::int64_t first_ = 0, version_ = 0, closed_ = -1;
  // programs besides the step program that read this version and have not begun
  ProgramMask due_ = 0;
};

}  // namespace troupe::runtime
