// The session's decisions, told by hand what workers say.
#include <doctest/doctest.h>

#include <cmath>

#include "runtime/place/gradient_order.h"
#include "runtime/session/session.h"
#include "tests/runtime/cpu_seconds.h"
#include "tests/runtime/mlp.h"
#include "tests/runtime/seen_snapshots.h"

using namespace mlp;

namespace {

/// What a place tells whose square sums are all the same, and its peaks.
actors::GradientReport told(const Plan& plan, Rank rank, double square_sum, float peak) {
  const GradientOrder parts = gradient_order(plan, rank);
  return {std::vector<double>(parts.square_sums, square_sum), std::vector<float>(parts.peaks, peak), {}};
}

/// The index of a parameter's gradient among the peaks that a place tells; -1: it makes none.
std::int32_t peak_of(const Plan& plan, Rank rank, const std::string& name) {
  std::vector<std::int32_t> made;
  for (const auto& a : plan.roles[static_cast<std::size_t>(plan.stage_of(rank))].actors)
    for (auto param : made_gradients(plan, a)) made.push_back(param);
  const auto it = std::find_if(made.begin(), made.end(),
                               [&](auto param) { return plan.params[static_cast<std::size_t>(param)].name == name; });
  return it == made.end() ? -1 : static_cast<std::int32_t>(it - made.begin());
}

}  // namespace

TEST_CASE(
    "a vote that leaves square sums out, or has too many, commits nothing, and the error names the worker and both "
    "numbers; one without any is that of a job whose kernels do not run") {
  const auto ops = kernels::standard_ops();
  const auto p = plan(ops, {}, {2});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const std::size_t sums[] = {gradient_order(*p, 0).square_sums, gradient_order(*p, 1).square_sums};
  REQUIRE(sums[1] > 2);
  for (const std::size_t told_by_1 : {sums[1], sums[1] - 1, sums[1] + 1, std::size_t{0}})
    for (const std::size_t told_by_0 : {sums[0], std::size_t{0}}) {
      CAPTURE(told_by_0);
      CAPTURE(told_by_1);
      SessionOptions options;
      options.steps = 2;
      std::int64_t commits = 0;
      Session session(*p, options, nullptr,
                      [&](Rank r, const ToWorker& m) { commits += r == 0 && std::holds_alternative<CommitStep>(m); });
      Status s = session.begin();
      for (Rank r : {1, 0}) {
        Closed vote{0, 0, {}, 0, told(*p, r, 1, 1e-3f)};
        vote.gradients.square_sums.resize(r == 0 ? told_by_0 : told_by_1, 1);
        if (s.ok()) s = session.handle(r, vote);
      }
      const bool all = told_by_0 == sums[0] && told_by_1 == sums[1], none = told_by_0 + told_by_1 == 0;
      CHECK(s.ok() == (all || none));
      CHECK(commits == (all || none ? 1 : 0));
      if (s.ok()) continue;
      std::string why;
      if (told_by_1 != 0 && told_by_1 != sums[1])
        why = "worker 1 tells of " + std::to_string(told_by_1) + " square sums of gradients; it has " +
              std::to_string(sums[1]);
      else
        why = "worker " + std::to_string(told_by_1 == 0 ? 1 : 0) +
              " tells of no square sums of its gradients, and other workers do of theirs";
      CHECK_MESSAGE(s.message() == why, s.message());
    }
}

namespace {

constexpr float inf = HUGE_VALF;

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
Plan plan_of_snapshots(const std::vector<std::int64_t>& dp) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.snapshots = 2;
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

bool says(const Status& s, const std::string& words) { return s.message().find(words) != std::string::npos; }

}  // namespace

TEST_CASE("exponents go out with BeginRun and with each commit, by index of the plan's parameters") {
  Planted job({2});
  job.begin();
  CHECK(job.begun == std::vector<std::int32_t>(job.plan.params.size(), 43));  // 8 microbatches
  const auto down = job.index("layer0.down");
  job.peak(0, "layer0.down", 0.5);
  job.peak(1, "layer0.down", 3);
  CHECK(job.vote().ok());
  REQUIRE(job.commits.size() == 1);
  auto expected = job.begun;
  expected[down] = 50 - 12 - 2;
  CHECK(job.commits[0].exponents == expected);
  CHECK_FALSE(job.commits[0].commit.void_step);
  CHECK_FALSE(job.steps[0].void_step);
}

