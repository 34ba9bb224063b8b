// What machines of a run tell each other of their processors.
#include <doctest/doctest.h>

#include "kernels/processor.h"

using namespace troupe::kernels;

TEST_CASE("a build runs on the processor for which it was made, and computes the same numbers each time") {
  CHECK(check_processor().ok());
  const std::string digest = numbers_digest();
  CHECK(digest.size() == 32);
  CHECK(digest == numbers_digest());
}
