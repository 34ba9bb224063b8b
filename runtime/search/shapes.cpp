#include "runtime/search/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/place/local_plan.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"

namespace troupe::runtime {

namespace {

/// By stage: the places of a replica.
StageWidths replica_places(const Plan& plan) {
  StageWidths model;
  for (std::int32_t s = 0; s < plan.stages; ++s) model.push_back(plan.meshes[s].size() / plan.dp_width(s));
  return model;
}

bool all_equal(const StageWidths& widths) {
  return std::all_of(widths.begin(), widths.end(), [&](std::int64_t w) { return w == widths[0]; });
}

/// Whether data of the step programs joins all stages, straight or through others: else they are chains of several
/// models, each of as many stages as it has.
bool is_one_pipeline(const Plan& plan) {
  std::vector<std::int32_t> first(static_cast<std::size_t>(plan.stages));
  std::iota(first.begin(), first.end(), 0);
  for (const PlanExchange& x : plan.exchanges) {
    if (!plan.is_step_program(x.program) || x.rate != Rate::microbatch || plan.reduces(x)) continue;
    for (const PlanExchange::Pair& m : x.moves) {
      auto joined = plan.stages_on(plan.tensors[m.from].mesh);
      for (const std::int32_t s : plan.stages_on(plan.tensors[m.to].mesh)) joined.push_back(s);
      for (const std::int32_t s : joined) {
        const auto [least, most] = std::minmax(first[joined[0]], first[s]);
        std::replace(first.begin(), first.end(), std::int32_t{most}, std::int32_t{least});
      }
    }
  }
  return std::all_of(first.begin(), first.end(), [](std::int32_t s) { return s == 0; });
}

std::int64_t units_of(const Plan& plan) {
  std::set<std::string> units;
  for (const PlanRole& role : plan.roles) units.insert(role.units.begin(), role.units.end());
  return std::ssize(units);
}

std::string step_text(double seconds) { return fmt::format("a step of {:.3g} ms", seconds * 1e3); }

}  // namespace

std::string shape_text(const StageWidths& dp, const StageWidths& model) {
  const auto stages = std::ssize(dp);
  std::string text;
  const auto add = [&](const std::string& axis) { text += (text.empty() ? "" : ",") + axis; };
  if (!all_equal(dp)) add(fmt::format("dp={}", fmt::join(dp, "/")));
  else if (dp[0] > 1 || (stages == 1 && model[0] == 1)) add(fmt::format("dp={}", dp[0]));
  if (stages > 1) add(fmt::format("pp={}", stages));
  if (!all_equal(model)) add(fmt::format("tp={}", fmt::join(model, "/")));
  else if (model[0] > 1) add(fmt::format("tp={}", model[0]));
  return text;
}

StageWidths widths_of(const Plan& plan) {
  StageWidths widths;
  for (std::int32_t s = 0; s < plan.stages; ++s) widths.push_back(plan.dp_width(s));
  return widths;
}

std::string shape_of(const Plan& plan) { return shape_text(widths_of(plan), replica_places(plan)); }

std::vector<StageWidths> shapes_for(const Plan& before, std::int64_t places) {
  const StageWidths replica = replica_places(before), now = widths_of(before);
  std::vector<StageWidths> shapes;
  const auto take = [&](const StageWidths& dp) {
    if (std::find(shapes.begin(), shapes.end(), dp) == shapes.end()) shapes.push_back(dp);
  };
  const auto fits = [&](const StageWidths& dp) {
    return std::inner_product(dp.begin(), dp.end(), replica.begin(), std::int64_t{0}) <= places;
  };
  if (fits(now)) take(now);
  for (std::size_t s = 0; s < now.size(); ++s) {
    StageWidths less = now;
    do --less[s];
    while (less[s] > 0 && !fits(less));
    if (less[s] > 0) take(less);
  }
  StageWidths least = now;  // of the widest stage one replica less, again and again; of equal ones the largest replica
  const auto widest = [&] {
    std::size_t at = 0;
    for (std::size_t s = 1; s < least.size(); ++s)
      if (std::pair(least[s], replica[s]) > std::pair(least[at], replica[at])) at = s;
    return at;
  };
  while (!fits(least) && least[widest()] > 1) --least[widest()];
  if (fits(least)) take(least);
  if (!all_equal(replica) || !is_one_pipeline(before)) return shapes;
  std::int64_t microbatches = before.step_spec().microbatches;  // of each program, so that it may run on any stage
  for (const std::int32_t p : before.training()) microbatches = std::min(microbatches, before.spec(p).microbatches);
  const std::int64_t replicas = places / replica[0];
  for (std::int64_t stages = 1; stages <= std::min(replicas, units_of(before)); ++stages) {
    const std::int64_t width = std::min(replicas / stages, microbatches);
    const std::int64_t more = width == microbatches ? 0 : replicas % stages;
    StageWidths equal(static_cast<std::size_t>(stages), width), front = equal, back = equal;
    for (std::int64_t i = 0; i < more; ++i) ++front[i], ++back[stages - 1 - i];
    for (const StageWidths& dp : {front, back, equal}) take(dp);
  }
  return shapes;
}

ChosenPlan same_shape(const Plan& plan) { return {std::make_shared<const Plan>(plan), shape_of(plan), 0, {}}; }

Expected<ChosenPlan> plan_of(const StageWidths& dp, const Replan& replan, std::optional<std::int64_t> bytes_max) {
  TROUPE_ASSIGN(Plan plan, replan(dp));
  if (widths_of(plan) != dp)
    return invalid(fmt::format("stages of dp {} were asked for, and the plan has {}", fmt::join(dp, "/"),
                               fmt::join(widths_of(plan), "/")));
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
  const std::string text = shape_of(plan);
  return ChosenPlan{std::make_shared<const Plan>(std::move(plan)), text, step_s, {}};
}

Expected<ChosenPlan> choose_shape(const Plan& before, std::int64_t places, const Replan& replan,
                                  std::optional<std::int64_t> bytes_max) {
  std::vector<ChosenPlan> legal;
  std::vector<std::string> others;
  for (const StageWidths& dp : shapes_for(before, places)) {
    auto tried = plan_of(dp, replan, bytes_max);
    if (tried.ok()) legal.push_back(*std::move(tried));
    else others.push_back(shape_text(dp, replica_places(before)) + ": " + tried.status().message());
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
