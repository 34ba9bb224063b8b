// KeptRun: what agents have kept of a job whose process is lost: the memory of its places, and the state of its sums. A
// job that begins anew goes on from it.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/agents/agent_port.h"
#include "runtime/elastic/place_id.h"
#include "runtime/session/control.h"
#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

struct KeptRun {
  std::int64_t version = 0;  ///< lies whole in memory
  SumState sums;             ///< at that version
  JobGeneration of;          ///< the last one of the job that was lost, of which any agent has heard
  std::map<PlaceId, Rank> ranks;
  std::map<PlaceId, WholeVersions> left;
  std::map<PlaceId, std::string> machines;  ///< whose agent has it: another one may have kept a place of this number
  std::uint32_t heard = 0;                  ///< the last generation of which an agent with this memory has heard
};

/// The places of a job that goes on from it, by rank: those that were kept, and for the other ranks new numbers behind
/// them, in order.
std::vector<PlaceId> places_of(const KeptRun& kept, Rank ranks);

/// TellPlan::run: of this plan but for what it predicts, which depends on the machines that it is for. `run`:
/// JobOptions::identity.
std::string digest_of_plan(const Plan& plan, const std::string& run);

/// The newest version, at most `most`, that agents have kept together of one job with this plan and of this run
/// (JobOptions::identity). None: they have none.
std::optional<KeptRun> newest_kept(std::span<const AgentPort::Joined> agents, const Plan& plan, const std::string& run,
                                   std::int64_t most);
/// The same; `digest`: digest_of_plan, which takes long for a large plan.
std::optional<KeptRun> newest_kept_as(std::span<const AgentPort::Joined> agents, const Plan& plan,
                                      const std::string& digest, std::int64_t most);

}  // namespace troupe::runtime
