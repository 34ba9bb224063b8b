#include "runtime/launch/kept_run.h"

#include <algorithm>

#include "runtime/elastic/inventory.h"
#include "runtime/plan/plan_io.h"

namespace troupe::runtime {

namespace {

/// What agents have kept of one job. Of two that say they have the same place, or rank, the first counts: that of the
/// later generation.
struct KeptOfJob {
  std::map<PlaceId, Rank> ranks;
  std::map<PlaceId, WholeVersions> left;
  std::map<PlaceId, std::string> machines;
  std::map<std::int64_t, SumState> sums;  // by version
  std::uint32_t generation = 0;
};

void add(const Joins& joins, const Plan& plan, KeptOfJob& all) {
  all.generation = std::max(all.generation, joins.kept.of.number);
  for (const KeptPlace& kept : joins.kept.places) {
    const bool has_rank = std::any_of(all.ranks.begin(), all.ranks.end(),
                                      [&](const auto& other) { return other.second == kept.rank; });
    if (kept.rank >= plan.workers() || has_rank || !all.ranks.emplace(kept.place, kept.rank).second) continue;
    all.left[kept.place] = kept.left;
    all.machines[kept.place] = joins.machine;
  }
  for (const auto& [version, bytes] : joins.kept.states)
    if (auto sums = decode_sums(*bytes); sums.ok()) all.sums.insert_or_assign(version, *std::move(sums));
}

}  // namespace

std::string digest_of_plan(const Plan& plan, const std::string& run) {
  Plan of_any_machines = plan;
  of_any_machines.costs = {};
  for (PlanRole& role : of_any_machines.roles)
    for (PlanActor& actor : role.actors) actor.cost_s = 0;
  for (PlanExchange& exchange : of_any_machines.exchanges) exchange.seconds = exchange.latency_s = 0;
  return digest_of(encode(ToWorker(PlanBytes{write_plan(of_any_machines)})), run);
}

std::vector<PlaceId> places_of(const KeptRun& kept, Rank ranks) {
  constexpr PlaceId none{-1};
  std::vector<PlaceId> places(static_cast<std::size_t>(ranks), none);
  for (const auto& [place, rank] : kept.ranks) places[static_cast<std::size_t>(rank)] = place;
  std::int32_t next = static_cast<std::int32_t>(kept.ranks.rbegin()->first) + 1;
  for (PlaceId& place : places)
    if (place == none) place = PlaceId{next++};
  return places;
}

std::optional<KeptRun> newest_kept(std::span<const AgentPort::Joined> agents, const Plan& plan, const std::string& run,
                                   std::int64_t most) {
  return newest_kept_as(agents, plan, digest_of_plan(plan, run), most);
}

std::optional<KeptRun> newest_kept_as(std::span<const AgentPort::Joined> agents, const Plan& plan,
                                      const std::string& digest, std::int64_t most) {
  std::map<std::uint64_t, KeptOfJob> jobs;
  std::vector<const Joins*> latest_first;
  for (const AgentPort::Joined& agent : agents)
    if (!agent.joins.kept.places.empty() && agent.joins.kept.plan == digest) latest_first.push_back(&agent.joins);
  std::stable_sort(latest_first.begin(), latest_first.end(),
                   [](const Joins* a, const Joins* b) { return a->kept.of.number > b->kept.of.number; });
  for (const Joins* joins : latest_first) add(*joins, plan, jobs[joins->kept.of.job]);
  std::optional<KeptRun> best;
  for (auto& [job, remains] : jobs) {
    Inventory inventory(plan);
    for (const auto& [place, rank] : remains.ranks) inventory.holds(rank, remains.left.at(place));
    const auto newest = inventory.newest(
        [&](std::int64_t v) { return v <= most && remains.sums.count(v) > 0 && (!best || v > best->version); });
    if (newest)
      best = {*newest,      remains.sums.at(*newest), {job, remains.generation}, remains.ranks,
              remains.left, remains.machines,         remains.generation};
  }
  // Agents with nothing that it can use may have heard of a later generation, for another plan, say.
  for (const AgentPort::Joined& agent : agents)
    if (best && agent.joins.kept.of.job == best->of.job)
      best->of.number = std::max(best->of.number, agent.joins.kept.of.number);
  return best;
}

}  // namespace troupe::runtime
