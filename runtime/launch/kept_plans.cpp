#include "runtime/launch/kept_plans.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/verify/verify.h"

namespace troupe::runtime {

KeptPlans::KeptPlans(std::shared_ptr<const Plan> first, std::string run, Replan replan)
    : run_(std::move(run)), replan_(std::move(replan)) {
  std::string digest = digest_of_plan(*first, run_);
  known_.push_back({std::move(first), std::move(digest)});
}

bool KeptPlans::are_of_run(std::span<const AgentPort::Joined> agents) {
  know(agents);
  return std::any_of(agents.begin(), agents.end(), [&](const AgentPort::Joined& agent) {
    const Kept& kept = agent.joins.kept;
    const auto is_it = [&](const Known& k) { return k.digest == kept.plan; };
    return !kept.places.empty() && std::any_of(known_.begin(), known_.end(), is_it);
  });
}

void KeptPlans::know(std::span<const AgentPort::Joined> agents) {
  for (const AgentPort::Joined& agent : agents) {
    const Kept& kept = agent.joins.kept;
    const bool is_known = std::any_of(known_.begin(), known_.end(),
                                      [&](const Known& k) { return k.digest == kept.plan; });
    if (kept.places.empty() || is_known || !replan_ || !tried_.insert(kept.widths).second) continue;
    auto plan = replan_(kept.widths);
    if (!plan.ok() || !verify(*plan).ok()) continue;  // it is of another run, say
    std::string digest = digest_of_plan(*plan, run_);
    known_.push_back({std::make_shared<const Plan>(*std::move(plan)), std::move(digest)});
  }
}

std::optional<KeptPlans::Newest> KeptPlans::newest(std::span<const AgentPort::Joined> agents, std::int64_t most) {
  know(agents);
  std::optional<Newest> best;
  for (const Known& known : known_) {
    auto kept = newest_kept_as(agents, *known.plan, known.digest, most);
    const auto rank = [](const KeptRun& k) { return std::pair(k.version, k.heard); };
    if (kept && (!best || rank(*kept) > rank(best->run))) best = {*std::move(kept), known.plan};
  }
  return best;
}

KeptThere KeptPlans::look(std::span<const AgentPort::Joined> agents, std::int64_t lines, bool needs_room) {
  const bool know_of_one = std::any_of(agents.begin(), agents.end(), [](const AgentPort::Joined& agent) {
    return agent.joins.kept.of.job != 0 || !agent.joins.kept.states.empty();
  });
  if (!know_of_one) return {};
  const auto kept = newest(agents, std::numeric_limits<std::int64_t>::max());
  if (!kept) return {.has_state = false};
  const std::int64_t least = kept->plan->keeps_copies() ? 0 : lines - 1;  // copies are of some steps before
  std::int64_t room = 0;
  for (const AgentPort::Joined& agent : agents) room += agent.joins.places;
  return {.has_state = kept->run.version >= least,
          .has_room = !needs_room || room >= kept->plan->workers(),
          .of_other_shape = kept->plan != known_.front().plan};
}

}  // namespace troupe::runtime
