// PlanSums: the scales of the gradient sums of all programs of a plan that train, each judged by itself: a void step of
// one is none of the others (SE-5 void steps, runtime/session/session.h).
#pragma once

#include <deque>
#include <vector>

#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

/// Programs are numbered as in Plan::training(); terms, exponents and verdicts are by index of Plan::params.
class PlanSums {
 public:
  /// Of a plan that does not train: `begin`, for good. REQUIRES: `plan` outlives this object.
  PlanSums(const Plan& plan, const SumState& begin);

  /// That of all programs.
  const SumState& state() const { return state_; }
  /// By index of Plan::params; none where the plan does not train.
  const std::vector<std::int32_t>& exponents() const { return exponents_; }
  /// Updates and void steps of a program.
  UpdateCount count(std::size_t program) const;

  StepVerdict judge(std::size_t program, const std::vector<StepTerms>& terms) const;
  /// The step is committed; `void_steps`: by program, whether it is void there. REQUIRES: the verdict of a program is
  /// overflow where its step is void, else good.
  void commit(const std::vector<bool>& void_steps, const std::vector<StepTerms>& terms);

 private:
  struct Program {
    std::string name;
    std::vector<std::int32_t> params;  ///< that it trains; of the first: and those that none trains
    SumScales scales;
  };
  static std::vector<StepTerms> own(const Program& program, const std::vector<StepTerms>& terms);
  /// Brings `state_` and `exponents_` up to the programs' scales.
  void gather();

  std::deque<Program> programs_;
  SumState state_;
  std::vector<std::int32_t> exponents_;
};

}  // namespace troupe::runtime
