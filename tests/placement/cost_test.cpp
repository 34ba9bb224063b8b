// Costs along one axis against the boxings that they stand for.
#include "placement/cost.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace troupe;

TEST_CASE("the bytes charged for a boxing along an axis are those that its plan moves, an all-reduce in two halves") {
  const std::vector<Sbp> all = {Sbp::S(0), Sbp::S(1), Sbp::B(), Sbp::P()};
  for (std::int64_t n : {1, 2, 3, 4, 8})
    for (const Sbp& from : all)
      for (const Sbp& to : all) {
        const Layout a{{24, 48}, DType::f32, Mesh::dense({{"x", n}}), {from}};
        Layout b = a;
        b.sbp = {to};
        CAPTURE(n);
        CAPTURE(to_string(a.sbp));
        CAPTURE(to_string(b.sbp));
        if (from == to) continue;
        const double charged = axis_boxing_bytes(from, to, 24 * 48 * 4, n) * static_cast<double>(n);
        const auto whole = plan_boxing(a, b);
        REQUIRE(whole.ok());
        if (from.is_split() && to.is_partial() && n > 1) {
          CHECK(std::isinf(charged));
          continue;
        }
        double moved = 0;
        Layout at = a;
        for (const Layout& next : lower_boxing(a, b)) {
          const auto step = plan_boxing(at, next);
          REQUIRE(step.ok());
          moved += static_cast<double>(step->moved_bytes(4));
          at = next;
        }
        CHECK(charged == doctest::Approx(moved));
      }
}
