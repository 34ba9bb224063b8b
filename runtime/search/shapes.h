// Shapes: with how many stages, and how many replicas of each, a job goes on that has lost places for good. Model axes
// stay: a change of tp would change bits (NU-3 model axes). The shapes are compiled, and the token game plays a step of
// each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// The dp width of each stage.
using StageWidths = std::vector<std::int64_t>;
/// Compiles the job's graph for stages of these dp widths, with all other CompileOptions, and model axes, as for the
/// job's first plan. Their number may be another one than that of the first plan where this is one pipeline on equal
/// model axes. Error: no plan has this shape.
using Replan = std::function<Expected<Plan>(const StageWidths& dp)>;

/// "dp=2/1,pp=2,tp=2": every axis wider than 1, "dp=1" where there is none. `model`: by stage, the places of a replica.
std::string shape_text(const StageWidths& dp, const StageWidths& model);

/// Those of a plan.
StageWidths widths_of(const Plan& plan);
std::string shape_of(const Plan& plan);

/// The shapes to weigh for a job of plan `before` that has `places` places left, in a fixed order: that of `before`
/// with fewer replicas of a stage, or of the widest stages, then of each number of stages those that use most places,
/// and the one of equal widths; of stages that are no one pipeline on equal model axes the number stays.
std::vector<StageWidths> shapes_for(const Plan& before, std::int64_t places);

/// With what a job goes on.
struct ChosenPlan {
  std::shared_ptr<const Plan> plan;
  std::string shape;                 ///< for people
  double step_s = 0;                 ///< predicted
  std::vector<std::string> others;   ///< that were weighed, and why each lost
  std::vector<ChosenPlan> slower{};  ///< of them the legal ones, by their steps, which have no others of their own
};

/// A plan once more, for other places.
ChosenPlan same_shape(const Plan& plan);

/// The plan of a shape, which has been verified, and the predicted time of its step. Error: it does not compile, verify
/// or play, or needs more than `bytes_max` on all places together (none: as much as it likes).
Expected<ChosenPlan> plan_of(const StageWidths& dp, const Replan& replan, std::optional<std::int64_t> bytes_max);

/// The shape whose step is predicted to be shortest, of those that compile, verify and need no more than `bytes_max` on
/// all places together (none: as much as they like); of equal ones the first. Error: there is none, with what was wrong
/// with each.
Expected<ChosenPlan> choose_shape(const Plan& before, std::int64_t places, const Replan& replan,
                                  std::optional<std::int64_t> bytes_max = std::nullopt);

}  // namespace troupe::runtime