TEST_CASE("void steps in a row count over a resume: a run that was stopped between them diverges as one that was not") {
  for (const std::int32_t before : {0, 1, 2}) {
    Planted job({1}, SumState{5, {}, before}, 7);
    job.begin();
    for (std::int32_t i = before; i < void_steps_max; ++i) {
      const bool last = i + 1 == void_steps_max;
      job.peak(0, "layer0.down", 1e9 * std::pow(1e6, i), 1);
      CHECK(job.vote().ok() == !last);
      CHECK(job.session->diverged() == last);
      if (!last) CHECK(job.session->sums().void_steps == i + 1);
    }
  }
  Planted job({1}, SumState{5, {}, 2}, 7);
  job.begin();
  CHECK(job.vote().ok());
  CHECK(job.session->sums().void_steps == 0);
}

TEST_CASE(
    "a run that goes on begins with its exponents and counts its updates on; one that says nothing had one in each "
    "step") {
  Planted job({1}, SumState{3, {{"layer0.down", {17, 2.0f}}}}, 5);
  job.begin();
  CHECK(job.begun[job.index("layer0.down")] == 17);
  CHECK(job.begun[job.index("layer0.up")] == 43);
  CHECK(job.vote().ok());
  CHECK(job.vote().ok());
  CHECK(job.commits[0].commit.update == 4);
  CHECK(job.commits[1].commit.update == 5);
  Planted old({1}, {}, 5);
  old.begin();
  CHECK(old.vote().ok());
  CHECK(old.commits[0].commit.update == 6);
}

TEST_CASE(
    "SE-5 (void steps): a term beyond the range makes the step void, at one place or at several, and the lowest "
    "microbatch is named, then the plan's first parameter") {
  for (const bool several : {false, true}) {
    CAPTURE(several);
    Planted job({2, 1});
    job.begin();
    job.norm = NAN;  // it means nothing
    job.peak(2, "layer2.down", 1e6, 5);
    job.peak(0, "layer0.up", 0.1);
    job.peak(0, "layer0.down", 100);  // would make its exponent coarser
    if (several) job.peak(1, "layer1.up", 1e5, 5), job.peak(1, "layer0.up", 1e5, 8), job.peak(0, "layer1.up", 1e7, 5);
    REQUIRE(job.index("layer1.up") < job.index("layer2.down"));
    const Status s = job.vote();
    REQUIRE_MESSAGE(s.ok(), s.message());
    REQUIRE(job.commits.size() == 1);
    CHECK(job.commits[0].commit.void_step);
    CHECK(job.commits[0].commit.update == 1);
    auto expected = job.begun;
    expected[job.index("layer2.down")] = 50 - 12 - 20;
    if (several) expected[job.index("layer1.up")] = 50 - 12 - 24, expected[job.index("layer0.up")] = 50 - 12 - 17;
    CHECK(job.commits[0].exponents == expected);
    CHECK(job.session->committed() == 1);
    CHECK(job.steps[0].void_step);
    CHECK(job.steps[0].void_parameter == (several ? "layer1.up" : "layer2.down"));
    CHECK(job.steps[0].void_microbatch == 4);
    CHECK(job.steps[0].grad_norm == 0);
    job.norm = 1;
    CHECK(job.vote().ok());
    CHECK(job.commits[1].step == 1);
    CHECK_FALSE(job.commits[1].commit.void_step);
    CHECK(job.commits[1].commit.update == 1);  // the first
    CHECK(job.vote().ok());
    CHECK(job.commits[2].commit.update == 2);
  }
}

TEST_CASE("three void steps in a row: training has diverged; two and a good one, and it goes on") {
  Planted job({1});
  job.begin();
  float m = 1e6f;
  const auto overflow = [&] {
    job.peak(0, "layer1.up", m, 3);
    m *= 1e6f;
    return job.vote();
  };
  CHECK(overflow().ok());
  CHECK(overflow().ok());
  CHECK(job.vote().ok());
  CHECK(overflow().ok());
  CHECK(overflow().ok());
  const auto commits = job.commits.size();
  const Status s = overflow();
  CHECK(says(s,
             "step 5: microbatch 2: a gradient term of 'layer1.up' exceeds the range of its exact sum; 3 steps in a "
             "row are void: training has diverged"));
  CHECK(job.session->diverged());
  CHECK(job.commits.size() == commits);
}

