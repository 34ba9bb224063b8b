// How a coordinator judges machines that it reaches, and that do not reach each other (CR-7 cut links).
#include "tests/runtime/three_places.h"

using namespace three_places;

namespace {

constexpr std::int64_t wait_ns = 60'000 * ms;
const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;

/// Places 0 and 1 are of machine 4, place 2 is of machine 5, but for what a test says; pings do not pass between some.
struct PartedPlaces : ThreePlaces {
  std::map<Rank, RankList> unheard{{0, {2}}, {1, {2}}, {2, {0, 1}}};
  std::int64_t now = 0;

  explicit PartedPlaces(const std::vector<std::int64_t>& stages = {3})
      : ThreePlaces(
            nullptr, 0, false, 3, budget, [](CoordinatorOptions& o) { o.wait_for_places_ns = wait_ns; }, stages) {
    machines = {{0, 4}, {1, 4}, {2, 5}};
  }
  void begin() {
    do_three_steps();
    all_hold({3});
  }
  /// No place makes progress, until the coordinator sets some aside or kills one.
  void stand_still(std::int64_t most_ns = 4 * budget) {
    const std::int64_t until = now + most_ns;
    const std::size_t before = aside.size() + killed.size();
    for (; now < until && aside.size() + killed.size() == before; now += beat) {
      for (Rank r = 0; r < 3; ++r) hear_in_batch(r, Progress{0, false, {}, 0, unheard[r]}, now);
      for (Rank r = 0; r < 3; ++r) hear_in_batch(r, Explained{"waits\n"}, now);
      coordinator.turn(now);
    }
  }
  /// The machine of place 2 is lost, as a machine that was set aside is, and the others leave.
  void lose_two() {
    ends(2, ProcessEnd::Kind::lost, "worker 2 was lost with machine b: it is set aside", now);
    coordinator.turn(now);
    for (const Rank r : {0, 1}) hear(r, Quiesced{holds[r]}, now);
  }
  void two_comes_back() {
    REQUIRE(coordinator.waits_for(PlaceId{2}));
    coordinator.comes_back(PlaceId{2}, holds[2], now);
    coordinator.turn(now);
    enter(now);
    hear(0, Progress{++acts, false, {}, 0, unheard[0]}, now);
  }
  std::int64_t acts = 0;
};

}  // namespace

TEST_CASE("of two machines that do not reach each other one is set aside with all its places, and none is killed") {
  PartedPlaces job;
  job.begin();
  SUBCASE("the one of fewer links that work: both have one peer, so the higher number") {
    job.stand_still();
    CHECK(job.aside == RankList{2});
  }
  SUBCASE("places without a cut link of their own go with it") {
    job.machines = {{0, 5}, {1, 5}, {2, 4}};
    job.unheard = {{0, {2}}, {1, {}}, {2, {0}}};
    job.stand_still();
    CHECK(job.aside == RankList{0, 1});
  }
  SUBCASE("the one in more such pairs") {
    job.machines = {{0, 1}, {1, 2}, {2, 3}};
    job.unheard = {{0, {1, 2}}, {1, {0}}, {2, {0}}};
    job.stand_still();
    CHECK(job.aside == RankList{0});
  }
  CHECK(job.killed.empty());
}

TEST_CASE("places of one machine that do not reach each other are judged alone, wherever others are") {
  PartedPlaces job;
  job.begin();
  job.unheard = {{0, {1}}, {1, {0}}, {2, {}}};
  job.stand_still();
  CHECK(job.killed == RankList{1});
  CHECK(job.aside.empty());
}

TEST_CASE("the machine stays without which the others do not have all of the state") {
  PartedPlaces job({2, 1});  // place 2 alone has the second stage
  job.enter();
  job.machines = {{0, 4}, {1, 5}, {2, 6}};
  job.unheard = {{0, {2}}, {1, {}}, {2, {0}}};
  job.stand_still(CoordinatorOptions().stall_s * 1'000 * ms);
  CHECK(job.aside == RankList{0});
}

TEST_CASE("machines that do not reach each other are one incident until a step is done, however often they are tried") {
  PartedPlaces job;
  job.begin();
  for (int tries = 0; tries < 6; ++tries) {
    CAPTURE(tries);
    job.stand_still();
    REQUIRE(std::ssize(job.aside) == tries + 1);
    job.lose_two();
    REQUIRE(job.coordinator.waits_for_places());
    CHECK(job.incidents.empty());
    job.two_comes_back();
    REQUIRE_FALSE(job.coordinator.over());
  }
  job.unheard.clear();
  job.commit(3, job.now);
  job.hear(0, Progress{++job.acts, false, {}, 0, {}}, job.now);
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].lost == std::vector<std::int32_t>{2});
  CHECK(job.incidents[0].cause.starts_with(
      "worker 2 and worker 0, worker 1 do not reach each other, though both are heard here; worker 2 was lost with "
      "machine b: it is set aside\n"));
}

TEST_CASE("a job whose machines do not reach each other ends when it has waited for them as long as for any") {
  PartedPlaces job;
  job.begin();
  while (!job.coordinator.over() && job.now < 2 * wait_ns) {
    job.stand_still();
    job.lose_two();
    if (job.coordinator.waits_for_places()) job.two_comes_back();
  }
  CHECK(job.now >= wait_ns);
  CHECK(job.now <= wait_ns + 4 * budget);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_worker);
  CHECK(r.status.message().find("machines have not reached each other for 6") != std::string::npos);
}
