#include "apps/job/guards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "devices/base/text_table.h"
#include "runtime/place/guard_layout.h"

namespace troupe::lm {

using namespace runtime;

namespace {

/// -1: it is no number.
std::int64_t number_in(const std::string& text) {
  std::int64_t n = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() && end == text.data() + text.size() ? n : -1;
}

/// Seconds until a version is copied and sent, of the place that takes longest. The costs are those of the machines:
/// what places of one machine share is divided there.
double guard_seconds(const Plan& plan, const GuardLayout& layout) {
  const LinkCost& link = plan.costs.inter_node;
  double seconds = 0;
  for (Rank r = 0; r < plan.workers(); ++r) {
    const auto bytes = static_cast<double>(layout.part(r).slot_bytes);
    const double copy_s = 2 * bytes / plan.costs.memory_bytes_per_s;  // read and written
    seconds = std::max(seconds, copy_s + link.delivery_s(layout.part(r).slot_bytes) + bytes / link.alone_bytes_per_s());
  }
  return seconds;
}

}  // namespace

Status check_guard_every(const std::string& text) {
  if (text == "auto" || text == "off" || number_in(text) >= guard_within_least) return {};
  return invalid(fmt::format("'{}': expected auto, off, or the steps that a loss may repeat, {} or more", text,
                             guard_within_least));
}

GuardChoice choose_guards(const JobArguments& a, const Plan& plan, double step_s) {
  if (a.guard_every == "off" || a.machines.count < 2 || !plan.keeps_version()) return {};
  std::vector<std::int32_t> machines;
  for (Rank r = 0; r < plan.workers(); ++r) machines.push_back(plan.costs.node(r));
  GuardChoice out;
  const GuardLayout layout(plan, machines);
  const double seconds = guard_seconds(plan, layout);
  const auto steps = std::max<std::int64_t>(1, std::llround(std::ceil(seconds / std::max(step_s, 1e-9))));
  out.within = a.guard_every == "auto" ? 2 * steps : number_in(a.guard_every);
  if (!needs_guards(plan, machines)) {  // but other machines may have to take the workers
    if (a.guard_every != "auto")
      out.warning = fmt::format(
          "--guard-every {} has no effect on this mesh: no machine alone has a part of the state, so none is guarded",
          a.guard_every);
    return out;
  }
  std::int64_t bytes = 0;
  for (Rank r = 0; r < plan.workers(); ++r) bytes = std::max(bytes, layout.bytes(r));
  const GuardRule rule = guard_within(out.within);
  out.summary = fmt::format("guards: a machine that is lost for good takes back {} at most",
                            counted(out.within, "step"));
  out.text = fmt::format(
      "guards      a machine that is lost for good takes back {} at most: every {} a version is copied and sent to the "
      "next machine,\n            whole within {}; predicted {} of steps of {}; memory {} a worker, beside the above\n",
      counted(out.within, "step"), rule.every == 1 ? "step" : counted(rule.every, "step"),
      counted(rule.window + 1, "step"), human_seconds(seconds), human_seconds(step_s), human_bytes(bytes));
  return out;
}

}  // namespace troupe::lm