TEST_CASE(
    "a term that is not finite: training has diverged, and named are the lowest microbatch and the first such "
    "parameter, whatever overflows") {
  for (const double bad : {double(inf), double(NAN)}) {
    Planted job({2});
    job.begin();
    job.norm = NAN;
    job.peak(0, "layer0.up", 1e6, 1);
    job.peak(1, "layer2.up", bad, 4);
    job.peak(1, "layer1.down", bad, 4);
    job.peak(0, "layer1.down", 5);
    job.peak(0, "layer0.down", bad, 8);
    REQUIRE(job.index("layer1.down") < job.index("layer2.up"));
    const Status s = job.vote();
    CHECK_MESSAGE(
        s.message() == "step 0: microbatch 3: a gradient term of 'layer1.down' is not finite: training has diverged",
        s.message());
    CHECK(job.session->diverged());
    CHECK(job.commits.empty());
  }
}

TEST_CASE("of a term that is not finite it is said whether the loss of its microbatch is not finite either") {
  for (const bool same : {true, false}) {
    Planted job({1});
    job.begin();
    job.loss = NAN;  // of microbatch 0
    job.peak(0, "layer0.up", NAN, same ? 1 : 4);
    const Status s = job.vote();
    CHECK_MESSAGE(says(s, "is not finite, nor is the loss of that microbatch: training has diverged") == same,
                  s.message());
    CHECK(says(s, same ? "microbatch 0: a gradient term"
                       : "microbatch 3: a gradient term of 'layer0.up' is not finite: training"));
  }
}

TEST_CASE("a gradient is scaled to the clip only where its norm is above it") {
  for (const double norm : {1e-4, 1.0}) {
    Planted job({1});
    job.options.clip = 0.5;
    job.begin();
    job.norm = norm;
    CHECK(job.vote().ok());
    CHECK(job.commits[0].commit.grad_scale == (norm < 0.5 ? 1 : 0.5 / job.steps[0].grad_norm));
    CHECK((job.steps[0].grad_norm < 0.5) == (norm < 0.5));
  }
}

TEST_CASE("a clip, a divisor or a rate that is no number of its range is refused by name, and is no divergence") {
  const auto wrong = [](const std::function<void(SessionOptions&)>& set, const std::string& what) {
    Planted job({1});
    set(job.options);
    job.begin();
    const Status s = job.started.ok() ? job.vote() : job.started;
    CHECK_MESSAGE(says(s, what), s.message());
    CHECK(job.commits.empty());
    CHECK_FALSE(job.session->diverged());
  };
  wrong([](auto& o) { o.clip = -1; }, "SessionOptions::clip is -1");
  wrong([](auto& o) { o.clip = NAN; }, "SessionOptions::clip is nan");
  wrong([](auto& o) { o.loss_divisor = 0; }, "SessionOptions::loss_divisor is 0");
  wrong([](auto& o) { o.loss_divisor = INFINITY; }, "SessionOptions::loss_divisor is inf");
  wrong([](auto& o) { o.lr = [](std::int64_t) { return NAN; }; }, "SessionOptions::lr of step 0 is nan");
  wrong([](auto& o) { o.lr = [](std::int64_t) { return -1.0; }; }, "SessionOptions::lr of step 0 is -1");
}

TEST_CASE("a loss that is not finite, also of a void step, or the norm of a good one: training has diverged") {
  for (const std::string what : {"loss", "loss of a void step", "norm"}) {
    CAPTURE(what);
    Planted job({1});
    job.begin();
    (what == "norm" ? job.norm : job.loss) = NAN;
    if (what == "loss of a void step") job.peak(0, "layer0.up", 1e6, 1);
    const Status s = job.vote();
    CHECK(says(s, "step 0: loss "));
    CHECK(says(s, "training has diverged"));
    CHECK(job.session->diverged());
    CHECK(job.commits.empty());
  }
}

