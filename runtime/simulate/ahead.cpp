#include "runtime/simulate/ahead.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe::runtime {

namespace {

/// Whether microbatches of training wait for exchanges that begin and end on one stage.
bool waits_inside_stages(const Plan& plan) {
  return std::any_of(plan.exchanges.begin(), plan.exchanges.end(), [&](const PlanExchange& x) {
    const PlanTensor &from = plan.tensors[x.moves[0].from], &to = plan.tensors[x.moves[0].to];
    return x.program == 0 && x.rate != Rate::step && from.mesh == to.mesh;
  });
}

Expected<AheadTried> try_plan(const Plan& plan) {
  GameOptions training;
  training.every_program = false;
  TROUPE_ASSIGN(const GameResult game, play(plan, training));
  AheadTried out{plan.pipeline.ahead, game.step_s, 0, true};
  for (const MemoryUse& m : game.memory) out.place_bytes = std::max(out.place_bytes, m.total());
  return out;
}

}  // namespace

Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options,
                                   const std::function<bool(const Plan&)>& fits) {
  REQUIRE(options.pipeline.ahead == 0, options.pipeline.ahead);
  AheadChoice out;
  TROUPE_ASSIGN(out.plan, compile(graph, options));
  if (!out.plan.trains || options.pipeline.ordered() || !waits_inside_stages(out.plan)) return out;
  TROUPE_ASSIGN(const AheadTried first, try_plan(out.plan));
  out.tried.push_back(first);
  while (options.pipeline.ahead + 1 < out.plan.program_specs[0].microbatches) {
    ++options.pipeline.ahead;
    TROUPE_ASSIGN(Plan next, compile(graph, options));
    TROUPE_ASSIGN(AheadTried tried, try_plan(next));
    const double before_s = out.tried.back().step_s;
    tried.fits = !fits || fits(next);
    out.tried.push_back(tried);
    if (!tried.fits || tried.step_s > before_s * (1 - ahead_gain_min)) break;
    out.plan = std::move(next);
  }
  return out;
}

}  // namespace troupe::runtime
