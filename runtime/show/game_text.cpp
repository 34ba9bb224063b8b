#include <fmt/format.h>

#include <set>

#include "devices/base/text_table.h"
#include "runtime/show/plan_text.h"

namespace troupe::runtime {

std::vector<std::vector<std::string>> stage_orders(const Plan& plan, const GameResult& result) {
  std::vector<Rank> speaker(plan.stages, -1);
  for (Rank r : result.places)
    if (auto& s = speaker[plan.stage_of(r)]; s < 0) s = r;
  std::vector<std::vector<std::string>> orders(plan.stages);
  std::vector<std::set<std::string>> seen(plan.stages);
  for (const auto& a : result.acts) {  // in order of their begin
    const auto stage = plan.stage_of(a.rank);
    if (!plan.is_step_program(a.program) || a.step != 0 || a.microbatch < 0 || a.shared || a.rank != speaker[stage])
      continue;
    std::string name = fmt::format("{}{}", "FBW"[static_cast<int>(a.pass)], a.microbatch);
    if (a.program != plan.step_program()) name = plan.programs[a.program].name + "." + name;
    if (plan.pipeline.chunks > 1) name += fmt::format(".{}", a.virtual_stage / plan.stages);
    if (seen[stage].insert(name).second) orders[stage].push_back(name);
  }
  return orders;
}

std::string game_text(const Plan& plan, const GameResult& result) {
  std::string out = "simulated: " + counted(plan.stages, "stage");
  for (const PlanProgram& p : plan.programs)
    if (p.steps) out += ", " + counted(p.spec.microbatches, "microbatch") + " a step, program '" + p.name + "'";
  out += "\n\n";
  const auto orders = stage_orders(plan, result);
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    out += fmt::format("stage {}", s);
    if (plan.dp_width(s) > 1) out += fmt::format(" (dp 0 of {})", plan.dp_width(s));
    out += ":";
    // The middle of a long step repeats itself.
    constexpr std::size_t shown = 40, tail = 8;
    const bool all = orders[s].size() <= shown + tail;
    for (std::size_t i = 0; i < orders[s].size(); ++i) {
      if (!all && i == shown) out += " ...", i = orders[s].size() - tail;
      out += " " + orders[s][i];
    }
    out += orders[s].empty() ? " no work on the compute stream\n" : "\n";
  }
  std::string stash;
  for (auto n : result.peak_stash) stash += fmt::format("{}{}", stash.empty() ? "" : " ", n);
  out += "\nmakespan    " + human_seconds(result.makespan_s, 4) + " (forward and backward of the first step)\n";
  out += "bubble      " + human_percent(result.bubble);
  if (plan.has_one_step_program())
    out += " (published for " + to_string(plan.pipeline) + ": " + human_percent(result.published_bubble) + ")";
  out += "\n";
  out += "peak stash  " + stash + " (microbatches between forward and the last of their gradients, per stage)\n";
  out += "compute     " + human_seconds(result.compute_s, 4) + " (of the busiest place's forward and backward work)\n";
  out += "messages    " + human_seconds(result.messages_s, 4) +
         " (on the busiest link or interface, per step of training, without latencies)\n";
  out += "step        " + human_seconds(result.step_s, 4) + " (commit to commit)\n";
  return out;
}

}  // namespace troupe::runtime
