// Real worker processes over UCX on the paced device: kernels take their planned time, so a pipeline of four
// stages can be watched on two cores.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/process/apps.h"

using namespace mlp;

namespace {

constexpr std::int32_t stages = 4, microbatches = 8;
constexpr std::int64_t forward_ns = 60'000'000, backward_ns = 60'000'000, period_ns = forward_ns + backward_ns;

/// Whether an actor is the forward or backward segment of stage r's layer: "layer2.fwd.1".
bool is_pass(const std::string& actor, Rank r, const std::string& direction) {
  return actor.starts_with("layer" + std::to_string(r) + "." + direction);
}

/// One layer a stage: one forward and one backward segment, which take their time; nothing else does.
Plan pipeline() {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.layers = stages;
  s.microbatches = microbatches;
  CompileOptions o;
  o.stages = stage_meshes({1, 1, 1, 1});
  o.stage_of_unit = {0, 0, 1, 2, 3, 3};  // "in", the layers, "out"
  auto made = compile(graph(ops, s), o);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  for (std::int32_t r = 0; r < stages; ++r)
    for (auto& a : made->roles[r].actors)
      a.cost_s = is_pass(a.name, r, "fwd") ? forward_ns * 1e-9 : is_pass(a.name, r, "bwd") ? backward_ns * 1e-9 : 0;
  return *std::move(made);
}

/// Runs the plan's four steps on worker processes, with the options of train(): bitwise what was simulated.
void check_as_simulated(const Plan& p, int threads, double divisor, const Result& simulated,
                        const std::vector<comm::Throttle>& throttle = {}) {
  std::vector<double> losses;
  JobOptions job;
  job.threads = threads;
  job.throttle = throttle;
  job.session.steps = 4;
  job.session.clip = 0.5;
  job.session.loss_divisor = divisor;
  job.session.lr = [](std::int64_t step) { return 1e-2 / (1 + 0.1 * static_cast<double>(step)); };
  job.session.on_step = [&](const StepResult& r) { losses.push_back(r.loss); };
  const JobResult result = test_app().run(p, job);
  REQUIRE_MESSAGE(result.status.ok(), result.status.message());
  CHECK(result.params_hash == simulated.run.params_hash);
  REQUIRE(losses.size() == simulated.run.steps.size());
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == simulated.run.steps[i].loss);
}

struct Act {
  bool backward;
  std::int32_t microbatch;
  std::int64_t begin_ns, end_ns;
};

/// What a stage's layer did in a step, in the order in which it began.
std::vector<Act> acts(const std::vector<TraceSpan>& spans, Rank rank, std::int64_t step) {
  std::vector<Act> out;
  for (const auto& s : spans)
    for (bool backward : {false, true})
      if (s.step == step && is_pass(s.row, rank, backward ? "bwd" : "fwd"))
        out.push_back({backward, s.microbatch, s.begin_ns, s.end_ns});
  std::sort(out.begin(), out.end(), [](const Act& a, const Act& b) { return a.begin_ns < b.begin_ns; });
  return out;
}

std::string text(const std::vector<Act>& acts) {
  std::string t;
  for (const auto& a : acts) t += (a.backward ? "B" : "F") + std::to_string(a.microbatch) + " ";
  return t;
}

/// S - s forwards, then one backward and one forward in turn, then the remaining backwards.
std::string canonical(std::int32_t stage) {
  std::string t;
  const std::int32_t ahead = stages - stage;
  for (std::int32_t m = 0; m < ahead; ++m) t += "F" + std::to_string(m) + " ";
  for (std::int32_t m = 0; m < microbatches; ++m) {
    t += "B" + std::to_string(m) + " ";
    if (m + ahead < microbatches) t += "F" + std::to_string(m + ahead) + " ";
  }
  return t;
}

/// What no timing changes: microbatches in order, backward after forward, never more than S - s in between.
/// Returns the most there were in between.
std::int32_t check_always(const std::vector<Act>& order, std::int32_t stage) {
  REQUIRE(order.size() == 2 * microbatches);
  std::int32_t next[2] = {0, 0}, stash = 0, peak = 0;
  for (const auto& a : order) {
    CHECK(a.microbatch == next[a.backward]++);
    if (a.backward) CHECK(next[0] > a.microbatch);
    stash += a.backward ? -1 : 1;
    peak = std::max(peak, stash);
  }
  CHECK(peak <= stages - stage);
  return peak;
}

}  // namespace

