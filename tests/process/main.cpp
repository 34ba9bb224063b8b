// The test's own binary is the application: workers re-execute it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/process/apps.h"

int main(int argc, char** argv) {
  if (const char* path = std::getenv(unserved_variable)) return unserved_main(path);
  test_app().serve_if_worker(argc, argv);
  return doctest::Context(argc, argv).run();
}
