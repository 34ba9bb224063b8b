#include "runtime/simulate/game_period.h"

#include <algorithm>

namespace troupe::runtime {

void CycleSearch::see(std::int64_t step, std::int64_t microbatch, std::int64_t now_ns,
                      std::vector<std::int64_t> state) {
  if (step != step_) seen_.clear();
  step_ = step;
  if (has_found(step)) return;
  // The latest first: the shortest cycle.
  const auto same = std::find_if(seen_.rbegin(), seen_.rend(), [&](const Seen& s) { return s.state == state; });
  if (same != seen_.rend()) cycles_.push_back({step, same->now_ns, now_ns, microbatch - same->microbatch});
  else seen_.push_back({microbatch, now_ns, std::move(state)});
}

bool repeat(const std::vector<Cycle>& cycles, std::int64_t steps, std::int64_t microbatches, std::int32_t step_program,
            std::vector<PlayedAct>& acts, std::vector<std::int64_t>& times_ns) {
  if (static_cast<std::int64_t>(cycles.size()) != steps) return false;
  for (const auto& c : cycles)
    if (c.microbatches < 1 || microbatches % c.microbatches != 0) return false;
  auto times = [&](const Cycle& c) { return microbatches / c.microbatches; };
  auto later = [&](std::int64_t ns) {  // delay of an event at `ns`, if all cycles before it are repeated
    std::int64_t delay = 0;
    for (const auto& c : cycles)
      if (ns > c.to_ns) delay += times(c) * (c.to_ns - c.from_ns);
    return delay;
  };
  std::vector<PlayedAct> out;
  auto add = [&](PlayedAct a, std::int64_t delay_ns, std::int64_t further) {
    a.begin_ns += delay_ns;
    a.end_ns += delay_ns;
    if (a.microbatch >= 0) a.microbatch += static_cast<std::int32_t>(further);
    out.push_back(a);
  };
  for (const auto& a : acts) {
    const std::int64_t delay = later(a.begin_ns);
    const auto own = std::find_if(cycles.begin(), cycles.end(), [&](const Cycle& c) { return c.step == a.step; });
    const bool counts = a.actor->program == step_program && own != cycles.end();
    add(a, delay, counts && a.begin_ns > own->to_ns ? microbatches : 0);
    for (const auto& c : cycles)
      if (a.begin_ns > c.from_ns && a.begin_ns <= c.to_ns)
        for (std::int64_t i = 1; i <= times(c); ++i) add(a, delay + i * (c.to_ns - c.from_ns), i * c.microbatches);
  }
  acts = std::move(out);
  for (auto& ns : times_ns) ns += later(ns);
  return true;
}

}  // namespace troupe::runtime
