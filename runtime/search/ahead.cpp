#include "runtime/search/ahead.h"

#include <fmt/format.h>

#include <algorithm>

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

/// Plays `plan`; its verdict is that it does not fit, or else `surpassed`, until it is compared.
Expected<AheadTried> try_plan(const Plan& plan, const std::optional<MemoryBound>& bound) {
  TROUPE_TRY(check_structure(plan));
  GameOptions training;
  training.every_program = false;
  TROUPE_ASSIGN(const GameResult game, play(plan, training));
  AheadTried out{
      plan.pipeline.ahead, plan.pipeline.weights_apart, AheadVerdict::surpassed, game.step_s, game.compute_s, 0, {}};
  for (const MemoryUse& m : game.memory) out.place_bytes = std::max(out.place_bytes, m.total());
  if (!bound) return out;
  TROUPE_ASSIGN(const bool fit, fits(plan, *bound));
  if (!fit) out.verdict = AheadVerdict::does_not_fit;
  return out;
}

/// The search of choose_ahead(): the plan taken last, and the plans tried so far.
class AheadSearch {
 public:
  AheadSearch(const Graph& graph, const CompileOptions& options, const std::optional<MemoryBound>& bound,
              AheadChoice& out)
      : graph_(graph), options_(options), bound_(bound), out_(out) {
    for (std::int32_t s = 0; s < out.plan.stages; ++s)
      most_microbatches_ = std::max(most_microbatches_, out.plan.owners_of(out.plan.step_program(), s).rounds());
  }

  /// The plan taken last, of those tried.
  std::size_t taken_index() const { return taken_; }

  /// Takes more microbatches ahead for as long as they pay, up to ahead_reach at once, `by` and more at first.
  void more(std::int32_t by = 1) {
    while (by <= ahead_reach && taken().ahead + by < most_microbatches_) {
      if (take(schedule(by, taken().weights_apart))) {
        by = 1;
      } else if (last_fits()) {
        ++by;
      } else {
        return;
      }
    }
  }

  /// Each takes the plan that it names where that pays, and returns whether it did.
  bool one_less() {
    return taken().ahead > 0 && !was_tried(taken().ahead - 1) && take(schedule(-1, taken().weights_apart), true);
  }
  bool apart() { return take(schedule(0, true)); }
  /// REQUIRES: apart() has just tried its plan, and not taken it.
  bool apart_for_one() {
    const double with_that_one_s = last_fits() ? out_.tried.back().step_s : 0;
    return taken().ahead > 0 && take(schedule(-1, true), true, with_that_one_s);
  }
  bool all_under_way() {
    const std::int32_t more = most_microbatches_ - 1 - taken().ahead;
    return more > 0 && !was_tried(most_microbatches_ - 1) &&
           taken().compute_s <= taken().step_s * (1 - ahead_gain_min * more) &&
           take(schedule(more, taken().weights_apart));
  }

  /// The plan tried last fits, and was not worth its memory.
  bool last_fits() const {
    const AheadVerdict last = out_.tried.back().verdict;
    return last == AheadVerdict::gains_little || last == AheadVerdict::loses;
  }

 private:
  const AheadTried& taken() const { return out_.tried[taken_]; }
  /// With weight gradients where the plan taken last has them.
  bool was_tried(std::int32_t ahead) const {
    return std::any_of(out_.tried.begin(), out_.tried.end(), [&](const AheadTried& t) {
      return t.ahead == ahead && t.weights_apart == taken().weights_apart;
    });
  }

  Pipeline schedule(std::int32_t more, bool weights_apart) const {
    Pipeline p = out_.plan.pipeline;
    p.ahead += more;
    p.weights_apart = weights_apart;
    return p;
  }

