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
  AheadTried out{plan.pipeline.ahead, game.step_s, 0, true};
  for (const MemoryUse& m : game.memory) out.place_bytes = std::max(out.place_bytes, m.total());
  if (bytes_max <= 0) return out;
  TROUPE_ASSIGN(const std::int64_t bytes, needed_bytes(plan, bytes_max));
  out.fits = bytes <= bytes_max;
  return out;
}

}  // namespace

Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options, std::int64_t bytes_max) {
  REQUIRE(options.pipeline.ahead == 0, options.pipeline.ahead);
  AheadChoice out;
  TROUPE_ASSIGN(out.plan, compile(graph, options));
  if (!out.plan.trains || options.pipeline.ordered() || !waits_inside_stages(out.plan)) return out;
  TROUPE_ASSIGN(const AheadTried first, try_plan(out.plan, bytes_max));
  out.tried.push_back(first);
  while (out.tried.back().fits && options.pipeline.ahead + 1 < out.plan.step_spec().microbatches) {
    ++options.pipeline.ahead;
    auto next = compile(graph, options);
    if (!next.ok() || !verify(*next).ok()) break;
    auto tried = try_plan(*next, bytes_max);
    if (!tried.ok()) break;
    const double before_s = out.tried.back().step_s;
    out.tried.push_back(*tried);
    if (!tried->fits || tried->step_s > before_s * (1 - ahead_gain_min)) break;
    out.plan = *std::move(next);
  }
  return out;
}

std::string ahead_text(const std::vector<AheadTried>& tried, std::int32_t chosen, const std::string& bound) {
  std::vector<TextRow> rows;
  for (const AheadTried& t : tried) {
    const char* verdict = t.ahead == chosen  ? "chosen"
                          : t.ahead < chosen ? "slower"
                          : !t.fits          ? "does not fit"
                                             : "gains less than 1 %";
    rows.push_back({{fmt::to_string(t.ahead), human_seconds(t.step_s), human_bytes(t.place_bytes), verdict}, {}});
  }
  return "microbatches ahead of 1F1B, while others wait for exchanges\nmemory: " + bound + "\n" +
         table_text({">ahead", ">predicted step", ">peak memory of a place", "verdict"}, rows);
}

}  // namespace troupe::runtime