// When is the order canonical on a machine that is not quiet? While S - s microbatches are between forward and
// backward, only a backward can begin. So the first act that is out of order is a backward, B(k+1), in the place of
// a forward, F(m) with m = k + S - s, whose input was late. B(k+1) cannot have come early: it waits for the last stage,
// which has one slot, hence alternates and is never idle in the ideal step. F(m) begins after it, reaches the last
// stage S - 1 - s forwards later and is then a whole period tF + tB behind the ideal step, and so is all that follows.
// Hence: a step that is less than one period late was canonical everywhere, however the time was lost.
TEST_CASE(
    "1F1B on worker processes: canonical order and a stash of S - s in every step that is less than a period late; the "
    "quickest step takes "
    "the published time, but for half a period") {
  const Plan plan = pipeline();
  const std::int64_t ideal_ns = (microbatches + stages - 1) * period_ns;
  JobOptions job;
  job.paced = 1;
  job.run_kernels = false;
  job.trace = {.first = 0, .steps = 3};
  job.session.steps = 3;
  std::int64_t quickest_late_ns = INT64_MAX;
  for (int attempt = 0; attempt < 4 && quickest_late_ns > period_ns / 2; ++attempt) {
    const JobResult result = test_app().run(plan, job);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message());
    for (std::int64_t step = 0; step < job.session.steps; ++step) {
      CAPTURE(step);
      std::vector<std::vector<Act>> order;
      std::int64_t end_ns = 0;
      for (Rank r = 0; r < stages; ++r) {
        order.push_back(acts(result.places[r].spans, r, step));
        for (const auto& a : order[r]) end_ns = std::max(end_ns, a.end_ns);
      }
      const std::int64_t late_ns = end_ns - order[0].at(0).begin_ns - ideal_ns;
      CHECK(late_ns >= 0);
      const bool in_time = late_ns < period_ns;
      quickest_late_ns = std::min(quickest_late_ns, late_ns);
      for (Rank r = 0; r < stages; ++r) {
        CAPTURE(r);
        const auto peak = check_always(order[r], r);
        if (!in_time && r != stages - 1) continue;  // the last stage alternates at any time
        CHECK(text(order[r]) == canonical(r));
        CHECK(peak == stages - r);
      }
      MESSAGE("step ", step, ": ", static_cast<double>(late_ns) * 1e-6, " ms later than the ideal ",
              static_cast<double>(ideal_ns) * 1e-6, " ms");
    }
  }
  CHECK_MESSAGE(quickest_late_ns <= period_ns / 2, "in no step did this machine lose less than ",
                quickest_late_ns / 1'000'000, " ms");
}

TEST_CASE("NU-2 (topologies) on worker processes: an MLP is bitwise the simulated one-worker run") {
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
      check_as_simulated(*p, threads, divisor, *simulated);
    }
}

TEST_CASE(
    "NU-1 (runs) on worker processes under tp: microbatches ahead, weight gradients apart and threads change no bit") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.microbatches = 6;
  const double divisor = static_cast<double>(s.microbatches * s.samples);
  const auto made = [&](std::int32_t ahead, bool weights_apart) {
    CompileOptions o;
    o.stages = stage_meshes({1}, 2);
    o.seed = 7;
    o.pipeline.ahead = ahead;
    o.pipeline.weights_apart = weights_apart;
    auto p = compile(graph(ops, s), o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    return *std::move(p);
  };
  const auto simulated = train(made(0, false), ops, 4, 0, divisor);
  REQUIRE_MESSAGE(simulated.ok(), simulated.status().message());
  for (const std::int32_t ahead : {0, 1, 2})
    for (const bool weights_apart : {false, true})
      for (const int threads : {1, 2}) {
        CAPTURE(ahead);
        CAPTURE(weights_apart);
        CAPTURE(threads);
        check_as_simulated(made(ahead, weights_apart), threads, divisor, *simulated);
      }
  comm::Throttle slow;  // one microbatch waits while another is worked on
  slow.latency_ns = 2'000'000;
  for (const std::int32_t ahead : {0, 2}) check_as_simulated(made(ahead, ahead > 0), 1, divisor, *simulated, {slow});
}
