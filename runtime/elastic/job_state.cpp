#include "runtime/elastic/job_state.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace troupe::runtime {

std::string to_text(const JobState& s, std::int64_t now_ns) {
  std::string text = fmt::format("step {} of {}, generation {}, {}{}{}{}\n", s.committed, s.steps, s.generation,
                                 s.phase, s.shape.empty() ? "" : ", as " + s.shape,
                                 s.copied < 0 ? "" : fmt::format(", newest copy of step {}", s.copied),
                                 !s.guards       ? ""
                                 : s.guarded < 0 ? ", no guard yet"
                                                 : fmt::format(", newest guard of step {}", s.guarded));
  std::size_t width = 0;  // of the names of machines
  for (const JobState::Place& p : s.places) width = std::max(width, p.machine.size());
  const auto machine = [&](const std::string& name) {
    return width == 0 ? "" : fmt::format("{:<{}}", name, std::max(width, sizeof "machine" - 1) + 2);
  };
  text += fmt::format("{:<8}{:<6}{:<7}{}{:<9}{:<9}{}\n", "worker", "rank", "stage", machine("machine"), "pid", "",
                      "heard");
  const auto number = [](std::int64_t n) { return n < 0 ? std::string("-") : fmt::to_string(n); };
  std::string gone;
  for (const JobState::Place& p : s.places) {
    if (p.gone) {
      gone += fmt::format("{}worker {}{}", gone.empty() ? "" : ", ", p.place,
                          p.machine.empty() ? "" : " of " + p.machine);
      continue;
    }
    text += fmt::format("{:<8}{:<6}{:<7}{}{:<9}{:<9}{}{}\n", p.place, number(p.rank), number(p.stage),
                        machine(p.machine), number(p.pid), p.does,
                        p.heard_ns < 0 || p.heard_ns > now_ns
                            ? "-"
                            : fmt::format("{:.1f} s ago", static_cast<double>(now_ns - p.heard_ns) * 1e-9),
                        p.slow_times > 0 ? fmt::format(", {:.1f} times as slow as it should be", p.slow_times) : "");
  }
  if (!gone.empty()) text += "gone: " + gone + "\n";
  if (!s.idle_machines.empty()) text += fmt::format("without a worker: {}\n", fmt::join(s.idle_machines, ", "));
  const char* const last = s.incidents > 0 ? ", the last of them, or change: " : ", the last change: ";
  text += fmt::format("incidents {}{}\n", s.incidents, s.last_incident.empty() ? "" : last + s.last_incident);
  return text + s.waits_for;
}

}  // namespace troupe::runtime
