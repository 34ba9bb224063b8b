#include "runtime/search/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/place/local_plan.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"

namespace troupe::runtime {

namespace {

std::int64_t model_of(const Plan& plan) { return plan.meshes[0].size() / plan.dp_width(0); }

std::int64_t units_of(const Plan& plan) {
  std::set<std::string> units;
  for (const PlanRole& role : plan.roles) units.insert(role.units.begin(), role.units.end());
  return std::ssize(units);
}

std::int64_t sum_of(const StageWidths& dp) { return std::accumulate(dp.begin(), dp.end(), std::int64_t{0}); }

std::string step_text(double seconds) { return fmt::format("a step of {:.3g} ms", seconds * 1e3); }

}  // namespace

std::string shape_text(const StageWidths& dp, std::int64_t model) {
  const bool equal = std::all_of(dp.begin(), dp.end(), [&](std::int64_t w) { return w == dp[0]; });
  const auto stages = std::ssize(dp);
  std::string text;
  const auto add = [&](const std::string& axis) { text += (text.empty() ? "" : ",") + axis; };
  if (!equal) add(fmt::format("dp={}", fmt::join(dp, "/")));
  else if (dp[0] > 1 || (stages == 1 && model == 1)) add(fmt::format("dp={}", dp[0]));
  if (stages > 1) add(fmt::format("pp={}", stages));
  if (model > 1) add(fmt::format("tp={}", model));
  return text;
}

StageWidths widths_of(const Plan& plan) {
  StageWidths widths;
  for (std::int32_t s = 0; s < plan.stages; ++s) widths.push_back(plan.dp_width(s));
  return widths;
}

std::string shape_of(const Plan& plan) { return shape_text(widths_of(plan), model_of(plan)); }

std::vector<StageWidths> shapes_for(const Plan& before, std::int64_t places) {
  const std::int64_t replicas = places / model_of(before);
  std::int64_t microbatches = before.step_spec().microbatches;
  for (const std::int32_t p : before.training()) microbatches = std::min(microbatches, before.spec(p).microbatches);
  std::vector<StageWidths> shapes;
  const auto add = [&](const StageWidths& dp) {
    const bool fits = sum_of(dp) <= replicas &&
                      std::all_of(dp.begin(), dp.end(), [&](std::int64_t w) { return w >= 1 && w <= microbatches; });
    if (fits && std::find(shapes.begin(), shapes.end(), dp) == shapes.end()) shapes.push_back(dp);
  };
  const StageWidths now = widths_of(before);
  add(now);
  for (std::size_t s = 0; s < now.size(); ++s) {
    StageWidths less = now;
    --less[s];
    add(less);
  }
  for (std::int64_t stages = 1; stages <= std::min(replicas, units_of(before)); ++stages) {
    const std::int64_t width = std::min(replicas / stages, microbatches);
    const std::int64_t more = width == microbatches ? 0 : replicas % stages;
    StageWidths equal(static_cast<std::size_t>(stages), width), front = equal, back = equal;
    for (std::int64_t i = 0; i < more; ++i) ++front[i], ++back[stages - 1 - i];
    add(front);
    add(back);
    add(equal);
  }
  return shapes;
}

ChosenPlan same_shape(const Plan& plan) { return {std::make_shared<const Plan>(plan), shape_of(plan), 0, {}}; }

Expected<ChosenPlan> plan_of(const StageWidths& dp, const Replan& replan, std::optional<std::int64_t> bytes_max) {
  TROUPE_ASSIGN(Plan plan, replan(dp));
  TROUPE_TRY(verify(plan));
  if (bytes_max) {
    TROUPE_ASSIGN(const std::int64_t bytes, needed_bytes(plan));
    if (bytes > *bytes_max)
      return Status(Code::exhausted, fmt::format("its places need {} bytes, of {}", bytes, *bytes_max));
  }
  GameOptions training;
  training.every_program = false;
  TROUPE_ASSIGN(const GameResult game, play(plan, training));
  const double step_s = game.step_s;
  const std::string text = shape_text(dp, model_of(plan));
  return ChosenPlan{std::make_shared<const Plan>(std::move(plan)), text, step_s, {}};
}

Expected<ChosenPlan> choose_shape(const Plan& before, std::int64_t places, const Replan& replan,
                                  std::optional<std::int64_t> bytes_max) {
  std::vector<ChosenPlan> legal;
  std::vector<std::string> others;
  for (const StageWidths& dp : shapes_for(before, places)) {
    auto tried = plan_of(dp, replan, bytes_max);
    if (tried.ok()) legal.push_back(*std::move(tried));
    else others.push_back(shape_text(dp, model_of(before)) + ": " + tried.status().message());
  }
  if (legal.empty()) {
    std::string why = fmt::format("no shape of this job runs on {} places", places);
    for (const std::string& other : others) why += "\n  " + other;
    return Status(Code::unavailable, why);
  }
  std::stable_sort(legal.begin(), legal.end(),
                   [](const ChosenPlan& a, const ChosenPlan& b) { return a.step_s < b.step_s; });
  ChosenPlan best = std::move(legal.front());
  legal.erase(legal.begin());
  for (const ChosenPlan& slower : legal) others.push_back(slower.shape + ": " + step_text(slower.step_s));
  best.others = std::move(others);
  best.slower = std::move(legal);
  return best;
}

}  // namespace troupe::runtime