TEST_CASE(
    "what no place of the plan can tell is refused by name: other numbers of gradients, microbatches that a step does "
    "not have, a magnitude below zero, a sum out of range that is in it") {
  const auto refused = [](const std::function<void(actors::GradientReport&, std::size_t)>& change,
                          const std::string& words) {
    Planted job({1});
    job.begin();
    const auto at = peak_of(job.plan, 0, "layer0.up");
    job.change = [&](actors::GradientReport& r) { change(r, static_cast<std::size_t>(at)); };
    const Status s = job.vote();
    CHECK(s.code() == Code::internal);
    CHECK_MESSAGE(says(s, words), s.message());
    CHECK_FALSE(job.session->diverged());
    CHECK(job.commits.empty());
  };
  const auto bad = [&](std::int32_t peak, std::int32_t microbatch) {
    refused(
        [&](actors::GradientReport& r, std::size_t at) {
          r.bad.push_back({peak < 99 ? static_cast<std::int32_t>(at) + peak : -1, microbatch});
        },
        "that cannot be");
  };
  refused([](actors::GradientReport& r, std::size_t) { r.peaks.push_back(1); },
          "worker 0 tells of the terms of 7 gradients; it makes 6");
  refused([](actors::GradientReport& r, std::size_t) { r.peaks.pop_back(); },
          "worker 0 tells of the terms of 5 gradients; it makes 6");
  refused([](actors::GradientReport& r, std::size_t at) { r.peaks[at] = -1; },
          "worker 0 tells of gradient terms of 'layer0.up' that cannot be");
  refused([](actors::GradientReport& r, std::size_t at) { r.peaks[at] = -inf; },
          "worker 0 tells of gradient terms of 'layer0.up' that cannot be");
  bad(0, 8);
  bad(0, -1);
  bad(6, 0);
  bad(99, 0);
  refused(
      [](actors::GradientReport& r, std::size_t at) {
        r.bad.push_back({static_cast<std::int32_t>(at), 3});
      },
      "step 0: microbatch 3: a gradient term of 'layer0.up' is said to exceed the range of its exact sum");
}

TEST_CASE("a loss of a microbatch that a step does not have is refused, with the worker and both numbers") {
  for (const std::int32_t microbatch : {-1, 8, INT32_MAX}) {
    Planted job({1});
    job.begin();
    job.loss_of = microbatch;
    const Status s = job.vote();
    CHECK(s.code() == Code::internal);
    CHECK_MESSAGE(says(s, "worker 0 reports a loss of microbatch " + std::to_string(microbatch) + "; a step has 8"),
                  s.message());
    CHECK_FALSE(job.session->diverged());
    CHECK(job.commits.empty());
  }
}

TEST_CASE(
    "a vote for another step than the one that is due is refused, and the error names the worker and both steps") {
  Planted job({2});
  job.begin();
  const Status s = job.session->handle(1, Closed{0, 1, {}, 0, told(job.plan, 1, 1, 1)});
  CHECK_MESSAGE(s.message() == "worker 1 votes for step 1 while step 0 is due", s.message());
}

TEST_CASE(
    "SE-1 (one commit): a place's second vote on a step is refused, names the worker and commits nothing, before the "
    "other places vote or after") {
  for (const bool committed : {false, true}) {
    CAPTURE(committed);
    Planted job({2});
    job.begin();
    if (committed) REQUIRE(job.session->handle(0, Closed{0, 0, {}, 0, told(job.plan, 0, 1, 1e-3f)}).ok());
    const Closed vote{0, 0, {}, 0, told(job.plan, 1, 1, 1e-3f)};
    REQUIRE(job.session->handle(1, vote).ok());
    const Status s = job.session->handle(1, vote);
    CHECK_MESSAGE(s.message() == "worker 1 closes step 0 of program 0, which is not open there", s.message());
    CHECK(job.session->committed() == (committed ? 1 : 0));
    CHECK(job.commits.size() == (committed ? 1 : 0));
    CHECK(job.steps.size() == (committed ? 1 : 0));
  }
}

