#include "runtime/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

/// "12 MiB": whole units, rounded up (what is needed) or down (what there is).
std::string in_units(std::int64_t bytes, bool up) {
  const int shift = bytes >= (1 << 20) ? 20 : 10;
  return fmt::format("{}{}", (bytes + (up ? (std::int64_t{1} << shift) - 1 : 0)) >> shift,
                     shift == 20 ? " MiB" : " KiB");
}

/// All stages of a parameter train it or none does, and the norms of all take the same gradients. These are laid out on
/// the parameter's mesh, so the first replicas of their parts hold each element once in the job.
Status check_trained(const Plan& plan, std::int32_t param, const std::vector<Trained>& stages) {
  const std::string name = "parameter '" + plan.params[param].name + "' ";
  std::set<std::vector<std::int32_t>> gradients;
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    if (!holds(plan, plan.tensors[plan.params[param].tensor].mesh, s)) continue;
    const Trained& trained = stages[static_cast<std::size_t>(s)];
    const auto it = trained.find(param);
    gradients.insert(it == trained.end() ? std::vector<std::int32_t>{} : it->second);
  }
  if (gradients.size() > 1 && gradients.count({})) return invalid(name + "is trained on some of its stages only");
  if (gradients.size() > 1) return invalid(name + "has norms on its stages that take other gradients than each other");
  if (!gradients.count({}) && !plan.trains) return invalid(name + "is trained, and the plan does not train");
  return {};
}

}  // namespace

Status check_structure(const Plan& plan) {
  TROUPE_TRY(check_tables(plan));
  if (plan.roles.size() != static_cast<std::size_t>(plan.stages)) return invalid("the plan has no role for some stage");
  std::vector<Trained> stages;
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    TROUPE_ASSIGN(Trained trained, check_role(plan, s));
    stages.push_back(std::move(trained));
  }
  for (std::size_t p = 0; p < plan.params.size(); ++p)
    TROUPE_TRY(check_trained(plan, static_cast<std::int32_t>(p), stages));
  return {};
}

Status verify(const Plan& plan, std::int64_t memory_bytes_max) {
  TROUPE_TRY(check_structure(plan));
  auto result = play(plan);
  if (!result.ok()) return result.status();
  if (memory_bytes_max <= 0) return {};
  // Every dp coordinate counts, played or not.
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    std::set<std::int64_t> seen;
    for (Rank rank : plan.meshes[s].ranks) {
      if (!seen.insert(plan.dp_index(rank)).second) continue;
      TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, rank));
      if (local.memory.total() > memory_bytes_max)
        return Status(Code::exhausted,
                      fmt::format("the plan needs {} on rank {} and there are {}: use a smaller microbatch, more "
                                  "stages (pp) or a higher ZeRO stage",
                                  in_units(local.memory.total(), true), rank, in_units(memory_bytes_max, false)));
    }
  }
  return {};
}

}  // namespace troupe::runtime
