// A whole game, or one of few microbatches whose steady state stands for the rest; how long a game can take.
#include <algorithm>
#include <numeric>

#include "runtime/simulate/game.h"

namespace troupe::runtime {

namespace {

/// Numbers of microbatches of a step with which to try a shortened game: enough to fill the pipeline, settle and drain.
/// None where programs or places differ in their microbatches, and where turns, rounds, feeds or what is kept for a
/// later step count the microbatches of a whole step.
std::vector<std::int64_t> few_microbatches(const Plan& plan) {
  if (!plan.has_one_step_program() || plan.ordered() || !plan.owners.empty() || plan.step_spec().sequential) return {};
  for (const auto& x : plan.exchanges)
    if (x.rate == Rate::round) return {};
  for (const auto& role : plan.roles)
    for (const auto& c : role.channels)
      if (plan.is_step_program(c.program) && (c.kind == PlanChannel::Kind::feed || c.kind == PlanChannel::Kind::kept))
        return {};
  for (std::int32_t s = 0; s < plan.stages; ++s)
    if (plan.dp_width(s) != plan.dp_width(0)) return {};
  const auto all = std::int64_t{plan.owners_of(plan.step_program(), 0).acts(Rate::microbatch, 0)};
  // What is left out must be whole cycles, most of 1, 2, 3 or 4 microbatches.
  constexpr std::int64_t usual_cycles = 12;
  std::vector<std::int64_t> out;
  for (std::int64_t warm : {3 * plan.stages + 8, 8 * plan.stages + 32})
    if (const auto left_out = (all - warm) / usual_cycles * usual_cycles; left_out * 2 >= all)
      out.push_back(all - left_out);
  return out;
}

}  // namespace

double Game::longest_s() const {
  const auto runs = [&](std::int32_t program) {
    return plan_.is_step_program(program) ? static_cast<double>(options_.steps) : options_.every_program ? 1.0 : 0.0;
  };
  double all_s = static_cast<double>(options_.steps) * options_.control_s;  // the commits
  for (const auto& role : plan_.roles)  // what the session hears before it sends the next microbatch of a feed
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::feed)
        all_s += runs(c.program) * static_cast<double>(plan_.programs[c.program].spec.microbatches) *
                 options_.control_s;
  for (const auto& place : places_)
    for (const auto& a : place->actors) {
      const auto acts = static_cast<double>(std::max<std::size_t>(1, a->local_.spec.microbatches.size()));
      double longest_s = 0;  // of its routes
      for (const auto& messages : a->messages_)
        longest_s = std::max(longest_s, std::accumulate(messages.begin(), messages.end(), 0.0,
                                                        [](double s, const auto& m) { return s + m.alone_s(); }));
      const double act_s = a->cost_s_ + 1e-9 * static_cast<double>(handover_ns_) + longest_s +
                           (a->meets() ? options_.hop_s : 0);
      all_s += runs(a->plan_.program) * acts * act_s;
    }
  return all_s;
}

Expected<GameResult> play(const Plan& plan, const GameOptions& options) {
  std::int64_t all = 0;
  for (const PlanProgram& p : plan.programs)
    if (p.steps) all = std::max(all, p.spec.microbatches);
  for (const auto few : options.every_microbatch ? std::vector<std::int64_t>{} : few_microbatches(plan)) {
    auto result = Game(plan, options, few).run();
    // A game that is too long is so with all microbatches. Else the whole game finds the error, or that there is no
    // steady state.
    if (result.ok() || result.status().code() == Code::exhausted) return result;
  }
  return Game(plan, options, all).run();
}

}  // namespace troupe::runtime