TEST_CASE(
    "SE-4 (snapshots): a version that is wanted is skipped, and told, while some place's arena is full of versions "
    "that it has not written; the last version never is; the commit that makes a version says whether it is taken") {
  const Plan plan = plan_of_snapshots({2});
  const auto snapshot = plan.program("snapshot");
  REQUIRE(snapshot > 0);
  struct {
    std::int32_t closed;  // places that have written version 1 when version 4 is made
    std::int64_t last;    // version: the fifth step's, or that of a pause
    std::vector<std::int64_t> skipped, taken;
  } const cases[] = {
      {0, 5, {3, 4}, {1, 2, 5}}, {1, 5, {3, 4}, {1, 2, 5}}, {2, 5, {3}, {1, 2, 4, 5}}, {0, 4, {3}, {1, 2, 4}}};
  for (const auto& c : cases) {
    CAPTURE(c.closed);
    CAPTURE(c.last);
    Planted job({2});
    job.plan = plan;
    job.options.steps = 5;
    SeenSnapshots snapshots([](std::int64_t version) { return version > 0; });
    job.snapshots = &snapshots;
    std::vector<std::int64_t> taken;
    job.begin();
    while (job.session->committed() < c.last) {
      if (job.session->committed() == 2) job.session->pause_at(c.last);
      for (Rank r = 0; job.session->committed() == 3 && r < c.closed; ++r)
        REQUIRE(job.session->handle(r, Closed{snapshot, 1, {}, 0}).ok());
      REQUIRE(job.vote().ok());
    }
    CHECK(snapshots.versions("skipped") == c.skipped);
    CHECK(snapshots.versions("begun") == c.taken);
    for (const Go& go : job.gone)
      if (go.program == snapshot) taken.push_back(go.step);
    CHECK(taken == c.taken);
    for (const CommitStep& m : job.commits) {
      const bool named = (m.readers >> snapshot & 1) != 0;
      CHECK(named == (std::count(c.taken.begin(), c.taken.end(), m.step + 1) == 1));
    }
  }
}

TEST_CASE(
    "an observer is asked of each version once, and for room only before the last version, for versions that it wants; "
    "it hears a place's progress while the place's version is open, and the shards in order of ranks") {
  Planted job({2});
  job.plan = plan_of_snapshots({2});
  job.options.steps = 4;
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1 || version > 2; });
  job.snapshots = &snapshots;
  snapshots.room = [&] { return job.session->committed() == 0; };
  job.begin();
  REQUIRE(job.vote().ok());
  const auto snapshot = job.plan.program("snapshot");
  const auto saving = [&](Rank r) {
    return job.session->handle(r, EarlyReport{snapshot, {Report::Kind::saving, "", 1, -1, {0, 1, 2}, {}}});
  };
  CHECK(saving(1).ok());
  for (Rank r : {1, 0})
    REQUIRE(job.session->handle(r, Closed{snapshot, 1, {Report{Report::Kind::shard, "", 1, -1, {}, {std::byte(r)}}}, 0})
                .ok());
  CHECK(saving(1).ok());
  while (job.session->committed() < 4) REQUIRE(job.vote().ok());
  CHECK(snapshots.log == std::vector<std::string>{"wants 0", "wants 1", "has_room", "begun 1", "saving 1 place 1",
                                                  "written 1", "wants 2", "wants 3", "has_room", "skipped 3", "wants 4",
                                                  "begun 4"});
  const auto& shards = snapshots.written_shards[1];
  REQUIRE(shards.size() == 2);
  for (std::size_t r = 0; r < 2; ++r) CHECK(shards[r].bytes == std::vector<std::byte>{std::byte(r)});
}

TEST_CASE(
    "a session may begin with the snapshot of its first version: it is told when the run begins, and has the sums of "
    "that time") {
  const SumState sums{3, {{"layer0.down", {17, 2.0f}}}};
  for (const std::int64_t first : {0, 5}) {
    CAPTURE(first);
    Planted job({1}, sums, first);
    job.plan = plan_of_snapshots({1});
    SeenSnapshots snapshots([&](std::int64_t version) { return version == first; });
    job.snapshots = &snapshots;
    job.begin();
    REQUIRE(job.started.ok());
    REQUIRE(snapshots.versions("begun") == std::vector<std::int64_t>{first});
    const SumState at_begin = job.session->sums();
    CHECK(at_begin.updates == 3);
    CHECK(at_begin.scales.at("layer0.down") == SumScale{17, 2.0f});
    REQUIRE(job.vote().ok());
    CHECK_FALSE(job.session->sums() == at_begin);
    REQUIRE(job.session->handle(0, Closed{job.plan.program("snapshot"), first, {}, 0}).ok());
    REQUIRE(snapshots.written_versions.count(first) == 1);
    CHECK(snapshots.written_versions.at(first) == at_begin);
  }
}

