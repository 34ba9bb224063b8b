// What a run decides once, as it begins, and a process that goes on with what its agents have in memory must not decide
// anew: they keep the memory of that plan, and of no other. The run's run.json keeps it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/job/planning.h"

namespace troupe::lm {

struct KeptDecisions {
  std::string named;              ///< JobArguments::costs
  calibrate::CostsFile costs;     ///< by which stages are cut, and layouts found
  std::vector<Machine> machines;  ///< which the ranks fill
  runtime::RankOrder order = runtime::RankOrder::stage_by_stage;
  ChosenAhead ahead;
  bool operator==(const KeptDecisions&) const = default;
};

/// Those of a run that began with this plan, or has it now, and with what `prepared` says of an earlier one.
KeptDecisions decisions_of(const JobArguments& arguments, const Prepared& prepared, const runtime::Plan& plan);

/// Makes the plan of `prepared` the one that was decided upon. REQUIRES: it has these costs (prepare). Error (invalid):
/// the decisions are of a run with fewer places.
Status decide_as(Prepared& prepared, const JobArguments& arguments, const KeptDecisions& decided);

/// A line of the plan for people.
std::string decided_text(const KeptDecisions& decided);

/// Gives run.json the decisions, as `decided`.
void write_decisions(nlohmann::json& run, const KeptDecisions& decided);
/// None: run.json has none, or none that this program reads.
std::optional<KeptDecisions> read_decisions(const nlohmann::json& run);

/// Those of the run whose output folder the arguments name, of which the memory is to be used. None: it has none; or
/// the arguments name other costs now, which count, and of which a warning tells.
std::optional<KeptDecisions> decided_before(const JobArguments& arguments);

}  // namespace troupe::lm