  /// A plan pays where it gains ahead_gain_min (for each microbatch more); `saves`: also where it needs no more memory,
  /// and loses less than that.
  /// `rival_s` > 0: the step of a plan that was tried before, with one microbatch more; where that one is shorter by
  /// ahead_gain_min, this plan is not taken.
  bool take(const Pipeline& pipeline, bool saves = false, double rival_s = 0) {
    CompileOptions next = options_;
    next.pipeline = pipeline;
    auto plan = compile(graph_, next);
    Status s = plan.ok() ? verify(*plan) : plan.status();
    auto tried = s.ok() ? try_plan(*plan, bound_) : Expected<AheadTried>(s);
    if (!tried.ok()) {
      out_.tried.push_back(
          {pipeline.ahead, pipeline.weights_apart, AheadVerdict::refused, 0, 0, 0, tried.status().message()});
      return false;
    }
    const double before = taken().step_s, now = tried->step_s;
    const double share = 1 - ahead_gain_min * std::max(1, pipeline.ahead - taken().ahead);
    const bool gains = now <= before * share;
    const bool no_more_memory = tried->place_bytes <= taken().place_bytes;
    const bool pays = gains || (saves && no_more_memory && before > now * share);
    if (tried->verdict != AheadVerdict::does_not_fit) {
      if (!pays) tried->verdict = now < before ? AheadVerdict::gains_little : AheadVerdict::loses;
      else if (rival_s > 0 && rival_s <= now * share) tried->verdict = AheadVerdict::rivalled;
    }
    out_.tried.push_back(*std::move(tried));
    if (!out_.tried.back().taken()) return false;
    taken_ = out_.tried.size() - 1;
    out_.plan = *std::move(plan);
    return true;
  }

  const Graph& graph_;
  const CompileOptions& options_;
  const std::optional<MemoryBound>& bound_;
  AheadChoice& out_;
  std::int32_t most_microbatches_ = 0;  // of a place
  std::size_t taken_ = 0;               // of out_.tried
};

}  // namespace

Expected<AheadChoice> choose_ahead(const Graph& graph, CompileOptions options, std::optional<MemoryBound> bound) {
  if (options.pipeline.ahead != 0 || options.pipeline.weights_apart)
    return invalid(
        fmt::format("choose_ahead: CompileOptions::pipeline has {} microbatches ahead, weight gradients {}: "
                    "leave both to the choice, or call compile",
                    options.pipeline.ahead, options.pipeline.weights_apart ? "apart" : "with backward"));
  AheadChoice out;
  out.bound = bound;
  TROUPE_ASSIGN(out.plan, compile(graph, options));
  if (!out.plan.trains()) out.why_none = "the plan does not train";
  else if (!out.plan.has_one_step_program()) out.why_none = "several programs train";
  else if (options.pipeline.ordered())
    out.why_none = to_string(options.pipeline) +
                   " has an order of passes, and more microbatches under way change nothing";
  else if (!waits_inside_stages(out.plan)) out.why_none = "no exchange begins and ends inside a stage";
  if (!out.why_none.empty()) return out;
  TROUPE_ASSIGN(AheadTried first, try_plan(out.plan, bound));
  out.tried.push_back(std::move(first));
  if (!out.tried[0].taken()) return out;
  AheadSearch search(graph, options, bound, out);
  search.more();
  // Elsewhere no pass waits for parts of other places, and weight gradients stay with their backward pass.
  const bool divided = std::any_of(out.plan.meshes.begin(), out.plan.meshes.begin() + out.plan.stages, has_model_axis);
  if (divided) {
    const bool apart = search.apart();
    const bool more_may_fit = apart || search.last_fits();
    const bool instead = !apart && search.apart_for_one();
    // What they hide no microbatch has to hide: each must be worth its memory beside them, too.
    bool less = false;
    while ((apart || instead) && search.one_less()) less = true;
    if ((apart || instead) && !less && more_may_fit) search.more(instead ? 2 : 1);  // one more was tried before it
  }
  if (search.all_under_way())
    while (search.one_less()) {}
  out.tried[search.taken_index()].verdict = AheadVerdict::chosen;
  return out;
}

}  // namespace troupe::runtime
