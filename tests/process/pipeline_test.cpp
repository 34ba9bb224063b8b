// Real worker processes over UCX on the paced device: kernels take their planned time, so a pipeline of four
// stages can be watched on two cores.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/token_game.h"
#include "tests/process/apps.h"

using namespace mlp;

namespace {

struct Entry {
  bool backward;
  std::int32_t microbatch;
  std::int64_t begin_ns, end_ns;
};

/// Forward and backward runs of a stage's first step, in the order in which they began. A stage's several
/// segments of one microbatch and direction are one run.
std::vector<Entry> runs(const Plan& plan, Rank rank, const std::vector<TraceSpan>& spans) {
  std::vector<Entry> out;
  const auto& role = plan.roles[plan.stage_of(rank)];
  for (const auto& span : spans) {
    const auto a = std::find_if(role.actors.begin(), role.actors.end(), [&](const PlanActor& x) { return x.name == span.row; });
    REQUIRE(a != role.actors.end());
    if (a->kind != PlanActor::Kind::segment || a->program != 0 || span.step != 0) continue;
    auto it = std::find_if(out.begin(), out.end(), [&](const Entry& e) { return e.backward == a->backward && e.microbatch == span.microbatch; });
    if (it == out.end()) out.push_back({a->backward, span.microbatch, span.begin_ns, span.end_ns});
    else it->begin_ns = std::min(it->begin_ns, span.begin_ns), it->end_ns = std::max(it->end_ns, span.end_ns);
  }
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.begin_ns < b.begin_ns; });
  return out;
}

}  // namespace

TEST_CASE("1F1B on worker processes: stash <= S - s, microbatches in order, backward never before forward") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.layers = 4;   // "in" and "out" join the outer stages
  s.microbatches = 12;
  auto made = plan(ops, s, {1, 1, 1, 1});
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  for (auto& role : made->roles)
    for (auto& a : role.actors) {
      const bool timed = a.kind == PlanActor::Kind::segment && a.program == 0;
      a.cost_s = 0;
      if (!timed) continue;
      const auto same = std::count_if(role.actors.begin(), role.actors.end(), [&](const PlanActor& x) {
        return x.kind == PlanActor::Kind::segment && x.program == 0 && x.backward == a.backward;
      });
      a.cost_s = (a.backward ? 8e-3 : 4e-3) / static_cast<double>(same);
    }
  JobOptions job;
  job.paced = 1;
  job.run_kernels = false;
  job.trace = {.first = 0, .steps = 1};
  job.session.steps = 2;
  const JobResult result = test_app().run(*made, job);
  REQUIRE_MESSAGE(result.status.ok(), result.status.message());
  std::int64_t first = 0, last = 0;
  for (Rank r = 0; r < 4; ++r) {
    CAPTURE(r);
    REQUIRE(!result.places[r].spans.empty());
    const auto order = runs(*made, r, result.places[r].spans);
    REQUIRE(order.size() == 24);
    std::int32_t next[2] = {0, 0}, stash = 0, peak = 0;
    for (const auto& e : order) {
      CHECK(e.microbatch == next[e.backward]++);
      if (e.backward) CHECK(next[0] > e.microbatch);
      stash += e.backward ? -1 : 1;
      peak = std::max(peak, stash);
    }
    CHECK(peak <= 4 - r);
    CHECK(peak >= 1);
    first = r == 0 ? order.front().begin_ns : std::min(first, order.front().begin_ns);
    last = std::max(last, std::max_element(order.begin(), order.end(), [](const Entry& a, const Entry& b) { return a.end_ns < b.end_ns; })->end_ns);
  }
  MESSAGE("makespan of the first step: ", static_cast<double>(last - first) * 1e-6, " ms; ideal 180 ms");
}

TEST_CASE("NU-2 on worker processes: an MLP is bitwise the simulated one-worker run") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.dropout = 0.1;
  const double divisor = static_cast<double>(s.microbatches * s.samples);
  auto one = plan(ops, s, {1});
  REQUIRE(one.ok());
  const auto simulated = train(*one, ops, 4, 0, divisor);
  REQUIRE_MESSAGE(simulated.ok(), simulated.status().message());
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {3}, {2, 1}})
    for (int threads : {1, 2}) {
      auto p = plan(ops, s, dp);
      REQUIRE(p.ok());
      std::vector<double> losses;
      JobOptions job;
      job.threads = threads;
      job.session.steps = 4;
      job.session.clip = 0.5;
      job.session.loss_divisor = divisor;
      job.session.lr = [](std::int64_t step) { return 1e-2 / (1 + 0.1 * static_cast<double>(step)); };
      job.session.on_step = [&](const StepResult& r) { losses.push_back(r.loss); };
      const JobResult result = test_app().run(*p, job);
      REQUIRE_MESSAGE(result.status.ok(), result.status.message());
      CHECK(result.params_hash == simulated->run.params_hash);
      for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == simulated->run.steps[i].loss);
    }
}
