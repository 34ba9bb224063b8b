// The shapes that are weighed for a job that has lost places, and which of them is taken.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "devices/cpu/cpu_device.h"
#include "runtime/launch/shape_plans.h"
#include "runtime/search/shapes.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

Replan replan_like(const KeptCase& like) {
  return [like](const StageWidths& dp) {
    KeptCase c = like;
    c.dp = dp;
    return compile_kept(c);
  };
}

bool weighs(const std::vector<StageWidths>& shapes, const StageWidths& dp) {
  return std::find(shapes.begin(), shapes.end(), dp) != shapes.end();
}

}  // namespace

TEST_CASE("shapes are named as meshes are") {
  CHECK(shape_text({3}, {1}) == "dp=3");
  CHECK(shape_text({2, 2}, {1, 1}) == "dp=2,pp=2");
  CHECK(shape_text({2, 1}, {2, 2}) == "dp=2/1,pp=2,tp=2");
  CHECK(shape_text({1, 1, 1}, {1, 1, 1}) == "pp=3");
  CHECK(shape_text({1}, {2}) == "tp=2");
  CHECK(shape_text({1}, {1}) == "dp=1");
  CHECK(shape_text({3, 1}, {1, 2}) == "dp=3/1,pp=2,tp=1/2");
}

TEST_CASE(
    "the same shape comes first where a spare is left, then one replica less of each stage; none needs more places") {
  const Plan p = kept_plan({{2, 2}});
  CHECK(shapes_for(p, 4).front() == StageWidths{2, 2});
  const auto three = shapes_for(p, 3);
  CHECK(three[0] == StageWidths{1, 2});
  CHECK(three[1] == StageWidths{2, 1});
  CHECK(weighs(three, {3}));
  CHECK(weighs(three, {1, 1}));
  for (std::int64_t places = 0; places <= 9; ++places)
    for (const StageWidths& dp : shapes_for(p, places)) {
      std::int64_t sum = 0;
      for (const std::int64_t w : dp) {
        CHECK(w >= 1);
        CHECK(w <= p.step_spec().microbatches);
        sum += w;
      }
      CHECK(sum <= places);
    }
  CHECK(shapes_for(p, 0).empty());
  const Plan tp = kept_plan({{2}, 2});  // two places are one replica
  CHECK(shapes_for(tp, 3) == std::vector<StageWidths>{{1}});
  CHECK(shapes_for(tp, 1).empty());
}

TEST_CASE("of all shapes the one whose step is predicted to be shortest is taken, and the others say by how much") {
  const KeptCase like{{2, 2}};
  const Plan p = kept_plan(like);
  const auto chosen = choose_shape(p, 3, replan_like(like));
  REQUIRE_MESSAGE(chosen.ok(), chosen.status().message());
  const auto shapes = shapes_for(p, 3);
  CHECK(chosen->others.size() + 1 == shapes.size());
  double best = 1e300;
  for (const StageWidths& dp : shapes) {
    const auto each = plan_of(dp, replan_like(like), std::nullopt);
    if (each.ok()) best = std::min(best, each->step_s);
  }
  CHECK(chosen->step_s == best);
  CHECK(chosen->slower.size() == chosen->others.size());
  double before = best;
  for (const ChosenPlan& slower : chosen->slower) {
    CHECK(slower.step_s >= std::exchange(before, slower.step_s));
    CHECK(slower.plan != nullptr);
  }
  CHECK(best > 0);
  CHECK(chosen->plan->workers() <= 3);
}

TEST_CASE("plans for the next loss are compiled once, ahead, and none by the thread that asks for one") {
  const KeptCase like{{2, 2}};
  const Plan p = kept_plan(like);
  SteadyClock clock;
  CpuDevice device(clock, {});
  std::atomic<int> compiled = 0;
  std::atomic<bool> ahead = true;
  const auto asks = std::this_thread::get_id();
  ShapePlans plans(
      [&](const StageWidths& dp) {
        CHECK(ahead);
        CHECK(std::this_thread::get_id() != asks);
        ++compiled;
        return replan_like(like)(dp);
      },
      false, [](const Plan&) { return std::int64_t{1} << 40; });
  const auto stream = device.create_stream("shapes", 1);
  plans.prepare(p, 3, *stream, false);
  plans.prepare(p, 3, *stream, false);
  const auto first = plans.choose(p, 3, *stream);
  REQUIRE(first.ok());
  CHECK(compiled == static_cast<int>(shapes_for(p, 3).size()));
  ahead = false;
  CHECK(plans.choose(p, 3, *stream)->shape == first->shape);
  const Plan again = kept_plan(like);  // a job that comes back to its shape
  CHECK(plans.choose(again, 3, *stream)->plan == first->plan);
  ahead = true;
  CHECK(plans.choose(p, 2, *stream).ok());  // which was not prepared
  plans.stop();
  CHECK_FALSE(plans.choose(p, 1, *stream).ok());
  // A job goes on from what its first plan keeps.
  ShapePlans others(replan_like(like), true, [](const Plan&) { return std::int64_t{1} << 40; });
  const auto other = others.choose(p, 2, *stream);
  REQUIRE_FALSE(other.ok());
  CHECK(other.status().message().find("CompileOptions::keeps_copies") != std::string::npos);
}

TEST_CASE("a shape that does not compile or fit is not taken, and says why; without any there is no plan") {
  const KeptCase like{{2, 2}};
  const Plan p = kept_plan(like);
  const auto only_stages = [&](const StageWidths& dp) -> Expected<Plan> {
    if (dp.size() == 1) return invalid("this model needs stages");
    return replan_like(like)(dp);
  };
  const auto chosen = choose_shape(p, 3, only_stages);
  REQUIRE(chosen.ok());
  CHECK(chosen->plan->stages > 1);
  CHECK(std::any_of(chosen->others.begin(), chosen->others.end(),
                    [](const std::string& other) { return other == "dp=3: this model needs stages"; }));
  const auto none = choose_shape(p, 3, replan_like(like), 1000);
  CHECK(none.status().code() == Code::unavailable);
  CHECK(none.status().message().find("no shape of this job runs on 3 places\n  dp=1/2,pp=2: its places need") == 0);
  const auto zero = choose_shape(p, 0, replan_like(like));
  CHECK(zero.status().message() == "no shape of this job runs on 0 places");
}
