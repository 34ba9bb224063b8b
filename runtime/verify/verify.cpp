#include "runtime/verify/verify.h"

#include <algorithm>
#include <set>

#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

/// All stages of a parameter train it or none does, and the norms of all take the same gradients. They are laid
/// out on the parameter's mesh, so the first replicas of their parts hold each element once in the job.
Status check_trained(const Plan& plan, std::int32_t param, const std::vector<Trained>& stages) {
  const std::string name = "parameter '" + plan.params[param].name + "' ";
  std::set<std::vector<std::int32_t>> gradients;
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    if (!plan.on_mesh(plan.tensors[plan.params[param].tensor].mesh, s)) continue;
    const Trained& trained = stages[static_cast<std::size_t>(s)];
    const auto it = trained.find(param);
    gradients.insert(it == trained.end() ? std::vector<std::int32_t>{} : it->second);
  }
  if (gradients.size() > 1 && gradients.count({})) return invalid(name + "is trained on some of its stages only");
  if (gradients.size() > 1) return invalid(name + "has norms on its stages that take other gradients than each other");
  if (gradients.count({}) == 0 && plan.params[param].program < 0)
    return invalid(name + "is trained, and no program trains it");
  if (gradients.count({}) > 0 && plan.params[param].program >= 0 && !plan.params[param].by_ops)
    return invalid(name + "is not trained, and program '" + plan.programs[plan.params[param].program].name +
                   "' trains it");
  return {};
}

/// The session waits until the places have closed a program: one that no actor closes would never be over, and a game
/// of it has nothing to wait for. Where nothing is trained the session begins no digest, snapshot or copy.
Status check_closers(const Plan& plan) {
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(plan.programs.size()); ++p) {
    const std::string& name = plan.programs[static_cast<std::size_t>(p)].name;
    bool closes = !plan.trains() && (name == "digest" || name == "snapshot" || name == "copy");
    for (const auto& role : plan.roles)
      for (const auto& a : role.actors) closes |= a.program == p && a.closes_step;
    if (!closes)
      return invalid("program '" + name +
                     "' has no actor that closes its step: give it an op or an actor, or leave it out");
  }
  return {};
}

constexpr std::int64_t few = 256;
bool has_many_microbatches(const ProgramSpec& spec) { return spec.stateful && spec.microbatches > few; }

/// The same plan with few microbatches of each program that keeps state: a text has one per token. The game of this
/// plan ends exactly where the game of the whole plan ends. All microbatches of a program that keeps state run at one
/// place of each stage, in order, and each takes the same tokens as the microbatch before (of a delay none at first:
/// one that few microbatches do not reach only has more slots): the plan is a marked graph, and one whose actors have
/// all acted has no circuit without a token (token_game.h). A feed that waits for reports begins to wait in the middle
/// of the few, or where it does in the whole plan if that is earlier.
Plan with_few_microbatches(Plan plan) {
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    ProgramSpec& spec = plan.programs[p].spec;
    if (!has_many_microbatches(spec)) continue;
    for (auto& role : plan.roles)
      for (auto& c : role.channels)
        if (c.program == static_cast<std::int32_t>(p) && c.at_once < spec.microbatches)
          c.at_once = std::min(c.at_once, few / 2);
    spec.microbatches = few;
  }
  return plan;
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

Status verify(const Plan& plan) {
  TROUPE_TRY(check_structure(plan));
  const bool many = std::any_of(plan.programs.begin(), plan.programs.end(),
                                [](const PlanProgram& p) { return has_many_microbatches(p.spec); });
  TROUPE_TRY((many ? play(with_few_microbatches(plan)) : play(plan)).status());
  return check_closers(plan);
}

}  // namespace troupe::runtime
