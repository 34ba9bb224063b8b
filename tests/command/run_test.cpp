// The tests of this folder stand and fall with noticing what is left behind: it is noticed.
#include <unistd.h>

#include "tests/command/checks.h"

using namespace troupe::test;

TEST_CASE("an orphan is noticed, whatever became of its parent") {
  const auto o = run({"/bin/sh", "-c", "sleep 60 & exit 3"});
  CHECK(o.code == 3);
  REQUIRE(o.left.size() == 1);
  CHECK(o.left[0].find("sleep 60") != std::string::npos);
}

TEST_CASE("shared memory that no process uses any more is noticed") {
  const std::string name = "/dev/shm/troupe-test-" + std::to_string(::getpid());
  const auto o = run({"/bin/sh", "-c", "echo > " + name});
  ::unlink(name.c_str());
  CHECK(o.left == std::vector<std::string>{name});
}

TEST_CASE("a command that does not end is ended, and said to have been") {
  const auto o = run({"/bin/sleep", "60"}, 0.1);
  CHECK(o.timed_out);
  CHECK(o.seconds < 2);
  CHECK(o.left.empty());
}
