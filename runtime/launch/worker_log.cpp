#include "runtime/launch/worker_log.h"

#include <fmt/format.h>

#include <set>

#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "runtime/place/local_plan.h"

namespace troupe::runtime {

void log_graph(const Plan& plan, Rank rank) {
  if (!logs(LogLevel::debug)) return;
  const auto local = local_plan(plan, rank);
  if (!local.ok()) return;  // Worker::create says why
  const PlanRole& role = plan.roles[static_cast<std::size_t>(local->stage)];
  std::map<PlanActor::Kind, std::int64_t> kinds;
  for (const LocalActor& a : local->actors) ++kinds[role.actors[a.actor].kind];
  std::string text;
  for (const auto& [kind, n] : kinds) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(kind), n);
  log_debug(fmt::format("builds its part of stage {}: {} ({}), {}, {} of memory", local->stage,
                        counted(std::ssize(local->actors), "actor"), text,
                        counted(std::ssize(local->channels), "channel"), human_bytes(local->pool_bytes)));
  for (const LocalActor& a : local->actors) {
    const PlanActor& actor = role.actors[a.actor];
    if (actor.exchange < 0) continue;
    std::set<Rank> peers;
    for (const auto& route : a.peers) peers.insert(route.begin(), route.end());
    peers.erase(rank);
    log_debug("exchange '" + plan.exchanges[actor.exchange].name + "' with rank" + (peers.size() == 1 ? " " : "s ") +
              ranges({peers.begin(), peers.end()}));
  }
}

void log_order(const Plan& plan, const ToWorker& order) {
  if (!logs(LogLevel::debug)) return;
  if (const auto* begin = std::get_if<BeginRun>(&order)) {
    log_debug(fmt::format("begins with version {}", begin->step));
  } else if (const auto* go = std::get_if<Go>(&order);
             go && go->program >= 0 && go->program < std::ssize(plan.programs)) {
    const std::string text = fmt::format("program '{}' begins, step {}", plan.programs[go->program].name, go->step);
    if (plan.trains() && plan.is_step_program(go->program)) log_trace(text);
    else log_debug(text);
  } else if (const auto* commit = std::get_if<CommitStep>(&order)) {
    log_trace(fmt::format("step {} is committed", commit->step));
  }
}

}  // namespace troupe::runtime
