// Which control messages are taken (CL-1 one generation).
#include "runtime/elastic/generation_fence.h"

#include <doctest/doctest.h>

using namespace troupe::runtime;

TEST_CASE("the coordinator takes messages of its own generation only, and counts the others (CL-1 one generation)") {
  GenerationFence fence;
  CHECK_FALSE(fence.admits({}));
  CHECK_FALSE(fence.admits({7, 2}));
  fence.enter({7, 2});
  CHECK(fence.admits({7, 2}));
  for (const JobGeneration other : {JobGeneration{7, 1}, {7, 3}, {6, 2}, {0, 2}, {7, 0}, {}})
    CHECK_FALSE(fence.admits(other));
  CHECK(fence.dropped() == 8);
  fence.enter({7, 3});  // what is on its way is late now
  CHECK_FALSE(fence.admits({7, 2}));
  CHECK(fence.admits({7, 3}));
  CHECK(fence.dropped() == 9);
}

TEST_CASE("a worker follows the coordinator from one generation to the next, and never back (CL-1)") {
  GenerationFence fence;
  CHECK_FALSE(fence.follows({}));
  CHECK(fence.follows({7, 2}));
  CHECK(fence.generation() == JobGeneration{7, 2});
  for (const JobGeneration other : {JobGeneration{7, 1}, {6, 2}, {8, 3}, {7, 0}, {}}) {
    CHECK_FALSE(fence.follows(other));
    CHECK(fence.generation() == JobGeneration{7, 2});
  }
  CHECK(fence.follows({7, 2}));
  CHECK(fence.follows({7, 4}));
  CHECK(fence.generation() == JobGeneration{7, 4});
  CHECK_FALSE(fence.follows({7, 3}));
  CHECK(fence.dropped() == 7);
}
