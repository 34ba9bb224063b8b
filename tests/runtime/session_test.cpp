// The session's decisions, told by hand what workers say.
#include <doctest/doctest.h>

#include <cmath>

#include "runtime/session/session.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

TEST_CASE("a vote whose norms leave rows out commits nothing, and the error names the parameter and the rows") {
  const auto ops = kernels::standard_ops();
  const auto p = plan(ops, {}, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  for (const bool whole : {true, false}) {
    CAPTURE(whole);
    SessionOptions options;
    options.steps = 2;
    std::int64_t commits = 0;
    Session session(*p, options, [&](Rank, const ToWorker& m) { commits += std::holds_alternative<CommitStep>(m); });
    session.begin();
    Closed vote;
    for (const auto& param : p->params) {
      const auto rows = static_cast<double>(p->tensors[param.tensor].shape[0]);
      vote.reports.push_back({Report::Kind::norm, param.name, 0, -1, {0, 0, rows, 1}});
      vote.reports.push_back({Report::Kind::peak, param.name, 0, -1, {1, 0}});
    }
    REQUIRE(vote.reports[2].name == "layer0.down");
    REQUIRE(vote.reports[2].values[2] == 24);   // [0, 16) + [16, 24)
    if (!whole) vote.reports[2].values = {0, 16, 24, 1};
    const Status s = session.handle(0, vote);
    CHECK(s.ok() == whole);
    CHECK(commits == (whole ? 1 : 0));
    if (whole) continue;
    const std::string missing = "no norm is of rows [0, 16) of the 24 of 'layer0.down'";
    CHECK_MESSAGE(s.message().find(missing) != std::string::npos, s.message());
  }
}

namespace {

constexpr float inf = HUGE_VALF;

/// A job whose places say what a test plants.
struct Planted {
  Plan plan;
  SessionOptions options;
  std::vector<std::int32_t> begun;
  std::vector<CommitStep> commits;       // as the first place hears them
  std::vector<StepResult> steps;
  std::unique_ptr<Session> session;
  std::vector<std::vector<Report>> peaks;   // of the step that comes, by rank
  double norm = 1, loss = 1;                // of the same

  explicit Planted(const std::vector<std::int64_t>& dp, std::optional<SumState> sums = {}, std::int64_t first_step = 0) {
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
    session = std::make_unique<Session>(plan, options, [this](Rank r, const ToWorker& m) {
      if (r > 0) return;
      if (const auto* b = std::get_if<BeginRun>(&m)) begun = b->exponents;
      if (const auto* c = std::get_if<CommitStep>(&m)) commits.push_back(*c);
    });
    session->begin();
  }
  std::size_t index(const std::string& name) const {
    for (std::size_t i = 0; i < plan.params.size(); ++i)
      if (plan.params[i].name == name) return i;
    FAIL("no parameter " << name);
    return 0;
  }
  void peak(Rank rank, const std::string& name, double largest, int first_bad = 0) {
    peaks[static_cast<std::size_t>(rank)].push_back({Report::Kind::peak, name, session->committed(), -1, {largest, static_cast<double>(first_bad)}});
  }
  /// All places vote for the step that is due, ranks from the last to the first; the answer to the last of them. Where a test
  /// plants no other, the first place tells of a term that fits any exponent.
  Status vote() {
    const auto step = session->committed();
    for (const auto& p : plan.params) {
      const bool told = std::any_of(peaks.begin(), peaks.end(), [&](const auto& of_place) {
        return std::any_of(of_place.begin(), of_place.end(), [&](const Report& r) { return r.name == p.name; });
      });
      if (!told) peak(0, p.name, 1e-3f);
    }
    Status last;
    for (Rank r = plan.workers() - 1; r >= 0; --r) {
      Closed vote{0, step, std::exchange(peaks[static_cast<std::size_t>(r)], {}), 0};
      if (r == 0) {
        vote.reports.push_back({Report::Kind::loss, "loss", step, 0, {loss}});
        for (const auto& p : plan.params)
          vote.reports.push_back({Report::Kind::norm, p.name, step, -1, {0, 0, static_cast<double>(plan.tensors[p.tensor].shape[0]), norm}});
      }
      const auto committed = session->committed();
      last = session->handle(r, vote);
      CHECK((r == 0 || (last.ok() && session->committed() == committed)));   // decided after all votes
    }
    return last;
  }
};

bool says(const Status& s, const std::string& words) { return s.message().find(words) != std::string::npos; }

}  // namespace

TEST_CASE("exponents go out with BeginRun and with each commit, by index of the plan's parameters") {
  Planted job({2});
  job.begin();
  CHECK(job.begun == std::vector<std::int32_t>(job.plan.params.size(), 43));   // 8 microbatches
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

TEST_CASE("a run that goes on begins with its exponents and counts its updates on; one that says nothing had one in each step") {
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

TEST_CASE("SE-5: a term beyond the range makes the step void, at one place or at several, and the lowest microbatch is named, then the plan's first parameter") {
  for (const bool several : {false, true}) {
    CAPTURE(several);
    Planted job({2, 1});
    job.begin();
    job.norm = NAN;   // it means nothing
    job.peak(2, "layer2.down", 1e6, 5);
    job.peak(0, "layer0.up", 0.1);
    job.peak(0, "layer0.down", 100);   // would make its exponent coarser
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
    CHECK(job.commits[1].commit.update == 1);   // the first
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
  CHECK(says(s, "step 5: microbatch 2: a gradient term of 'layer1.up' exceeds the range of its exact sum; 3 steps in a row are void: training has diverged"));
  CHECK(job.session->diverged());
  CHECK(job.commits.size() == commits);
}

TEST_CASE("a term that is not finite: training has diverged, and named are the lowest microbatch and the first such parameter, whatever overflows") {
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
    CHECK_MESSAGE(s.message() == "step 0: microbatch 3: a gradient term of 'layer1.down' is not finite: training has diverged",
                  s.message());
    CHECK(job.session->diverged());
    CHECK(job.commits.empty());
  }
}

TEST_CASE("of a term that is not finite it is said whether the loss of its microbatch is not finite either") {
  for (const bool same : {true, false}) {
    Planted job({1});
    job.begin();
    job.loss = NAN;   // of microbatch 0
    job.peak(0, "layer0.up", NAN, same ? 1 : 4);
    const Status s = job.vote();
    CHECK_MESSAGE(says(s, "is not finite, nor is the loss of that microbatch: training has diverged") == same, s.message());
    CHECK(says(s, same ? "microbatch 0: a gradient term" : "microbatch 3: a gradient term of 'layer0.up' is not finite: training"));
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

TEST_CASE("reports of terms that cannot be are refused: another plan's parameter or microbatch, a magnitude below zero, a sum out of range that is in it") {
  const auto refused = [](const std::string& name, std::vector<double> values, const std::string& words) {
    Planted job({1});
    job.begin();
    job.peaks[0].push_back({Report::Kind::peak, name, 0, -1, std::move(values)});
    const Status s = job.vote();
    CHECK(s.code() == Code::internal);
    CHECK_MESSAGE(says(s, words), s.message());
    CHECK_FALSE(job.session->diverged());
    CHECK(job.commits.empty());
  };
  const std::string cannot_be = "worker 0 reports gradient terms of 'layer0.up' that cannot be";
  refused("layer9.up", {1, 0}, "terms of 'layer9.up' that cannot be");
  for (const std::vector<double>& values : {std::vector<double>{1}, {-1, 0}, {1e300, 1}, {1e6, 9}, {1e6, -1}, {1e6, NAN}, {1, 0, 0}}) refused("layer0.up", values, cannot_be);
  refused("layer0.up", {1, 4}, "step 0: microbatch 3: a gradient term of 'layer0.up' is said to exceed the range of its exact sum");
}

TEST_CASE("a checkpoint's version has the sums that it had when its snapshot began, however far the job is when it is written") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  Planted job({1});
  job.plan = *std::move(p);
  job.options.snapshot = [](std::int64_t version) { return version == 1 || version == 2; };
  std::map<std::int64_t, SumState> saved;
  job.options.on_shards = [&](std::int64_t version, const std::vector<Report>&, const SumState& sums) { saved[version] = sums; };
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

TEST_CASE("a run that is paused ends with the steps that its places have begun, with its digest and with a snapshot, and begins no other") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  auto p = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const auto digest = p->program("digest"), snapshot = p->program("snapshot");
  for (const std::int64_t steps : {1000, 4}) {   // paused; at its end anyway
    CAPTURE(steps);
    std::vector<std::pair<std::int32_t, std::int64_t>> gone;
    bool stopped = false;
    SessionOptions options;
    options.steps = steps;
    options.snapshot = [&](std::int64_t version) { return version == 4; };
    Session session(*p, options, [&](Rank, const ToWorker& m) {
      if (const auto* go = std::get_if<Go>(&m)) gone.push_back({go->program, go->step});
      stopped |= std::holds_alternative<Stop>(m);
    });
    session.begin();
    const auto vote = [&] {
      Closed v{0, session.committed(), {}, 0};
      for (const auto& param : p->params) {
        v.reports.push_back({Report::Kind::norm, param.name, v.step, -1, {0, 0, static_cast<double>(p->tensors[param.tensor].shape[0]), 1}});
        v.reports.push_back({Report::Kind::peak, param.name, v.step, -1, {1e-3f, 0}});
      }
      return session.handle(0, v);
    };
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
