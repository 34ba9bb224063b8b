// What ends an agent, beside its job.
#include "runtime/agents/agent_ends.h"

#include <doctest/doctest.h>
#include <unistd.h>

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
    CHECK_FALSE(ends.due(true, 100 * one_second_ns).ok());
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
  CHECK(ends.due(false, 61 * one_second_ns).message() == "interrupted by Terminated");
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
