// Ends of processes at moments that are easily missed.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "tests/process/apps.h"

using namespace mlp;

TEST_CASE("a worker that dies is missed at once, though a process that an actor of it has forked holds its link open") {
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("all");
  g.actor("forking", "x", {}, {{"x", {DType::f32, {2, 6}}}});
  const auto p = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 3;
  job.stall_s = 20;
  const JobResult result = test_app().run(*p, job);
  CHECK(result.exit_code == exit_worker);
  CHECK_MESSAGE(result.status.message().find("was killed by signal 9") != std::string::npos, result.status.message());
}

namespace {

/// Starts a process that waits in its main, sends it SIGHUP after `us` microseconds, and returns how it has ended: its
/// wait status; -1: not within seconds.
int hang_up_after(int us) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGHUP, SIG_DFL);  // this process may run under nohup
    ::setenv(waiting_variable, "1", 1);
    ::execl("/proc/self/exe", "test_process", nullptr);
    ::_exit(127);
  }
  ::usleep(static_cast<useconds_t>(us));
  ::kill(pid, SIGHUP);
  int status = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (::waitpid(pid, &status, WNOHANG) != pid) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(5)) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return -1;
    }
    ::usleep(500);
  }
  return status;
}

}  // namespace

TEST_CASE("SIGHUP ends a process that has just been started, at whatever moment of its start it comes") {
  for (int us = 0; us < 30'000; us += 600) {
    CAPTURE(us);
    const int status = hang_up_after(us);
    REQUIRE(status != -1);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGHUP);
  }
}

namespace {

/// Actors of one place, each for itself: one waits in an act of step `step`, another one knocks, and one, if `hangs`,
/// never comes back from its act of step 1.
JobResult await_knocks(bool waits, std::int64_t step, std::int64_t seconds, bool hangs) {
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("all");
  const std::vector<PortType> out = {{"x", {DType::f32, {2, 6}}, {}}};
  g.actor("awaiting", "awaiting", {}, out, {{"waits", waits ? 1 : 0}, {"step", step}, {"seconds", seconds}});
  g.actor("knocking", "knocking", {}, out);
  if (hangs) g.actor("stuck", "hanging", {}, out);
  const auto p = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 4;
  job.stall_s = 2;
  return test_app().run(*p, job);
}

}  // namespace

TEST_CASE("an actor that waits is in no other actor's way, and no stall; without the attribute it is both") {
  const JobResult waits = await_knocks(true, 1, 4, false);
  CHECK_MESSAGE(waits.exit_code == exit_ok, waits.status.message());
  const JobResult blocks = await_knocks(false, 1, 4, false);
  CHECK(blocks.exit_code == exit_stalled);
  CHECK_MESSAGE(blocks.status.message().find("awaiting") != std::string::npos, blocks.status.message());
}

TEST_CASE("an actor that waits for a client does not hide that an act of the step before it hangs") {
  const auto begin = std::chrono::steady_clock::now();
  const JobResult hangs = await_knocks(true, 2, 300, true);
  CHECK(hangs.exit_code == exit_stalled);
  CHECK_MESSAGE(hangs.status.message().find("hanging") != std::string::npos, hangs.status.message());
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}
