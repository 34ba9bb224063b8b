// Ends of processes at moments that are easily missed.
#include <doctest/doctest.h>

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
  job.stall_s = 4;
  const JobResult result = test_app().run(*p, job);
  CHECK(result.exit_code == exit_worker);
  CHECK_MESSAGE(result.status.message().find("was killed by signal 9") != std::string::npos, result.status.message());
}
