// The decisions of a run, told by hand what a sink would hear.
#include <doctest/doctest.h>

#include <set>

#include "runtime/session/decisions.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

/// Keeps what is decided.
struct Sink final : DecisionSink {
  std::vector<std::int32_t> reads;  // each version
  std::int32_t voters = 1;          // that take each microbatch of a feed
  std::vector<ProgramStep> gone;
  struct Sent {
    std::string feed;
    ProgramStep step;
    std::int32_t microbatch = 0;
    bool operator==(const Sent&) const = default;
  };
  std::vector<Sent> sent;

  Expected<std::vector<std::int32_t>> readers(std::int64_t, bool) override { return reads; }
  void snapshot_skipped(std::int64_t) override {}
  void go(ProgramStep step) override { gone.push_back(step); }
  Expected<std::vector<std::int32_t>> feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                           const Report*) override {
    sent.push_back({feed.channel->name, step, microbatch});
    std::vector<std::int32_t> takers;
    for (std::int32_t v = 0; v < voters; ++v) takers.push_back(v);
    return takers;
  }
};

/// A program of `microbatches` that reads `feeds`; the first waits for a report from its `at_once`-th microbatch on.
Plan fed_plan(std::int64_t microbatches, int feeds, std::int64_t at_once = 0) {
  static const auto ops = kernels::standard_ops();
  Graph g(ops);
  g.program("relay", {microbatches, 1});
  g.unit("only");
  for (int i = 0; i < feeds; ++i) {
    const std::string name = std::string(1, static_cast<char>('a' + i));
    const bool waits = i == 0 && at_once > 0;
    const Value x = g.feed(name, {DType::i32, {1}}, waits ? "token" : "", waits ? at_once : 1);
    g.report(i == 0 ? "token" : "token " + name,
             g.actor("echo", "echo " + name, {x}, {{"token", {DType::i32, {1}}}})[0]);
  }
  auto p = compile_over(g, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// Each of `voters` votes for each program.
std::vector<std::vector<bool>> all_vote(const Plan& plan, std::size_t voters) {
  return std::vector<std::vector<bool>>(plan.programs.size(), std::vector<bool>(voters, true));
}

std::vector<std::int64_t> state(const Decisions& d) {
  std::vector<std::int64_t> out;
  d.append_state(out);
  return out;
}

bool has_words(const Status& s, const std::string& what) { return s.message().find(what) != std::string::npos; }

}  // namespace

TEST_CASE(
    "SE-1 (one commit): a step has its last vote when each voter has given the one it has; no other vote counts") {
  const Plan plan = fed_plan(1, 1);
  Sink sink;
  Decisions d(plan, 0, 3, {{true, false, true}}, sink);
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(has_words(d.check_vote({0, 0}, 1), "worker 1 closes step 0 of program 0, which is not open there"));
  CHECK(has_words(d.check_vote({0, 2}, 0), "worker 0 closes step 2 of program 0, which is not open there"));
  REQUIRE(d.check_vote({0, 0}, 0).ok());
  CHECK_FALSE(d.vote({0, 0}, 0));
  CHECK(has_words(d.check_vote({0, 0}, 0), "which is not open there"));
  CHECK(d.first_missing() == std::pair(ProgramStep{0, 0}, 2));
  REQUIRE(d.check_vote({0, 0}, 2).ok());
  CHECK(d.vote({0, 0}, 2));
  CHECK_FALSE(d.open({0, 0}));
}

TEST_CASE("SE-2 (versions): a voter that skips the step that is due is refused, so steps are voted in their order") {
  const Plan plan = fed_plan(1, 1);
  Sink sink;
  Decisions d(plan, 5, 9, all_vote(plan, 2), sink);
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(sink.gone == std::vector<ProgramStep>{{0, 5}, {0, 6}});
  CHECK(has_words(d.check_vote({0, 6}, 0), "worker 0 votes for step 6 while step 5 is due"));
  CHECK_FALSE(d.vote({0, 5}, 0));
  CHECK(d.check_vote({0, 6}, 0).ok());  // its own vote is in
  CHECK_FALSE(d.vote({0, 6}, 0));
  CHECK(has_words(d.check_vote({0, 6}, 1), "while step 5 is due"));
  CHECK(d.vote({0, 5}, 1));
  CHECK(d.check_vote({0, 6}, 1).ok());  // step 5 has its votes
  const auto readers = d.commit();
  REQUIRE(readers.ok());
  CHECK(*readers == 1);
  CHECK(d.committed() == 6);
  CHECK(sink.gone.size() == 2);  // until begin_due
  REQUIRE(d.begin_due().ok());
  CHECK(sink.gone == std::vector<ProgramStep>{{0, 5}, {0, 6}, {0, 7}});
}

TEST_CASE(
    "CO-6 (readers): where versions are kept, a step waits for who reads a version before it, and else does not") {
  for (const bool keeps : {false, true}) {
    CAPTURE(keeps);
    CompileOptions o;
    o.stages = stage_meshes({1});
    o.keeps_version = keeps;
    const auto plan = compile(graph(ops(), {}), o);
    REQUIRE(plan.ok());
    const std::int32_t train = plan->program("train"), evaluate = plan->program("evaluate");
    Sink sink;
    sink.reads = {evaluate};  // version 0
    Decisions d(*plan, 0, 9, all_vote(*plan, 1), sink);
    REQUIRE(d.begin().ok());
    REQUIRE(d.begin_due().ok());
    sink.reads = {};
    CHECK_FALSE(d.due_commit());
    CHECK(d.vote({train, 0}, 0));
    CHECK(d.due_commit() == 0);  // step 0 itself reads version 0
    REQUIRE(d.commit().ok());
    REQUIRE(d.begin_due().ok());
    CHECK(d.vote({train, 1}, 0));
    CHECK(d.oldest_read() == 0);
    CHECK(d.due_commit().has_value() == !keeps);
    CHECK(d.vote({evaluate, 0}, 0));
    CHECK(d.due_commit() == 1);
    CHECK_FALSE(d.oldest_read());
  }
}

TEST_CASE("a step waits for no snapshot: the disk does not hold training up (CO-6 readers)") {
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.keeps_version = true;
  o.snapshots = 2;
  const auto plan = compile(graph(ops(), {}), o);
  REQUIRE(plan.ok());
  const std::int32_t train = plan->program("train");
  Sink sink;
  sink.reads = {plan->program("snapshot")};
  Decisions d(*plan, 0, 9, all_vote(*plan, 1), sink);
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  sink.reads = {};
  CHECK(d.vote({train, 0}, 0));
  REQUIRE(d.commit().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(d.vote({train, 1}, 0));
  CHECK(d.due_commit() == 1);
  CHECK_FALSE(d.oldest_read());
}

TEST_CASE(
    "the window of a feed counts what is on its way in all open steps, of that feed alone, also of one that waits") {
  const auto window = static_cast<std::int32_t>(feed_window);
  {
    const Plan plan = fed_plan(10, 1);
    Sink sink;
    Decisions d(plan, 0, 4, all_vote(plan, 1), sink);
    REQUIRE(d.begin().ok());
    REQUIRE(d.begin_due().ok());
    REQUIRE(sink.sent.size() == feed_window);
    CHECK(sink.sent[9] == Sink::Sent{"a", {0, 0}, 9});
    CHECK(sink.sent[10] == Sink::Sent{"a", {0, 1}, 0});
    CHECK(d.taken({0, 0}, 0, "a", 3).ok());
    REQUIRE(sink.sent.size() == feed_window + 1);
    CHECK(sink.sent.back() == Sink::Sent{"a", {0, 1}, window - 10});
  }
  {
    const Plan plan = fed_plan(200, 1, 40);
    Sink sink;
    Decisions d(plan, 0, 1, all_vote(plan, 1), sink);
    REQUIRE(d.begin().ok());
    REQUIRE(d.begin_due().ok());
    CHECK(sink.sent.size() == feed_window);
    for (std::int32_t m = 0; m < 100; ++m) CHECK(d.taken({0, 0}, 0, "a", std::min(m, 39)).ok() == (m < 40));
    CHECK(sink.sent.size() == 40);  // the next one waits for a report
    Report token;
    token.name = "token";
    token.microbatch = 38;
    CHECK(d.reported({0, 0}, token).ok());
    CHECK(sink.sent.size() == 40);
    token.microbatch = 39;
    CHECK(d.reported({0, 0}, token).ok());
    CHECK(sink.sent.size() == 41);
  }
  {
    const Plan plan = fed_plan(50, 2);
    Sink sink;
    Decisions d(plan, 0, 1, all_vote(plan, 1), sink);
    REQUIRE(d.begin().ok());
    REQUIRE(d.begin_due().ok());
    for (const char* name : {"a", "b"})
      CHECK(std::count_if(sink.sent.begin(), sink.sent.end(), [&](const auto& s) { return s.feed == name; }) == window);
  }
}

TEST_CASE(
    "a microbatch is taken when each place that runs it has said so, once; the place that says it twice is refused") {
  const Plan plan = fed_plan(200, 1);
  Sink sink;
  sink.voters = 3;
  Decisions d(plan, 0, 1, all_vote(plan, 4), sink);
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(d.taken({0, 0}, 1, "a", 0).ok());
  CHECK(has_words(d.taken({0, 0}, 1, "a", 0),
                  "worker 1 has taken microbatch 0 of feed 'a', which is not on its way there"));
  CHECK(has_words(d.taken({0, 0}, 3, "a", 0),
                  "worker 3 has taken microbatch 0 of feed 'a', which is not on its way there"));
  CHECK(has_words(d.taken({0, 0}, 0, "a", 16), "which is not on its way there"));
  CHECK(d.taken({0, 0}, 0, "a", 0).ok());
  CHECK(sink.sent.size() == feed_window);
  CHECK(d.taken({0, 0}, 2, "a", 0).ok());
  CHECK(sink.sent.size() == feed_window + 1);
}

TEST_CASE("the state of decisions changes with each vote, commit, microbatch and report that later ones depend on") {
  const Plan plan = fed_plan(200, 1, 40);
  Sink sink;
  sink.voters = 2;
  Decisions d(plan, 0, 3, all_vote(plan, 2), sink);
  std::set<std::vector<std::int64_t>> states{state(d)};
  const auto fresh = [&] { return states.insert(state(d)).second; };
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(fresh());
  CHECK(d.taken({0, 0}, 1, "a", 0).ok());
  CHECK(fresh());
  CHECK(d.taken({0, 0}, 1, "a", 1).ok());
  CHECK(fresh());
  CHECK(d.taken({0, 0}, 0, "a", 1).ok());
  CHECK(fresh());
  CHECK_FALSE(d.vote({0, 0}, 1));
  CHECK(fresh());
  CHECK(d.vote({0, 0}, 0));
  CHECK(fresh());
  REQUIRE(d.commit().ok());
  CHECK(fresh());
  REQUIRE(d.begin_due().ok());
  CHECK(fresh());
}

TEST_CASE("a run ends with the earliest version that it is told to end with, and begins no step beyond it") {
  const Plan plan = fed_plan(1, 1);
  Sink sink;
  Decisions d(plan, 0, 4, all_vote(plan, 1), sink);
  REQUIRE(d.begin().ok());
  REQUIRE(d.begin_due().ok());
  CHECK(d.earliest_end() == 2);
  d.end_with(9);
  CHECK(d.last() == 4);
  d.end_with(3);
  d.end_with(4);
  CHECK(d.last() == 3);
  for (std::int64_t s = 0; s < 3; ++s) {
    CHECK(d.earliest_end() == std::min<std::int64_t>(3, s + 2));
    REQUIRE(d.check_vote({0, s}, 0).ok());
    REQUIRE(d.vote({0, s}, 0));
    const auto readers = d.commit();
    REQUIRE(readers.ok());
    CHECK(*readers == (s < 2 ? 1 : 0));
    REQUIRE(d.begin_due().ok());
  }
  CHECK(d.idle());
  CHECK(d.earliest_end() == 3);
  CHECK(sink.gone == std::vector<ProgramStep>{{0, 0}, {0, 1}, {0, 2}});
}
