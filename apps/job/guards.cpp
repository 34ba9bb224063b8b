#include "apps/job/guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "apps/options/recovery.h"
#include "devices/base/text_table.h"
#include "runtime/place/guard_layout.h"

namespace troupe::lm {

using namespace runtime;

namespace {

/// The part of the time of a place that its guards may take, with --guard-every auto.
constexpr double guard_share = 0.02;

/// -1: it is no number.
std::int64_t number_in(const std::string& text) {
  std::int64_t n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? n : -1;
}

/// What a guard takes, of the place that takes longest. The costs are those of the machines: what places of one machine
/// share is divided there.
struct GuardTime {
  double work_s = 0;   ///< in which it is copied, and through the link
  double whole_s = 0;  ///< until it is delivered
};

GuardTime guard_time(const Plan& plan, const GuardLayout& layout) {
  GuardTime time;
  for (Rank r = 0; r < plan.workers(); ++r) {
    if (layout.guard_of(r) < 0) continue;  // there is one machine only
    const LinkCost& link = plan.costs.link(r, layout.guard_of(r));
    const std::int64_t slot = layout.part(r).slot_bytes;
    const auto bytes = static_cast<double>(slot);
    const double copy_s = 2 * bytes / plan.costs.memory_bytes_per_s;  // read and written
    const double work_s = copy_s + bytes / link.alone_bytes_per_s();
    // So many messages are under way at a time; the next ones wait until these are delivered.
    const std::int64_t at_once = guard_messages_at_once * guard_message_bytes;
    const auto rounds = static_cast<double>((slot + at_once - 1) / at_once);
    time.work_s = std::max(time.work_s, work_s);
    time.whole_s = std::max(time.whole_s, work_s + rounds * link.delivery_s(std::min(slot, guard_message_bytes)));
  }
  return time;
}

}  // namespace

Status check_guard_every(const std::string& text) {
  const std::int64_t n = number_in(text);
  if (text == "auto" || text == "off" || (n >= guard_within_least && n <= guard_within_most)) return {};
  return invalid(fmt::format("'{}': expected auto, off, or the steps that a loss may repeat, {} to {}", text,
                             guard_within_least, guard_within_most));
}

std::string no_guards(const JobArguments& a, const LmConfig& config) {
  const auto recovery = parse_recovery(config.run.recovery);
  if (number_in(a.guard_every) <= 0 || !recovery.ok() || (a.machines.count > 1 && recovery->slots)) return {};
  return fmt::format("--guard-every {} has no effect: it needs --recovery slots and 2 machines or more (--nodes)",
                     a.guard_every);
}

GuardChoice choose_guards(const JobArguments& a, const Plan& plan, double step_s, std::int64_t steps) {
  if (a.guard_every == "off" || a.machines.count < 2 || !plan.keeps_version()) return {};
  std::vector<std::int32_t> machines;
  for (Rank r = 0; r < plan.workers(); ++r) machines.push_back(plan.costs.node(r));
  GuardChoice out;
  const GuardLayout layout(plan, machines);
  const GuardTime time = guard_time(plan, layout);
  const auto steps_of = [step_s](double s) {
    return std::clamp<std::int64_t>(std::llround(std::ceil(std::min(s / std::max(step_s, 1e-9), 1e12))), 1,
                                    guard_within_most / 4);
  };
  // Twice the predicted time: a guard that is late holds a vote.
  out.window_most = 2 * steps_of(time.whole_s) - 1;
  const std::int64_t every = steps_of(time.work_s / guard_share);
  out.within = a.guard_every == "auto" ? every + std::min(every - 1, out.window_most) + 1 : number_in(a.guard_every);
  if (out.within >= steps) {  // the first one after that of the first version would be of use behind the last step
    GuardChoice none;
    if (a.guard_every != "auto")
      none.warning = fmt::format("--guard-every {} has no effect: the run has {} to do", a.guard_every,
                                 counted(steps, "step"));
    return none;
  }
  if (!needs_guards(plan, machines)) {  // but other machines may have to take the workers
    if (a.guard_every != "auto")
      out.warning = fmt::format(
          "--guard-every {} has no effect on this mesh: no machine alone has a part of the state, so none is guarded",
          a.guard_every);
    return out;
  }
  std::int64_t bytes = 0;
  for (Rank r = 0; r < plan.workers(); ++r) bytes = std::max(bytes, layout.bytes(r));
  const GuardRule rule = guard_within(out.within, out.window_most);
  out.summary = fmt::format("guards: a machine that is lost for good takes back {} at most",
                            counted(out.within, "step"));
  out.text = fmt::format(
      "guards      a machine that is lost for good takes back {} at most: every {} a version is copied and sent to the "
      "next machine,\n            whole within {}; predicted to take {} of each {} of steps; memory {} a worker, "
      "beside the above\n",
      counted(out.within, "step"), rule.every == 1 ? "step" : counted(rule.every, "step"),
      counted(rule.window + 1, "step"), human_seconds(time.work_s),
      human_seconds(step_s * static_cast<double>(rule.every)), human_bytes(bytes));
  return out;
}

}  // namespace troupe::lm
