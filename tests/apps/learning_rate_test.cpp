#include "apps/lm/learning_rate.h"

#include <doctest/doctest.h>

using namespace troupe::lm;

namespace {
ScheduleConfig schedule(std::int64_t steps, std::int64_t warmup) {
  ScheduleConfig s;
  s.steps = steps;
  s.warmup = warmup;
  s.lr = 1e-3;
  s.min_lr = 1e-4;
  return s;
}
}  // namespace

TEST_CASE("the rate rises linearly to lr, then falls along a cosine to min_lr and stays there") {
  const auto s = schedule(1000, 99);
  CHECK(lr_at(s, 0) == doctest::Approx(1e-5));
  CHECK(lr_at(s, 49) == doctest::Approx(5e-4));
  CHECK(lr_at(s, 99) == 1e-3);
  CHECK(lr_at(s, 99 + 901 / 2) == doctest::Approx(5.5e-4).epsilon(0.01));
  CHECK(lr_at(s, 999) == doctest::Approx(1e-4).epsilon(1e-3));
  CHECK(lr_at(s, 1000) == 1e-4);
  CHECK(lr_at(schedule(14, 4), 6) == doctest::Approx(9.140576e-4).epsilon(1e-6));  // a straight line has 8.2e-4 there
  CHECK(lr_at(s, 1'000'000) == 1e-4);
  for (std::int64_t step = 0; step + 1 < 1000; ++step)
    CHECK((step < 99 ? lr_at(s, step) < lr_at(s, step + 1) : lr_at(s, step) > lr_at(s, step + 1)));
}

TEST_CASE("no warm-up and nothing but warm-up are both legal") {
  CHECK(lr_at(schedule(10, 0), 0) == 1e-3);
  CHECK(lr_at(schedule(10, 10), 9) < 1e-3);
  CHECK(lr_at(schedule(10, 10), 10) == 1e-4);
  CHECK(lr_at(schedule(1, 0), 0) == 1e-3);
}
