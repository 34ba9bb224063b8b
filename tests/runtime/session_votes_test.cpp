// What a session makes of votes: commits, void steps, divergence, scales of sums, and what it refuses.
#include <cmath>

#include "tests/runtime/cpu_seconds.h"
#include "tests/runtime/planted_votes.h"

using namespace planted_votes;

namespace {

constexpr float inf = HUGE_VALF;

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
  CHECK_FALSE(job.commits[0].commits.at(0).void_step);
  CHECK_FALSE(job.steps[0].void_step);
}

TEST_CASE("what actors report of a step comes with its result, by name and microbatch; losses and others' do not") {
  const auto p = plan(kernels::standard_ops(), {}, {2});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  SessionOptions options;
  options.steps = 2;
  std::vector<StepResult> steps;
  options.on_step = [&](const StepResult& r) { steps.push_back(r); };
  Session session(*p, options, nullptr, [](Rank, const ToWorker&) {});
  REQUIRE(session.begin().ok());
  const auto value = [](const char* name, std::int32_t microbatch, double v) {
    return Report{Report::Kind::value, name, 0, microbatch, {v}};
  };
  const std::vector<std::vector<Report>> reports = {
      {value("b", 0, 1), value("a", 2, 2), {Report::Kind::loss, "loss", 0, 0, {5}}},
      {value("a", 1, 3), value("b", 1, 4)}};
  for (const Rank r : {0, 1})
    REQUIRE(session.handle(r, Closed{0, 0, reports[static_cast<std::size_t>(r)], 0, told(*p, r, 1, 1e-3f)}).ok());
  REQUIRE(steps.size() == 1);
  std::vector<double> values;
  for (const Report& r : steps[0].reports) values.push_back(r.values.at(0));
  CHECK(values == std::vector<double>{3, 2, 1, 4});
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
  CHECK(job.commits[0].commits.at(0).update == 4);
  CHECK(job.commits[1].commits.at(0).update == 5);
  Planted old({1}, {}, 5);
  old.begin();
  CHECK(old.vote().ok());
  CHECK(old.commits[0].commits.at(0).update == 6);
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
    CHECK(job.commits[0].commits.at(0).void_step);
    CHECK(job.commits[0].commits.at(0).update == 1);
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
    CHECK_FALSE(job.commits[1].commits.at(0).void_step);
    CHECK(job.commits[1].commits.at(0).update == 1);  // the first
    CHECK(job.vote().ok());
    CHECK(job.commits[2].commits.at(0).update == 2);
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
    CHECK(job.commits[0].commits.at(0).grad_scale == (norm < 0.5 ? 1 : 0.5 / job.steps[0].grad_norm));
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
  wrong([](auto& o) { o.lr = [](std::int64_t) { return 1e39; }; }, "SessionOptions::lr of step 0 is 1e+39");
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