TEST_CASE("a version that is due while its observer has no room is skipped, and told; the last version is taken") {
  Planted job({1});
  job.plan = plan_of_snapshots({1});
  job.options.steps = 3;
  SeenSnapshots snapshots([](std::int64_t version) { return version > 0; });
  snapshots.room = [] { return false; };
  job.snapshots = &snapshots;
  job.begin();
  while (job.session->committed() < 3) REQUIRE(job.vote().ok());
  CHECK(snapshots.versions("skipped") == std::vector<std::int64_t>{1, 2});
  CHECK(snapshots.versions("begun") == std::vector<std::int64_t>{3});
  for (const CommitStep& m : job.commits)
    CHECK((m.readers >> job.plan.program("snapshot") & 1) == (m.step == 2 ? 1 : 0));
}

TEST_CASE(
    "a session whose training has diverged commits nothing more and hears the readers of the versions before: their "
    "evaluation and their shards are told, and none is left then") {
  Planted job({2});
  job.plan = plan_of_snapshots({2});
  job.options.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1; });
  job.snapshots = &snapshots;
  std::vector<std::string> told;
  job.options.on_closed = [&](const std::string& program, std::int64_t step, const std::vector<Report>&) {
    told.push_back(program + " " + std::to_string(step));
  };
  snapshots.on_written = [&](std::int64_t version) { told.push_back("shards " + std::to_string(version)); };
  job.begin();
  REQUIRE(job.vote().ok());
  CHECK_FALSE(job.session->readers_left());  // a question after divergence only
  job.loss = inf;
  CHECK(says(job.vote(), "training has diverged"));
  for (const char* program : {"evaluate", "snapshot"})
    for (Rank r : {0, 1}) {
      CHECK(job.session->diverged());
      CHECK(job.session->readers_left());
      CHECK(job.session->handle(r, Closed{job.plan.program(program), 1, {}, 0}).ok());
    }
  CHECK(told == std::vector<std::string>{"evaluate 1", "shards 1"});
  CHECK(job.session->diverged());
  CHECK_FALSE(job.session->readers_left());
  CHECK_FALSE(job.session->finished());
  CHECK(job.commits.size() == 1);
}

TEST_CASE(
    "after the digest of the last version has told of divergence, readers of the versions before it are waited for, "
    "and the snapshot of the last version is not") {
  Planted job({1});
  job.plan = plan_of_snapshots({1});
  job.options.steps = 2;
  job.options.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  SeenSnapshots snapshots([](std::int64_t version) { return version == 2; });
  job.snapshots = &snapshots;
  job.begin();
  while (job.session->committed() < 2) REQUIRE(job.vote().ok());
  REQUIRE(snapshots.versions("begun") == std::vector<std::int64_t>{2});
  std::vector<Report> digests;
  for (const auto& param : job.plan.params)
    digests.push_back({Report::Kind::digest,
                       param.name + "|all",
                       2,
                       -1,
                       {0, 0, param.name == "layer0.up" ? 0.0 : 1.0,
                        static_cast<double>(elements(job.plan.tensors[param.tensor].shape))},
                       {}});
  CHECK(says(job.session->handle(0, Closed{job.plan.program("digest"), 2, digests, 0}),
             "parameter 'layer0.up' is not finite after step 2: training has diverged"));
  CHECK(job.session->readers_left());
  CHECK(job.session->handle(0, Closed{job.plan.program("evaluate"), 1, {}, 0}).ok());
  CHECK_FALSE(job.session->readers_left());
  CHECK(snapshots.versions("written").empty());
}

TEST_CASE(
    "a checkpoint's version has the sums that it had when its snapshot began, however far the job is when it is "
    "written") {
  Planted job({1});
  job.plan = plan_of_snapshots({1});
  SeenSnapshots snapshots([](std::int64_t version) { return version == 1 || version == 2; });
  auto& saved = snapshots.written_versions;
  job.snapshots = &snapshots;
  job.begin();
  const auto snapshot = job.plan.program("snapshot");
  job.peak(0, "layer0.up", 3);
  CHECK(job.vote().ok());
  job.peak(0, "layer0.up", 1e8, 1);
  CHECK(job.vote().ok());
  CHECK(job.vote().ok());
  for (const std::int64_t version : {1, 2}) CHECK(job.session->handle(0, Closed{snapshot, version, {}, 0}).ok());
  REQUIRE(saved.size() == 2);
  CHECK(saved[1].updates == 1);
  CHECK(saved[1].scales.at("layer0.up") == SumScale{50 - 12 - 2, 3});
  CHECK(saved[2].updates == 1);
  CHECK(saved[2].scales.at("layer0.up") == SumScale{50 - 12 - 27, 0});
  CHECK(saved[2].scales.at("layer0.down") == SumScale{43, 1e-3f});
}

