// How a coordinator waits for its store before a generation is entered (CR-9 one leader).
#include "tests/runtime/three_places.h"

using namespace three_places;

namespace {

/// A job with a store, which has done three steps and whose place 1 is killed then; the others have left.
struct WithStore {
  std::vector<std::uint32_t> asked;  // for these generations
  ThreePlaces job;
  explicit WithStore(JobCheckpoints* checkpoints = nullptr)
      : job(checkpoints, 0, false, 3, CoordinatorOptions().detect_ns, [this](CoordinatorOptions& o) {
          o.claim = [this](JobGeneration of) {
            CHECK(of.job == 7);
            asked.push_back(of.number);
          };
        }) {
    job.do_three_steps();
    CHECK(asked.empty());  // the first generation was claimed before the job began
    job.all_hold({3});
  }
  void lose_one(std::int64_t now_ns = 0) {
    job.down(1, now_ns);
    for (const Rank r : {0, 2}) job.hear(r, Quiesced{job.holds[r]}, now_ns);
  }
  std::size_t entered(std::uint32_t generation) const { return job.who<Enter>(generation).size(); }
};

}  // namespace

TEST_CASE("a generation is asked for as places leave the one before, and entered when the store has given it") {
  WithStore with;
  ThreePlaces& job = with.job;
  job.down(1);
  CHECK(with.asked == std::vector<std::uint32_t>{3});
  SUBCASE("the store answers last") {
    for (const Rank r : {0, 2}) job.hear(r, Quiesced{job.holds[r]});
    CHECK(with.entered(3) == 0);
    CHECK(job.coordinator.state().phase == "waits for its store");
    job.coordinator.claimed({7, 2});  // of another generation
    job.coordinator.turn(ms);
    CHECK(with.entered(3) == 0);
    job.coordinator.claimed({7, 3});
    job.coordinator.turn(ms);
  }
  SUBCASE("the store answers first") {
    job.coordinator.claimed({7, 3});
    job.coordinator.turn(0);
    CHECK(with.entered(3) == 0);
    for (const Rank r : {0, 2}) job.hear(r, Quiesced{job.holds[r]});
  }
  CHECK(with.entered(3) == 3);
  CHECK(job.coordinator.state().phase == "recovers");
  job.enter(ms);
  job.commit(3, ms);
  CHECK(with.asked.size() == 1);
}

TEST_CASE(
    "while the store does not answer, a place that is lost takes the job to a later generation, and only that counts") {
  WithStore with;
  ThreePlaces& job = with.job;
  with.lose_one();
  job.down(2, ms);
  CHECK(with.asked == std::vector<std::uint32_t>{3, 4});
  job.hear(0, Quiesced{job.holds[0]}, ms);
  job.hear(1, Quiesced{job.holds[1]}, ms);
  job.coordinator.claimed({7, 3});
  job.coordinator.turn(2 * ms);
  CHECK(with.entered(3) + with.entered(4) == 0);
  job.coordinator.claimed({7, 4});
  job.coordinator.turn(2 * ms);
  CHECK(with.entered(3) == 0);
  CHECK(with.entered(4) == 3);
}

TEST_CASE("a job that waits for its store is not stalled, and ends when it has waited for the stall limit") {
  WithStore with;
  ThreePlaces& job = with.job;
  with.lose_one();
  const std::int64_t most = CoordinatorOptions().stall_s * 1000 * ms;
  for (std::int64_t now = ms; now < most; now += 100 * ms) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{8, false, {}, 0, {}}, now);
    REQUIRE_FALSE(job.coordinator.over());
    REQUIRE(job.coordinator.wakes_ns() > now);
    REQUIRE(job.coordinator.wakes_ns() <= most);
  }
  CHECK(job.killed.empty());
  CHECK(job.who<ExplainAll>(3).empty());
  job.coordinator.turn(most);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("the store has not answered for 120 s") != std::string::npos);
  CHECK(r.status.message().find("worker 1 was killed") != std::string::npos);
}

TEST_CASE("a job that is asked to end while it waits for its store ends ten seconds later at most") {
  SavedBefore checkpoints;
  WithStore with(&checkpoints);
  ThreePlaces& job = with.job;
  with.lose_one();
  job.coordinator.interrupt("interrupted by Terminated", exit_interrupted, ms);
  const auto turns = [&](std::int64_t from, std::int64_t until) {
    for (std::int64_t now = from; now < until && !job.coordinator.over(); now += 100 * ms) {
      for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{8, false, {}, 0, {}}, now);
      job.coordinator.turn(now);
    }
  };
  turns(ms, 9'000 * ms);
  REQUIRE_FALSE(job.coordinator.over());
  turns(9'000 * ms, 31'000 * ms);
  const JobResult r = job.result();
  CHECK(r.exit_code != exit_ok);
  CHECK(r.status.message().find("the store has not answered") != std::string::npos);
}

TEST_CASE("a job that another process leads by now ends, with a code of its own") {
  WithStore with;
  with.job.coordinator.superseded(Status(Code::superseded, "the run is led by b:7000 now"));
  const JobResult r = with.job.result();
  CHECK(r.exit_code == exit_superseded);
  CHECK(r.status.message().find("led by b:7000") != std::string::npos);
}
