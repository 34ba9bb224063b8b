// What ends an agent, beside its job.
#include "runtime/agents/agent_ends.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "runtime/agents/agent_life.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

constexpr std::int64_t one_second_ns = 1'000'000'000;

void poll_once(AgentEnds& ends) {
  PollSet set;
  ends.watch(set);
  REQUIRE(set.wait(0));
  set.serve();
}

}  // namespace

TEST_CASE("an agent ends by the first signal") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    AgentEnds ends;
    CHECK(ends.due(true, 0).ok());
    ::raise(signal);
    CHECK(ends.due(true, 0).message().find("interrupted by ") == 0);
    CHECK(ends.due(true, 100 * one_second_ns).code() == Code::interrupted);
  }
}

TEST_CASE("an agent that outlasts a signal goes on with its run, and ends with it") {
  AgentEnds ends(-1, true);
  ::raise(SIGTERM);
  CHECK(ends.due(true, 10 * one_second_ns).ok());
  ::raise(SIGTERM);  // of the same event: a launcher sends it to the process and to its group
  CHECK(ends.due(true, 10 * one_second_ns + one_second_ns / 2).ok());
  ::raise(SIGHUP);
  CHECK(ends.due(true, 60 * one_second_ns).ok());
  const Status ended = ends.due(false, 61 * one_second_ns);
  CHECK(ended.message() == "interrupted by Terminated");
  CHECK(ended.code() == Code::interrupted);
}

TEST_CASE("an agent that outlasts a signal ends by a second one, a second later, and by the first before its run") {
  AgentEnds ends(-1, true);
  ::raise(SIGTERM);
  CHECK(ends.due(true, 10 * one_second_ns).ok());
  ::raise(SIGINT);
  CHECK(ends.due(true, 11 * one_second_ns).message() == "interrupted by Interrupt");
  AgentEnds early(-1, true);
  ::raise(SIGTERM);
  CHECK_FALSE(early.due(false, 10 * one_second_ns).ok());
}

TEST_CASE("an agent ends with its descriptor, and not by what comes on it") {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  AgentEnds ends(pipe[0], true);
  poll_once(ends);
  CHECK(ends.due(true, 0).ok());
  REQUIRE(::write(pipe[1], "x", 1) == 1);
  poll_once(ends);
  CHECK(ends.due(true, 0).ok());
  ::close(pipe[1]);
  poll_once(ends);
  CHECK(ends.due(true, 0).message().find("the end of its standard input") != std::string::npos);
  ::close(pipe[0]);
}

namespace {

/// An agent without places, which a job takes, refuses or leaves alone.
struct LoneAgent {
  std::vector<FromAgent> said;
  AgentLife life{{{"a", 2, "program", "", "host", {}}, "job", 60'000, 0, {}},
                 [this](const FromAgent& m) { return said.push_back(m), Status{}; },
                 0};
  void join(std::int64_t now_ns) {
    (void)life.connects(now_ns);
    life.opened(now_ns);
  }
};

constexpr std::int64_t s_ns = 1'000'000'000;

}  // namespace

TEST_CASE("an agent says who it is, beats while a job has its machine, and parts from one that says nothing") {
  LoneAgent agent;
  agent.join(0);
  REQUIRE(agent.said.size() == 1);
  CHECK(std::get<Joins>(agent.said[0]).machine == "a");
  agent.life.turn(30 * s_ns);
  CHECK_FALSE(agent.life.over());  // the job waits for other machines
  agent.life.heard(30 * s_ns);
  agent.life.take(Welcome{2000, {}}, 30 * s_ns);
  for (std::int64_t now = 30 * s_ns; now <= 40 * s_ns; now += s_ns / 4) agent.life.turn(now);
  CHECK_FALSE(agent.life.over());
  CHECK(std::holds_alternative<Beat>(agent.said.back()));
  agent.life.turn(40 * s_ns + s_ns / 4);
  REQUIRE(agent.life.over());
  CHECK_FALSE(agent.life.parted(40 * s_ns).has_value());  // it tries again
  CHECK_FALSE(agent.life.is_open());
}

TEST_CASE("an agent that is refused for now asks again until its wait is over, and one that is refused for good ends") {
  LoneAgent agent;
  for (std::int64_t now = 0; now < 59 * s_ns; now += s_ns) {
    agent.join(now);
    agent.life.take(Refused{"there is a machine a already", true}, now);
    REQUIRE(agent.life.over());
    REQUIRE_FALSE(agent.life.parted(now).has_value());
  }
  agent.join(60 * s_ns);
  agent.life.take(Refused{"there is a machine a already", true}, 60 * s_ns);
  const auto ended = agent.life.parted(60 * s_ns);
  REQUIRE(ended);
  CHECK(ended->message() == "job: there is a machine a already; no job has taken this machine for 60.0 s");

  LoneAgent other;
  other.join(0);
  other.life.take(Refused{"another build", false}, 0);
  REQUIRE(other.life.parted(0));
}

TEST_CASE(
    "an agent whose job has ended ends well, and one of which the job's address refuses connections tries again") {
  LoneAgent agent;
  (void)agent.life.connects(0);
  agent.life.cannot_connect(Status(Code::unavailable, "job: Connection refused"));
  CHECK_FALSE(agent.life.parted(0).has_value());
  agent.join(s_ns);
  agent.life.take(Welcome{2000, {}}, s_ns);
  agent.life.take(Finish{0, 0}, s_ns);
  CHECK(std::holds_alternative<Finished>(agent.said.back()));
  const auto ended = agent.life.parted(s_ns);
  REQUIRE(ended);
  CHECK(ended->ok());
}
