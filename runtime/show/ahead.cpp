#include "runtime/show/ahead.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"
#include "devices/base/text_table.h"
#include "runtime/place/local_plan.h"
#include "runtime/simulate/token_game.h"
#include "runtime/verify/verify.h"

namespace troupe::runtime {

namespace {

/// Whether microbatches of training wait for exchanges that begin and end on one stage.
bool waits_inside_stages(const Plan& plan) {
  return std::any_of(plan.exchanges.begin(), plan.exchanges.end(), [&](const PlanExchange& x) {
    const PlanTensor &from = plan.tensors[x.moves[0].from], &to = plan.tensors[x.moves[0].to];
    return plan.is_step_program(x.program) && x.rate != Rate::step && from.mesh == to.mesh;
  });
}

Expected<AheadTried> try_plan(const Plan& plan, std::int64_t bytes_max) {
  TROUPE_TRY(check_structure(plan));
  GameOptions training;
  training.every_program = false;
  TROUPE_ASSIGN(const GameResult game, play(plan, training));
  AheadTried out{plan.pipeline.ahead, plan.pipeline.weights_apart, game.step_s, 0, true, false, {}};
  for (const MemoryUse& m : game.memory) out.place_bytes = std::max(out.place_bytes, m.total());
  if (bytes_max <= 0) return out;
  TROUPE_ASSIGN(const std::int64_t bytes, needed_bytes(plan, bytes_max));
  out.fits = bytes <= bytes_max;
  return out;
}

}  // namespace

Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options, std::int64_t bytes_max) {
  REQUIRE(options.pipeline.ahead == 0 && !options.pipeline.weights_apart, options.pipeline.ahead);
  AheadChoice out;
  TROUPE_ASSIGN(out.plan, compile(graph, options));
  if (!out.plan.trains || options.pipeline.ordered() || !waits_inside_stages(out.plan)) return out;
  TROUPE_ASSIGN(AheadTried taken, try_plan(out.plan, bytes_max));
  taken.taken = true;
  out.tried.push_back(taken);
  // A plan that needs more memory than the one taken last, and one that needs less.
  const auto gains = [&](double step_s) { return step_s <= taken.step_s * (1 - ahead_gain_min); };
  const auto loses_little = [&](double step_s) { return taken.step_s > step_s * (1 - ahead_gain_min); };
  // Plays the plan of this schedule; takes it where it pays.
  const auto take = [&](const Pipeline& pipeline, const auto& pays) {
    CompileOptions next = options;
    next.pipeline = pipeline;
    const auto refused = [&](const Status& why) {
      out.tried.push_back({pipeline.ahead, pipeline.weights_apart, 0, 0, false, false, why.message()});
      return false;
    };
    auto plan = compile(graph, next);
    if (!plan.ok()) return refused(plan.status());
    if (const Status s = verify(*plan); !s.ok()) return refused(s);
    auto tried = try_plan(*plan, bytes_max);
    if (!tried.ok()) return refused(tried.status());
    tried->taken = tried->fits && pays(tried->step_s);
    out.tried.push_back(*tried);
    if (!tried->taken) return false;
    taken = *tried;
    out.plan = *std::move(plan);
    return true;
  };
  if (!taken.fits) return out;
  // Elsewhere no pass waits for parts of other places, and weight gradients stay with their backward pass.
  const bool divided = std::any_of(out.plan.meshes.begin(), out.plan.meshes.begin() + out.plan.stages,
                                   [](const Mesh& m) { return m.size() > m.axis_size("dp"); });
  const auto microbatches = out.plan.step_spec().microbatches;
  const auto ahead = [&](std::int32_t more) {
    Pipeline p = out.plan.pipeline;
    p.ahead += more;
    return p;
  };
  while (taken.ahead + 1 < microbatches && take(ahead(1), gains)) {}
  if (!divided) return out;
  Pipeline apart = out.plan.pipeline;
  apart.weights_apart = true;
  if (!take(apart, gains)) return out;
  // What they hide no microbatch has to hide: each must be worth its memory beside them, too.
  const std::int32_t before = taken.ahead;
  while (taken.ahead > 0 && take(ahead(-1), loses_little)) {}
  while (taken.ahead >= before && taken.ahead + 1 < microbatches && take(ahead(1), gains)) {}
  return out;
}

std::string ahead_text(const std::vector<AheadTried>& tried, const std::string& bound) {
  std::vector<TextRow> rows;
  const auto chosen = std::find_if(tried.rbegin(), tried.rend(), [](const AheadTried& t) { return t.taken; });
  const AheadTried* before = &tried[0];  // the plan taken last
  for (const AheadTried& t : tried) {
    const std::string verdict = !t.refused.empty()        ? "refused: " + t.refused
                                : !t.fits                 ? "does not fit"
                                : &t == &*chosen          ? "chosen"
                                : t.taken                 ? "a later one is better"
                                : t.ahead < before->ahead ? "loses 1 % or more"
                                                          : "gains less than 1 %";
    if (t.taken) before = &t;
    rows.push_back({{fmt::to_string(t.ahead), t.weights_apart ? "apart" : "with backward",
                     t.refused.empty() ? human_seconds(t.step_s) : "",
                     t.refused.empty() ? human_bytes(t.place_bytes) : "", verdict},
                    {}});
  }
  return "what hides exchanges inside stages: microbatches ahead of 1F1B, weight gradients apart\nmemory: " + bound +
         "\n" +
         table_text({">ahead", "weight gradients", ">predicted step", ">peak memory of a place", "verdict"}, rows);
}

}  // namespace troupe::runtime