TEST_CASE(
    "a run that is paused ends with the steps that its places have begun, with its digest and with a snapshot, and "
    "begins no other") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const auto digest = p->program("digest"), snapshot = p->program("snapshot");
  for (const std::int64_t steps : {1000, 4}) {  // paused; at its end anyway
    CAPTURE(steps);
    std::vector<std::pair<std::int32_t, std::int64_t>> gone;
    bool stopped = false;
    SessionOptions options;
    options.steps = steps;
    SeenSnapshots snapshots([](std::int64_t version) { return version == 4; });
    Session session(*p, options, &snapshots, [&](Rank, const ToWorker& m) {
      if (const auto* go = std::get_if<Go>(&m)) gone.push_back({go->program, go->step});
      stopped |= std::holds_alternative<Stop>(m);
    });
    REQUIRE(session.begin().ok());
    const auto vote = [&] { return session.handle(0, Closed{0, session.committed(), {}, 0, told(*p, 0, 1, 1e-3f)}); };
    REQUIRE(vote().ok());
    REQUIRE(vote().ok());
    CHECK(session.earliest_end() == 4);
    session.pause_at(4);
    CHECK(session.earliest_end() == 4);
    REQUIRE(vote().ok());
    REQUIRE(vote().ok());
    CHECK(session.committed() == 4);
    std::int64_t last = 0;
    for (const auto& [program, step] : gone)
      if (program == 0) last = std::max(last, step);
    CHECK(last == 3);
    CHECK(std::count(gone.begin(), gone.end(), std::pair<std::int32_t, std::int64_t>(digest, 4)) == 1);
    CHECK(std::count(gone.begin(), gone.end(), std::pair<std::int32_t, std::int64_t>(snapshot, 4)) == 1);
    CHECK_FALSE(session.finished());
    REQUIRE(session.handle(0, Closed{digest, 4, {}, 0}).ok());
    REQUIRE(session.handle(0, Closed{snapshot, 4, {}, 0}).ok());
    CHECK(session.finished());
    CHECK(stopped);
  }
}

TEST_CASE("a run that is asked to begin after its last step runs none: it tells the digest and ends") {
  Planted job({1}, {}, 7);
  job.options.steps = 4;
  job.begin();
  CHECK(job.started.ok());
  REQUIRE(job.gone.size() == 1);
  CHECK(job.gone[0].program == job.plan.program("digest"));
  CHECK(job.gone[0].step == 7);
  CHECK(job.session->committed() == 7);
}

TEST_CASE("a plan that does not train has versions, too: each step makes one, and a run that is paused ends with its") {
  Graph g(ops());
  g.program("evaluate", {2, 2});
  g.unit("all");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  g.report("y", g.op("linear", {x, g.param("w", {1, 6}, Init::normal(0.3f))})[0]);
  CompileOptions o;
  o.stages = stage_meshes({1});
  const auto p = compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  std::vector<CommitStep> commits;
  std::vector<std::int64_t> gone;
  SessionOptions options;
  options.first_step = 3;
  options.steps = 1000;
  Session session(*p, options, nullptr, [&](Rank, const ToWorker& m) {
    if (const auto* go = std::get_if<Go>(&m)) gone.push_back(go->step);
    if (const auto* c = std::get_if<CommitStep>(&m)) commits.push_back(*c);
  });
  REQUIRE(session.begin().ok());
  const auto close = [&](std::int64_t step) { return session.handle(0, Closed{0, step, {}, 0}); };
  for (std::int64_t step = 3; step < 8; ++step) REQUIRE(close(step).ok());
  CHECK(session.committed() == 8);
  CHECK(session.earliest_end() == 10);
  session.pause_at(10);
  REQUIRE(close(8).ok());
  CHECK_FALSE(session.finished());
  REQUIRE(close(9).ok());
  CHECK(session.finished());
  CHECK(session.committed() == 10);
  CHECK(gone == std::vector<std::int64_t>{3, 4, 5, 6, 7, 8, 9});
  REQUIRE(commits.size() == 7);
  for (const auto& c : commits) CHECK(c.readers == (c.step < 9 ? 1u : 0u));  // the next step reads its version
}

