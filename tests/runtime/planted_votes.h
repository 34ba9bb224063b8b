// A job of the MLP whose places vote as a test plants: a session hears by hand what workers say.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "runtime/place/gradient_order.h"
#include "runtime/session/session.h"
#include "tests/runtime/mlp.h"
#include "tests/runtime/seen_snapshots.h"

namespace planted_votes {

using namespace mlp;

/// What a place tells whose square sums are all the same, and its peaks.
inline actors::GradientReport told(const Plan& plan, Rank rank, double square_sum, float peak) {
  const GradientOrder parts = gradient_order(plan, rank);
  return {std::vector<double>(parts.square_sums, square_sum), std::vector<float>(parts.peaks, peak), {}};
}

/// The index of a parameter's gradient among the peaks that a place tells; -1: it makes none.
inline std::int32_t peak_of(const Plan& plan, Rank rank, const std::string& name) {
  std::vector<std::int32_t> made;
  for (const auto& a : plan.roles[static_cast<std::size_t>(plan.stage_of(rank))].actors)
    for (auto param : made_gradients(plan, a)) made.push_back(param);
  const auto it = std::find_if(made.begin(), made.end(),
                               [&](auto param) { return plan.params[static_cast<std::size_t>(param)].name == name; });
  return it == made.end() ? -1 : static_cast<std::int32_t>(it - made.begin());
}

/// A job whose places say what a test plants.
struct Planted {
  Plan plan;
  SessionOptions options;
  std::vector<std::int32_t> begun;
  std::vector<Go> gone;             // as the first place hears them ...
  std::vector<CommitStep> commits;  // ... as well
  std::vector<StepResult> steps;
  SeenSnapshots* snapshots = nullptr;
  std::unique_ptr<Session> session;
  struct Peak {
    std::string name;
    double largest;
    std::int32_t first_bad;  // 1 + a microbatch; 0: none
  };
  std::vector<std::vector<Peak>> peaks;                 // of the step that comes, by rank
  std::function<void(actors::GradientReport&)> change;  // of what the first place tells
  double norm = 1, loss = 1;                            // of the same
  std::int32_t loss_of = 0;                             // the microbatch
  Status started;                                       // what `begin` has returned

  explicit Planted(const std::vector<std::int64_t>& dp, std::optional<SumState> sums = {},
                   std::int64_t first_step = 0) {
    auto p = mlp::plan(ops(), {}, dp);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    plan = *std::move(p);
    options.first_step = first_step;
    options.steps = 1000;
    options.sums = std::move(sums);
    options.on_step = [this](const StepResult& r) { steps.push_back(r); };
    peaks.resize(static_cast<std::size_t>(plan.workers()));
  }
  void begin() {
    session = std::make_unique<Session>(plan, options, snapshots, [this](Rank r, const ToWorker& m) {
      if (r > 0) return;
      if (const auto* b = std::get_if<BeginRun>(&m)) begun = b->exponents;
      if (const auto* go = std::get_if<Go>(&m)) gone.push_back(*go);
      if (const auto* c = std::get_if<CommitStep>(&m)) commits.push_back(*c);
    });
    started = session->begin();
  }
  std::size_t index(const std::string& name) const {
    for (std::size_t i = 0; i < plan.params.size(); ++i)
      if (plan.params[i].name == name) return i;
    FAIL("no parameter " << name);
    return 0;
  }
  void peak(Rank rank, const std::string& name, double largest, int first_bad = 0) {
    REQUIRE_MESSAGE(peak_of(plan, rank, name) >= 0, name);
    peaks[static_cast<std::size_t>(rank)].push_back({name, largest, first_bad});
  }
  /// All places vote for the step that is due, ranks from the last to the first; the answer to the last of them. Where
  /// a test plants no other, the first place that makes a gradient tells of a term that fits any exponent.
  Status vote() {
    const auto step = session->committed();
    for (const auto& p : plan.params) {
      const bool planted = std::any_of(peaks.begin(), peaks.end(), [&](const auto& of_place) {
        return std::any_of(of_place.begin(), of_place.end(), [&](const Peak& k) { return k.name == p.name; });
      });
      Rank first = 0;
      while (peak_of(plan, first, p.name) < 0) ++first;
      if (!planted) peak(first, p.name, 1e-3f);
    }
    Status last;
    for (Rank r = plan.workers() - 1; r >= 0; --r) {
      Closed vote{0, step, {}, 0, told(plan, r, norm, 0)};
      for (const auto& k : std::exchange(peaks[static_cast<std::size_t>(r)], {})) {
        const auto at = peak_of(plan, r, k.name);
        vote.gradients.peaks[static_cast<std::size_t>(at)] = static_cast<float>(k.largest);
        if (k.first_bad > 0) vote.gradients.bad.push_back({at, k.first_bad - 1});
      }
      if (r == 0) vote.reports.push_back({Report::Kind::loss, "loss", step, loss_of, {loss}});
      if (r == 0 && change) change(vote.gradients);
      const auto committed = session->committed();
      last = session->handle(r, vote);
      CHECK((r == 0 || (last.ok() && session->committed() == committed)));  // decided after all votes
    }
    return last;
  }
};

/// A plan of the MLP with room for two snapshots.
inline Plan plan_of_snapshots(const std::vector<std::int64_t>& dp) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.snapshots = 2;
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

inline bool says(const Status& s, const std::string& words) { return s.message().find(words) != std::string::npos; }

}  // namespace planted_votes
