// What --guard-every says for a run on several machines: which versions they guard for each other, what that takes.
#pragma once

#include <cstdint>
#include <string>

#include "apps/job/job.h"
#include "runtime/plan/plan.h"

namespace troupe::lm {

struct GuardChoice {
  std::int64_t within = 0;       ///< JobOptions::guard_within
  std::int64_t window_most = 0;  ///< JobOptions::guard_window_most
  std::string text;              ///< for people, lines of the plan; empty: nothing is guarded
  std::string summary;           ///< the same in a line
  std::string warning;           ///< why what --guard-every asks for has no effect; empty: it has, or nothing is asked
};

/// A warning where a number is asked for, and the options leave nothing to guard; else empty.
std::string no_guards(const JobArguments& a, const LmConfig& config);

/// Error: names what `text` is, and what --guard-every expects: "auto", "off", or a number.
Status check_guard_every(const std::string& text);

/// `auto` takes the fewest steps with which guards take at most a fiftieth of the time of a place, by the costs of the
/// plan and `step_s`, its predicted step: where its processors have no time to spare, what copies and sends a guard
/// takes it from the steps. `steps`: those that the run has to do; where a loss may repeat as many, nothing is guarded.
/// REQUIRES: check_guard_every has accepted a.guard_every; the plan's costs know its machines.
GuardChoice choose_guards(const JobArguments& a, const runtime::Plan& plan, double step_s, std::int64_t steps);

}  // namespace troupe::lm