TEST_CASE(
    "readers that the plan does not have, that the session begins by itself or that are named twice end the run with "
    "an error that names them, before any place hears of the version") {
  const Plan plan = plan_of_snapshots({1});
  struct Wrong {
    std::vector<std::string> names;
    std::string why;
  };
  const std::vector<Wrong> cases = {{{"evaluate", "evaluat"}, "'evaluat', which the plan does not have"},
                                    {{"train"}, "'train', which the session begins by itself"},
                                    {{"digest"}, "'digest', which the session begins by itself"},
                                    {{"snapshot"}, "'snapshot', which the session begins by itself"},
                                    {{"evaluate", "evaluate"}, "'evaluate', twice"}};
  for (const Wrong& wrong : cases)
    for (const std::int64_t version : {0, 1}) {
      CAPTURE(wrong.why);
      CAPTURE(version);
      Planted job({1});
      job.plan = plan;
      job.options.readers = [&](std::int64_t v) { return v == version ? wrong.names : std::vector<std::string>{}; };
      job.begin();
      CHECK(job.started.ok() == (version > 0));
      CHECK(job.begun.empty() == (version == 0));
      const Status s = job.vote();
      CHECK(s.code() == Code::invalid);
      CHECK_MESSAGE(s.message() == "SessionOptions::readers names for version " + std::to_string(version) +
                                       " the program " + wrong.why,
                    s.message());
      CHECK(job.commits.empty());
      CHECK(job.session->committed() == 0);
    }
}

TEST_CASE("a digest that leaves an element out, or tells of one twice, is refused with the parameter's name") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Reductions reductions(*p);
  std::vector<Closed> places(1);
  for (const auto& param : p->params) {
    const auto& shape = p->tensors[param.tensor].shape;
    const auto n = static_cast<double>(elements(shape));
    places[0].reports.push_back(
        {Report::Kind::digest, param.name + "|" + to_string(Extent::whole(shape)), 4, -1, {1, 2, 1, n}, {}});
  }
  const auto whole = reductions.digest(places);
  REQUIRE_MESSAGE(whole.ok(), whole.status().message());
  CHECK(whole->params_hash.size() == 32);
  REQUIRE(p->params.size() > 1);
  for (std::size_t i = 0; i < p->params.size(); ++i) {
    auto fewer = places;
    fewer[0].reports.erase(fewer[0].reports.begin() + static_cast<std::ptrdiff_t>(i));
    auto more = places;
    more[0].reports.push_back(places[0].reports[i]);
    more[0].reports.back().name = p->params[i].name + "|[0:1]";
    for (const auto& wrong : {fewer, more}) {
      const auto refused = reductions.digest(wrong);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.status().message().find("the digests of parameter '" + p->params[i].name + "' are of ") == 0);
    }
  }
  // A run without kernels tells of nothing.
  CHECK(reductions.digest({Closed{}}).ok());
}

namespace {

/// CPU time of the cheapest of some steps of a job of so many replicas.
double seconds_of_step(std::int64_t replicas) {
  Shape_ shape;
  shape.microbatches = replicas;
  const auto plan = compile_over(graph(ops(), shape), {replicas});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  SessionOptions options;
  options.steps = 5;
  Session session(*plan, options, nullptr, [](Rank, const ToWorker&) {});
  REQUIRE(session.begin().ok());
  const Rank places = plan->workers();
  std::vector<Closed> votes;
  for (Rank r = 0; r < places; ++r) votes.push_back({0, 0, {}, 0, told(*plan, r, 1, 1e-3f)});
  double least = HUGE_VAL;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    Status s;
    const double begin = cpu_seconds();
    for (Rank r = 0; r < places && s.ok(); ++r) {
      votes[static_cast<std::size_t>(r)].step = step;
      s = session.handle(r, votes[static_cast<std::size_t>(r)]);
    }
    least = std::min(least, cpu_seconds() - begin);
    REQUIRE_MESSAGE(s.ok(), s.message());
    REQUIRE(session.committed() == step + 1);
  }
  return least;
}

}  // namespace

TEST_CASE("a step costs the session time in proportion to the places of the job, not to their square") {
  const double few = seconds_of_step(1000), many = seconds_of_step(16'000);
  MESSAGE("1,000 places: " << few * 1e3 << " ms, 16,000: " << many * 1e3 << " ms");
  CHECK(many < 3 * 16 * few);
}
