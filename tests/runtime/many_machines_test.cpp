// A job on many machines: what it says to each agent as they come together, and hears of it.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/mlp.h"
#include "tests/runtime/stub_machines.h"

using namespace mlp;

namespace {

Plan plan_of_replicas(std::int64_t replicas) {
  Shape_ shape;
  shape.microbatches = replicas;
  shape.width = shape.hidden = 4;
  shape.layers = 1;
  CompileOptions o;
  o.stages = stage_meshes({replicas});
  o.keeps_version = true;
  auto plan = compile(graph(ops(), shape), o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *std::move(plan);
}

}  // namespace

TEST_CASE("a job for which too few machines have joined says how many, and what would have brought them") {
  JobMachines machines;
  machines.count = 2;
  machines.wait_s = 3;
  machines.joins_by = "the tasks of mpirun";
  Gathering gathering(machines, "program", {}, 0);
  CHECK_FALSE(*gathering.done(2'999'999'999));
  CHECK(gathering.done(3'000'000'000).status().message() ==
        "0 of 2 machines have joined within 3 s (the tasks of mpirun)");
  // Others may ask it meanwhile.
  CHECK(gathering.answer("ps", 0) ==
        "the job has not begun: 0 of 2 machines have joined; it waits 3 more s for the others");
  gathering.take({nullptr, "", {"north", 1, "program", "", "", {}, 1, ""}}, 0);
  CHECK(gathering.answer("scale dp=1", 2'000'000'000) ==
        "troupe: the job has not begun: 1 of 2 machines have joined: north; it waits 1 more s for the others");
  const Gathering late(machines, "program", {}, 100'000'000'000);
  CHECK(late.answer("ps", 101'000'000'000).ends_with("it waits 2 more s for the others"));
}

TEST_CASE(
    "a job that goes on takes who joins within a second, and waits for ten for the machine that has the rest of its "
    "state") {
  constexpr std::int64_t second_ns = 1'000'000'000;
  JobMachines machines;
  machines.count = 2;
  machines.wait_s = 60;
  const auto joined = [](const std::string& name) {
    Joins joins;
    joins.machine = name;
    joins.program = "program";
    return JoinedAgent{nullptr, name, joins};
  };
  KeptThere there;
  const LookAtKept has_all_of_c = [&](std::span<const JoinedAgent> agents) {
    there.has_state = std::any_of(agents.begin(), agents.end(), [](const auto& a) { return a.joins.machine == "c"; });
    return there;
  };
  Gathering begins(machines, "program", {}, 0), goes_on(machines, "program", has_all_of_c, 0);
  for (Gathering* one : {&begins, &goes_on})
    for (const char* name : {"a", "b"}) one->take(joined(name), 5 * second_ns);
  CHECK(*begins.done(5 * second_ns));
  CHECK_FALSE(*goes_on.done(15 * second_ns - 1));
  SUBCASE("it does not come") { CHECK(*goes_on.done(15 * second_ns)); }
  SUBCASE("it comes") {
    goes_on.take(joined("c"), 8 * second_ns);
    CHECK_FALSE(*goes_on.done(9 * second_ns - 1));
    CHECK(*goes_on.done(9 * second_ns));
    CHECK_FALSE(*goes_on.done(9 * second_ns - 1));
    goes_on.lost("c");
    CHECK_FALSE(*goes_on.done(9 * second_ns));
    CHECK(*goes_on.done(18 * second_ns));
  }
}

TEST_CASE(
    "a job that goes on waits for room while it may, and takes fewer machines where it has come to need no more") {
  constexpr std::int64_t second_ns = 1'000'000'000;
  JobMachines machines;
  machines.count = 2;
  machines.wait_s = 60;
  KeptThere there;
  int looks = 0;
  Gathering gathering(
      machines, "program", [&](std::span<const JoinedAgent>) { return ++looks, there; }, 0);
  const auto join = [&](const std::string& name, std::int64_t now_ns) {
    Joins joins;
    joins.machine = name;
    joins.program = "program";
    gathering.take({nullptr, name, joins}, now_ns);
  };
  join("a", second_ns);
  SUBCASE("room") {
    there.has_room = false;
    join("b", second_ns);
    CHECK_FALSE(*gathering.done(59 * second_ns));
    SUBCASE("a third brings it") {
      there.has_room = true;
      join("c", 59 * second_ns);
      CHECK(*gathering.done(60 * second_ns));
    }
    SUBCASE("none comes: the job says what it lacks") { CHECK(*gathering.done(60 * second_ns)); }
  }
  SUBCASE("fewer") {
    there.of_other_shape = true;
    CHECK_FALSE(*gathering.done(11 * second_ns - 1));
    CHECK(*gathering.done(11 * second_ns));
    CHECK(*gathering.done(12 * second_ns));
    CHECK(looks == 1);  // what agents have kept is looked at as they join
  }
  SUBCASE("fewer, without all of its state") {
    there.has_state = false, there.of_other_shape = true;
    CHECK_FALSE(*gathering.done(59 * second_ns));
  }
  SUBCASE("fewer, without room for it") {
    there.has_room = false, there.of_other_shape = true;
    CHECK_FALSE(*gathering.done(59 * second_ns));
  }
  SUBCASE("as many as it began with") { CHECK_FALSE(*gathering.done(59 * second_ns)); }
}

TEST_CASE("a machine whose processor makes other bits is refused for good, as a job gathers and when it runs") {
  using troupe::test::StubLink;
  using troupe::test::StubMachine;
  const auto late = [](StubMachine& machine) {
    Joins joins{"late", 1, "program", "", "h", {}};
    joins.numbers = "y";
    return JoinedAgent{std::make_unique<StubLink>(machine), "peer", std::move(joins)};
  };
  const auto said = [](const StubMachine& machine) {
    REQUIRE(machine.to_agent.size() == 1);
    auto order = decode_to_agent(machine.to_agent[0]);
    REQUIRE(order.ok());
    return *std::move(order);
  };
  const auto check_refused = [&](const StubMachine& machine) {
    const auto order = said(machine);
    REQUIRE(std::holds_alternative<Refused>(order));
    const auto& refused = std::get<Refused>(order);
    CHECK_MESSAGE(refused.why.find("makes other bits of the same values than machine machine0") != std::string::npos,
                  refused.why);
    CHECK_FALSE(refused.for_now);
  };
  const Plan plan = plan_of_replicas(2);
  for (const bool mixed : {false, true}) {
    CAPTURE(mixed);
    StubMachine joins, gathers, first;
    troupe::test::StubMachines all(plan, 2, 1, mixed);
    REQUIRE(all.coordinator().runs());
    JoinedAgent one = late(joins);
    all.job().take_joined(one);
    JobMachines machines;
    machines.count = 2;
    machines.mixed_hardware = mixed;
    Gathering gathering(machines, "program", {}, 0);
    Joins joined{"machine0", 1, "program", "", "h", {}};
    joined.numbers = "x";
    gathering.take({std::make_unique<StubLink>(first), "peer", std::move(joined)}, 0);
    gathering.take(late(gathers), 0);
    if (mixed) {
      CHECK(std::holds_alternative<Welcome>(said(joins)));
      CHECK(*gathering.done(1));
    } else {
      check_refused(joins);
      check_refused(gathers);
      CHECK_FALSE(*gathering.done(1));
    }
  }
}

TEST_CASE("agents of a job that does not begin are told why, and may ask again") {
  troupe::test::StubMachine machine;
  std::vector<JoinedAgent> joined;
  joined.push_back({std::make_unique<troupe::test::StubLink>(machine), "peer", Joins{"a", 1, "program", "", "h", {}}});
  turn_away(joined, Status(Code::unavailable, "1 of 2 machines have joined"));
  REQUIRE(machine.to_agent.size() == 1);
  const auto order = decode_to_agent(machine.to_agent[0]);
  REQUIRE((order.ok() && std::holds_alternative<Refused>(*order)));
  CHECK(std::get<Refused>(*order).why == "the job does not begin: 1 of 2 machines have joined");
  CHECK(std::get<Refused>(*order).for_now);
}

TEST_CASE(
    "what a job and an agent say to each other until the job runs is as many messages on 16, 64 and 1,500 machines") {
  for (const auto& [machines, places] : {std::pair(16, 4), {64, 4}, {1500, 1}}) {
    CAPTURE(machines);
    const Plan plan = plan_of_replicas(std::int64_t{machines} * places);
    const troupe::test::StubMachines all(plan, machines, places);
    REQUIRE(all.coordinator().runs());
    // To each: Welcome, TellPlan, Enter, Connect, Remember, and for each place StartPlace and three orders of the first
    // steps. Of each place: that it was started, its address, that it is ready.
    const auto& m = all.machines();
    const auto as_due = std::count_if(m.begin(), m.end(), [places = places](const auto& one) {
      return one.messages_to_agent == 5 + 4 * places && one.messages_to_job == 3 * places;
    });
    CHECK(as_due == machines);
  }
}
