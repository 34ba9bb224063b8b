// Units cut into stages, against all cuts that there are.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "runtime/compile/compile.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

struct Worst {
  double seconds = 0, bytes = 0;
};

/// Of the slowest stage, and of the fullest place.
Worst worst_of(const std::vector<UnitCost>& units, const std::vector<std::int64_t>& widths,
               const std::vector<std::int32_t>& stage) {
  std::vector<Worst> each(widths.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    each[stage[u]].seconds += units[u].seconds / static_cast<double>(widths[stage[u]]);
    each[stage[u]].bytes += units[u].param_bytes;
  }
  Worst worst;
  for (const auto& e : each) worst = {std::max(worst.seconds, e.seconds), std::max(worst.bytes, e.bytes)};
  return worst;
}

/// Every way to give each stage at least one unit.
void for_each_cut(std::size_t units, std::size_t stages,
                  const std::function<void(const std::vector<std::int32_t>&)>& f) {
  std::vector<std::int32_t> stage(units, 0);
  std::function<void(std::size_t)> fill = [&](std::size_t u) {
    if (u == units) {
      if (stage.back() + 1 == static_cast<std::int32_t>(stages)) f(stage);
      return;
    }
    for (const std::int32_t s : {stage[u - 1], stage[u - 1] + 1})
      if (s < static_cast<std::int32_t>(stages)) stage[u] = s, fill(u + 1);
  };
  fill(1);
}

}  // namespace

TEST_CASE("no cut of the units is faster than the compiler's by more than 1 %, and none that is as fast holds less") {
  std::mt19937 rng(11);
  for (int round = 0; round < 200; ++round) {
    const std::size_t units = 1 + rng() % 9, stages = 1 + rng() % units;
    std::vector<UnitCost> costs(units);
    for (auto& c : costs) c = {static_cast<double>(1 + rng() % 5), static_cast<double>(rng() % 7)};
    std::vector<std::int64_t> widths(stages);
    for (auto& w : widths) w = 1 + static_cast<std::int64_t>(rng() % 3);
    CAPTURE(round);
    const auto cut = partition_units(costs, widths);
    REQUIRE(cut.ok());
    REQUIRE(std::is_sorted(cut->begin(), cut->end()));
    const Worst got = worst_of(costs, widths, *cut);
    double fastest = 1e9, leanest = 1e9;
    for_each_cut(units, stages,
                 [&](const auto& other) { fastest = std::min(fastest, worst_of(costs, widths, other).seconds); });
    for_each_cut(units, stages, [&](const auto& other) {
      if (const Worst w = worst_of(costs, widths, other); w.seconds <= 1.01 * fastest)
        leanest = std::min(leanest, w.bytes);
    });
    CHECK(got.seconds <= 1.01 * fastest);
    CHECK(got.bytes == leanest);
  }
}

TEST_CASE("a stage that is twice as wide gets twice the work") {
  const std::vector<UnitCost> alike(9, {1, 1});
  const auto cut = partition_units(alike, {2, 1});
  REQUIRE(cut.ok());
  CHECK(std::count(cut->begin(), cut->end(), 0) == 6);
}

TEST_CASE("more stages than units are refused with the number that fits") {
  const auto cut = partition_units({{1, 1}, {1, 1}}, {1, 1, 1});
  REQUIRE_FALSE(cut.ok());
  CHECK(cut.status().message().find("use pp=2 or less") != std::string::npos);
}
