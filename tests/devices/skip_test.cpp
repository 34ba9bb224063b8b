// The tests' own tool: what cannot run on a machine is told and counted, and fails nothing.
#include "tests/skip.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

TEST_CASE("a test case that cannot run is told in one line with its reason, counted at the end, and fails nothing") {
  char self[4096] = {};
  REQUIRE(::readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const auto run = [&](const std::string& cases) {
    std::FILE* pipe = ::popen(("'" + std::string(self) + "' -tc='" + cases + "' --no-skip=true").c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    char chunk[4096];
    while (const std::size_t n = std::fread(chunk, 1, sizeof chunk, pipe)) text.append(chunk, n);
    CHECK(::pclose(pipe) == 0);
    return text;
  };
  const auto both = run("a case that needs*");
  CHECK(both.find("SKIPPED: a case that needs wings: this machine has none\n") != std::string::npos);
  CHECK(both.find("SKIPPED: a case that needs gills: nor these\n") != std::string::npos);
  CHECK(both.find("\nskipped test cases: 2\n") != std::string::npos);
  CHECK(run("Parallel::for_each begins no new index*").find("kipped test cases") == std::string::npos);
}

TEST_CASE("a case that needs wings" * doctest::skip()) {
  troupe::test::skip("this machine has none");
  troupe::test::skip("it has none at all");  // once more: still one case
}

TEST_CASE("a case that needs gills" * doctest::skip()) { troupe::test::skip("nor these"); }
