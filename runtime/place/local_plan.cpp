#include "runtime/place/local_plan.h"

#include <fmt/format.h>

#include <set>

#include "runtime/place/passes.h"

namespace troupe::runtime {

Expected<LocalPlan> local_plan(const Plan& plan, Rank rank) {
  LocalPlan local;
  local.rank = rank;
  local.stage = plan.stage_of(rank);
  if (local.stage < 0) return invalid(fmt::format("rank {} is on no stage of the plan", rank));
  local.dp_index = plan.dp_index(rank);
  local.leads = plan.leads(rank);
  LocalActors(plan, local).run();
  TROUPE_TRY(LocalRoutes(plan, local).run());
  LocalMemory(plan, local).run();
  return local;
}

std::vector<Rank> peers_of(const LocalPlan& local) {
  std::set<Rank> peers;
  for (const LocalActor& actor : local.actors)
    for (const auto& of_route : actor.peers) peers.insert(of_route.begin(), of_route.end());
  peers.erase(local.rank);
  return {peers.begin(), peers.end()};
}

Expected<std::int64_t> needed_bytes(const Plan& plan, std::int64_t enough) {
  std::int64_t bytes = 0;
  for (Rank r = 0; r < plan.workers() && bytes <= enough; ++r) {
    TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, r));
    bytes += local.pool_bytes + local.arena_bytes + local.copies_bytes;
  }
  return bytes;
}

}  // namespace troupe::runtime
