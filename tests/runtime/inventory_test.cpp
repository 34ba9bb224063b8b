// Which versions lie where, and which place runs which rank.
#include <doctest/doctest.h>

#include "runtime/elastic/inventory.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

const auto any_version = [](std::int64_t) { return true; };
using Numbers = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("each rank sits where most of what it needs lies, whatever the order of the places") {
  const std::vector<PlaceId> home{PlaceId{2}, PlaceId{0}, PlaceId{1}};
  const std::vector<PlaceId> left{PlaceId{3}, PlaceId{0}, PlaceId{1}, PlaceId{2}};
  for (const KeptCase& c : {KeptCase{{1, 1, 1}}, KeptCase{{3}, 1, 1}}) {
    const Plan p = kept_plan(c);
    CHECK(seat(p, p, home, left) == home);
  }
  const Plan replicas = kept_plan({{3}});
  const std::vector<PlaceId> others{PlaceId{0}, PlaceId{1}, PlaceId{3}};
  CHECK(seat(replicas, replicas, home, others) == std::vector<PlaceId>{PlaceId{3}, PlaceId{0}, PlaceId{1}});
}

TEST_CASE("the newest version is that of which every element is held; a rank without parameters holds what others do") {
  const Plan replicated = kept_plan({{3}}), divided = kept_plan({{3}, 1, 1});
  for (const Plan* p : {&replicated, &divided}) {
    Inventory inventory(*p);
    inventory.holds(0, Numbers{3, 4, 5});
    inventory.holds(1, Numbers{3, 4});
    inventory.holds(2, Numbers{4});
    CHECK(inventory.newest(any_version) == (p == &replicated ? 5 : 4));
    CHECK(inventory.newest([](std::int64_t v) { return v < 4; }) ==
          (p == &replicated ? std::optional<std::int64_t>(3) : std::nullopt));
    CHECK(inventory.has(1, 4));
    CHECK_FALSE(inventory.holds(1, 5));
  }
  Inventory none(divided);
  none.holds(0, Numbers{7});
  none.holds(1, std::nullopt);
  none.holds(2, std::nullopt);
  CHECK(none.newest(any_version) == 7);
  CHECK(none.holds(1, 7));
  CHECK_FALSE(none.has(1, 7));
}
