// What a job that begins anew finds with its agents.
#include "runtime/launch/kept_run.h"

#include <doctest/doctest.h>

#include "runtime/launch/kept_plans.h"
#include "runtime/plan/plan_io.h"
#include "tests/runtime/three_places.h"

using namespace troupe;
using namespace troupe::runtime;
using three_places::ThreePlaces;
using Versions = std::vector<std::int64_t>;

namespace {

/// Three places, each of which alone has a third of the moments.
struct ThreeAgents {
  const Plan plan = ThreePlaces::make_plan(3, false, 1);
  std::vector<AgentPort::Joined> agents;

  Joins& add(std::vector<KeptPlace> kept, std::uint32_t generation = 4, std::uint64_t job = 9) {
    Joins joins;
    joins.machine = "m" + std::to_string(agents.size());
    joins.places = 3;
    joins.kept.of = {job, generation};
    joins.kept.places = std::move(kept);
    joins.kept.plan = digest_of_plan(plan, "run");
    for (const std::int64_t version : {5, 6, 7}) joins.kept.states.emplace_back(version, state_of(version));
    agents.push_back({nullptr, "peer", std::move(joins)});
    return agents.back().joins;
  }
  static SharedBytes state_of(std::int64_t version) {
    SumState sums;
    sums.updates = version;
    return std::make_shared<const std::vector<std::byte>>(encode_sums(sums));
  }
  std::optional<KeptRun> newest(std::int64_t most = 100, const std::string& run = "run") const {
    return newest_kept(agents, plan, run, most);
  }
};

KeptPlace kept(std::int32_t place, Rank rank, const Versions& versions) { return {PlaceId{place}, versions, rank}; }

}  // namespace

TEST_CASE("the newest version that agents have kept together is what a job goes on from") {
  ThreeAgents three;
  three.add({kept(0, 0, {5, 6}), kept(1, 1, {6, 7})});
  three.add({kept(4, 2, {6})});
  const auto newest = three.newest();
  REQUIRE(newest);
  CHECK(newest->version == 6);
  CHECK(newest->sums.updates == 6);
  CHECK(newest->of == JobGeneration{9, 4});
  CHECK(places_of(*newest, 3) == std::vector<PlaceId>{PlaceId{0}, PlaceId{1}, PlaceId{4}});
  CHECK_FALSE(three.newest(5));             // a line of step 5 is not written
  CHECK_FALSE(three.newest(100, "other"));  // another text, say
}

TEST_CASE(
    "a job goes on behind every generation of which an agent has heard, also one that runs another plan by then") {
  ThreeAgents three;
  three.add({kept(0, 0, {6}), kept(1, 1, {6}), kept(4, 2, {6})}, 4);
  Joins& other = three.add({kept(1, 0, {6})}, 7);
  other.kept.plan = "of another plan";
  REQUIRE(three.newest());
  CHECK(three.newest()->of == JobGeneration{9, 7});
  other.kept.of.job = 10;
  CHECK(three.newest()->of == JobGeneration{9, 4});
}

TEST_CASE("a rank that no agent has kept gets a place of its own, where others have its state") {
  ThreeAgents three;
  const Plan replicas = ThreePlaces::make_plan(3, false, 0);
  Joins& joins = three.add({kept(0, 0, {5, 6}), kept(2, 2, {6})});
  CHECK_FALSE(three.newest());  // a third of the moments is lost
  joins.kept.plan = digest_of_plan(replicas, "run");
  const auto newest = newest_kept(three.agents, replicas, "run", 100);
  REQUIRE(newest);
  CHECK(newest->version == 6);
  CHECK(places_of(*newest, 3) == std::vector<PlaceId>{PlaceId{0}, PlaceId{3}, PlaceId{2}});
}

TEST_CASE("of two agents that have kept the same rank the one counts that has heard of the later generation") {
  ThreeAgents three;
  three.add({kept(0, 0, {5}), kept(1, 1, {5})}, 4);
  three.add({kept(2, 2, {6, 7}), kept(3, 1, {6, 7})}, 6);
  three.add({kept(4, 0, {6})}, 5);
  const auto newest = three.newest();
  REQUIRE(newest);
  CHECK(newest->version == 6);
  CHECK(newest->of.number == 6);
  CHECK(places_of(*newest, 3) == std::vector<PlaceId>{PlaceId{4}, PlaceId{3}, PlaceId{2}});
}

TEST_CASE("where two agents have kept a place of the same number, it is that of one machine") {
  ThreeAgents three;
  three.add({kept(0, 0, {6}), kept(1, 1, {5})}, 4);
  three.add({kept(1, 1, {6}), kept(2, 2, {6})}, 6);
  const auto newest = three.newest();
  REQUIRE(newest);
  CHECK(newest->version == 6);
  CHECK(newest->machines == std::map<PlaceId, std::string>{{PlaceId{0}, "m0"}, {PlaceId{1}, "m1"}, {PlaceId{2}, "m1"}});
}

