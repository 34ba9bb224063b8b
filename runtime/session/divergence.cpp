#include "runtime/session/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoint/manifest.h"

namespace troupe::runtime {

namespace {

Status diverged(const std::string& why) { return invalid(why + ": training has diverged"); }

}  // namespace

std::string name_term(std::int64_t step, std::int32_t microbatch, const std::string& parameter) {
  const bool known = microbatch != StepTerms::no_microbatch;
  return fmt::format("step {}{}: a gradient term of '{}'", step,
                     known ? fmt::format(": microbatch {}", microbatch) : "", parameter);
}

Status check_terms(const Plan& plan, std::int64_t step, const StepVerdict& verdict, std::int32_t void_steps,
                   double loss) {
  if (verdict.kind == StepVerdict::Kind::good) return {};
  const std::string term = name_term(step, verdict.microbatch, plan.params[verdict.param].name);
  if (verdict.kind == StepVerdict::Kind::not_finite)
    return diverged(term + " is not finite" + (std::isfinite(loss) ? "" : ", nor is the loss of that microbatch"));
  if (void_steps < void_steps_max) return {};
  return diverged(fmt::format("{} exceeds the range of its exact sum; {} steps in a row are void", term, void_steps));
}

Status check_step(std::int64_t step, double loss, double grad_norm) {
  if (std::isfinite(loss) && std::isfinite(grad_norm)) return {};
  return diverged(fmt::format("step {}: loss {:f}, gradient norm {:f}", step, loss, grad_norm));
}

Status check_digest(const Plan& plan, std::int64_t steps, std::int32_t not_finite) {
  if (not_finite < 0) return {};
  return diverged(fmt::format("parameter '{}' is not finite after step {}", plan.params[not_finite].name, steps));
}

Status check_saved(const Plan& plan, std::int64_t version, const std::vector<actors::Report>& reports) {
  using actors::Report;
  for (const auto kind : checkpoint::tensor_kinds) {
    std::set<std::string> ruined;
    for (const auto& r : reports)
      if (r.kind == Report::Kind::shard && r.values.size() > 1 && r.values[1] == static_cast<double>(kind))
        ruined.insert(r.name);
    if (ruined.empty()) continue;
    const auto first = std::find_if(plan.params.begin(), plan.params.end(),
                                    [&](const PlanParam& p) { return ruined.count(p.name) > 0; });
    const std::string of = kind == checkpoint::TensorKind::parameter ? ""
                                                                     : std::string("the ") + to_string(kind) + " of ";
    return diverged(fmt::format("{}parameter '{}' is not finite after step {}", of,
                                first == plan.params.end() ? *ruined.begin() : first->name, version));
  }
  return {};
}

}  // namespace troupe::runtime
