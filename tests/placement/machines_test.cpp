// Which machines have the ranks of a job.
#include "placement/machines.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

using namespace troupe;

TEST_CASE("ranks fill machines in order, and groups of ranks the first machine that has room for all of one") {
  using Machines = std::vector<std::int32_t>;
  CHECK(fill_machines({2, 2}, 3, 1) == Machines{0, 0, 1});
  CHECK(fill_machines({3, 3}, 4, 2) == Machines{0, 0, 1, 1});
  CHECK(fill_machines({1, 3, 2}, 4, 2) == Machines{1, 1, 2, 2});
  CHECK(fill_machines({3, 3}, 6, 2) == Machines{0, 0, 1, 1, 0, 1});  // the last group has no machine for itself
  CHECK(fill_machines({1, 1, 1, 1}, 4, 2) == Machines{0, 1, 2, 3});
  CHECK(fill_machines({2, 2}, 0, 2).empty());
}

TEST_CASE("as many groups are inside a machine as machines have room for, and no machine has more than its places") {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int i = 0; i < 500; ++i) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(1 + below(6)));
    for (auto& p : places) p = 1 + below(9);
    const std::int64_t together = 1 + below(5), room = std::accumulate(places.begin(), places.end(), std::int64_t{0});
    const std::int64_t groups = below(room / together + 1);
    const auto machine_of = fill_machines(places, groups * together, together);
    REQUIRE(std::ssize(machine_of) == groups * together);
    std::map<std::int32_t, std::int64_t> taken;
    for (const std::int32_t m : machine_of) ++taken[m];
    for (const auto& [m, n] : taken) CHECK(n <= places[static_cast<std::size_t>(m)]);
    std::int64_t whole = 0, most = 0;
    for (std::int64_t g = 0; g < groups; ++g)
      whole +=
          std::set<std::int32_t>(machine_of.begin() + g * together, machine_of.begin() + (g + 1) * together).size() == 1
              ? 1
              : 0;
    for (const std::int64_t p : places) most += p / together;
    CHECK(whole == std::min(groups, most));
    if (together == 1) CHECK(std::is_sorted(machine_of.begin(), machine_of.end()));
  }
}

TEST_CASE("ranks without a place join those of their group where there is room for all of them") {
  using Machines = std::vector<std::int32_t>;
  // Rank 0 is on machine 1, whose other place is free: rank 1 takes it, though machine 0 comes first.
  CHECK(fill_machines({2, 1}, 4, 2, {1, -1, -1, -1}) == Machines{1, 1, 0, 0});
  CHECK(fill_machines({2, 0}, 4, 2, {1, -1, 1}) == Machines{1, 0, 1, 0});
  CHECK(fill_machines({1, 1, 2}, 4, 4, {0, -1, -1}) == Machines{0, 0, 1, 2});  // no machine has room for three
  CHECK(fill_machines({1}, 3, 1, {0, -1, 1}) == Machines{0, 0, 1});
}