TEST_CASE("agents lack state where they know of a run and have not all of a version, and not where they know of none") {
  ThreeAgents three;
  KeptPlans plans(std::make_shared<const Plan>(three.plan), "run", {});
  const auto lack = [&](std::int64_t lines = 0) { return !plans.look(three.agents, lines, true).has_state; };
  CHECK_FALSE(lack());
  Joins& fresh = three.add({}, 0, 0);
  fresh.kept.states.clear();
  CHECK_FALSE(lack());  // it has served none
  Joins& idle = three.add({}, 0, 0);
  CHECK(lack());  // it has, without a place
  idle.kept.states.clear();
  CHECK_FALSE(lack());
  idle.kept.of.job = 9;
  CHECK(lack());  // it has heard of the run, and of no step
  idle.kept.of.job = 0;
  three.add({kept(0, 0, {6}), kept(1, 1, {6})});
  CHECK(lack());
  CHECK(plans.are_of_run(three.agents));
  three.add({kept(2, 2, {6})});
  CHECK_FALSE(lack());
  CHECK_FALSE(lack(7));  // the process was lost before it had told of the step, or after
  CHECK(lack(8));        // the run has come further
}

TEST_CASE("copies that are some steps old lack nothing") {
  ThreeAgents three;
  CompileOptions o;
  o.stages = stage_meshes({3});
  o.zero = 1;
  o.keeps_copies = true;
  auto compiled = compile(mlp::graph(mlp::ops(), {}), o);
  REQUIRE_MESSAGE(compiled.ok(), compiled.status().message());
  const Plan copied = *std::move(compiled);
  REQUIRE(copied.keeps_copies());
  KeptPlans plans(std::make_shared<const Plan>(copied), "run", {});
  three.add({kept(0, 0, {6}), kept(1, 1, {6}), kept(2, 2, {6})}).kept.plan = digest_of_plan(copied, "run");
  CHECK(plans.look(three.agents, 9, true).has_state);
}

TEST_CASE("agents that have kept memory of another shape of the run are gone on with, as it, by the newest version") {
  ThreeAgents three;
  const auto two = std::make_shared<const Plan>(ThreePlaces::make_plan(2, false, 1));
  Joins& liar = three.add({kept(0, 0, {9}), kept(1, 1, {9})}, 6);
  liar.kept.plan = "of another run";
  liar.kept.widths = {2};
  for (const std::int64_t version : {5, 9}) liar.kept.states.emplace_back(version, ThreeAgents::state_of(version));
  int replanned = 0;
  KeptPlans plans(std::make_shared<const Plan>(three.plan), "run", [&](const StageWidths& dp) -> Expected<Plan> {
    ++replanned;
    if (dp == StageWidths{2}) return *two;
    return invalid("no such shape");
  });
  CHECK_FALSE(plans.newest(three.agents, 100));
  Joins& later = three.add({kept(0, 0, {6, 7}), kept(1, 1, {6})}, 5);
  later.kept.plan = digest_of_plan(*two, "run");
  later.kept.widths = {2};
  auto newest = plans.newest(three.agents, 100);
  REQUIRE(newest);
  CHECK(newest->run.version == 6);
  CHECK(widths_of(*newest->plan) == StageWidths{2});
  three.agents.erase(three.agents.begin());
  CHECK(plans.look(three.agents, 6, true).of_other_shape);
  CHECK(plans.look(three.agents, 6, true).has_room);
  three.agents[0].joins.places = 1;
  CHECK_FALSE(plans.look(three.agents, 6, true).has_room);
  CHECK(plans.look(three.agents, 6, false).has_room);
  CHECK(plans.are_of_run(three.agents));
  three.add({kept(0, 0, {5}), kept(1, 1, {5}), kept(2, 2, {5})}, 4);  // of the first shape, and older
  CHECK(plans.newest(three.agents, 100)->run.version == 6);
  CHECK(widths_of(*plans.newest(three.agents, 5)->plan) == StageWidths{3});
  for (KeptPlace& place : three.agents.back().joins.kept.places) place.left = {6};  // and as new
  newest = plans.newest(three.agents, 100);
  CHECK(widths_of(*newest->plan) == StageWidths{2});  // of which the agents have heard last
  CHECK(newest->run.of.number == 5);
  three.agents.back().joins.kept.of.number = 7;
  CHECK(widths_of(*plans.newest(three.agents, 100)->plan) == StageWidths{3});
  Joins& foreign = three.add({kept(0, 0, {9})}, 6);
  foreign.kept.plan = "of another run";
  foreign.kept.widths = {1};
  CHECK(plans.newest(three.agents, 100)->run.version == 6);
  CHECK(replanned == 2);  // once for each width
}

TEST_CASE("what agents have kept of two jobs is not mixed, and the state of sums is needed") {
  ThreeAgents three;
  three.add({kept(0, 0, {6}), kept(1, 1, {6})}, 4, 9);
  Joins& other = three.add({kept(2, 2, {6})}, 4, 8);
  CHECK_FALSE(three.newest());
  other.kept.of.job = 9;
  CHECK(three.newest());
  for (AgentPort::Joined& agent : three.agents) agent.joins.kept.states.clear();
  CHECK_FALSE(three.newest());
  for (AgentPort::Joined& agent : three.agents) agent.joins.kept.places[0].rank = 3;  // the plan has none
  CHECK_FALSE(three.newest());
}
