// The test's own binary is the application: workers re-execute it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/process/apps.h"

int main(int argc, char** argv) {
  test_app().serve_if_worker(argc, argv);
  return doctest::Context(argc, argv).run();
}
