#include "runtime/session/plan_sums.h"

namespace troupe::runtime {

PlanSums::PlanSums(const Plan& plan, const SumState& begin) : state_(begin) {
  const auto training = plan.training();
  for (const std::int32_t p : training) {
    std::vector<std::int32_t> params;
    std::vector<PlanParam> of;
    for (std::size_t i = 0; i < plan.params.size(); ++i)
      if (const auto by = plan.params[i].program; by == p || (by < 0 && p == training.front())) {
        params.push_back(static_cast<std::int32_t>(i));
        of.push_back(plan.params[i]);
      }
    const std::string& name = plan.programs[static_cast<std::size_t>(p)].name;
    SumState own = begin;
    if (const auto known = begin.programs.find(name); known != begin.programs.end())
      own.updates = known->second.updates, own.void_steps = known->second.void_steps;
    else if (!begin.programs.empty()) own.void_steps = 0;  // those of another program
    programs_.push_back({name, std::move(params), SumScales(of, plan.spec(p).microbatches, own)});
  }
  if (!programs_.empty()) {
    exponents_.resize(plan.params.size());
    state_ = {};  // without parameters and programs that the plan does not have
  }
  gather();
}

void PlanSums::gather() {
  if (programs_.empty()) return;
  const SumState& first = programs_.front().scales.state();
  state_.updates = first.updates;
  state_.void_steps = first.void_steps;
  for (const Program& program : programs_) {
    const SumState& own = program.scales.state();
    for (const auto& [parameter, scale] : own.scales) state_.scales[parameter] = scale;
    if (programs_.size() > 1) state_.programs[program.name] = {own.updates, own.void_steps};
    const auto exponents = program.scales.exponents();
    for (std::size_t i = 0; i < exponents.size(); ++i)
      exponents_[static_cast<std::size_t>(program.params[i])] = exponents[i];
  }
}

UpdateCount PlanSums::count(std::size_t program) const {
  const SumState& own = programs_[program].scales.state();
  return {own.updates, own.void_steps};
}

std::vector<StepTerms> PlanSums::own(const Program& program, const std::vector<StepTerms>& terms) {
  std::vector<StepTerms> out;
  out.reserve(program.params.size());
  for (const std::int32_t param : program.params) out.push_back(terms[static_cast<std::size_t>(param)]);
  return out;
}

StepVerdict PlanSums::judge(std::size_t program, const std::vector<StepTerms>& terms) const {
  const Program& of = programs_[program];
  StepVerdict verdict = of.scales.judge(own(of, terms));
  if (verdict.param >= 0) verdict.param = of.params[static_cast<std::size_t>(verdict.param)];
  return verdict;
}

void PlanSums::commit(const std::vector<bool>& void_steps, const std::vector<StepTerms>& terms) {
  for (std::size_t i = 0; i < programs_.size(); ++i) {
    Program& of = programs_[i];
    if (void_steps[i]) of.scales.void_step(own(of, terms));
    else of.scales.commit(own(of, terms));
  }
  gather();
}

}  // namespace troupe::runtime
