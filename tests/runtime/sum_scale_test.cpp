// The rule by which exponents of gradient sums follow the terms.
#include <doctest/doctest.h>

#include <numeric>

#include <algorithm>
#include <cmath>
#include <random>

#include "runtime/session/sum_scale.h"

using namespace troupe::runtime;
using Verdict = StepVerdict::Kind;

namespace {

constexpr float endless = HUGE_VALF;

std::vector<PlanParam> sum_params(const std::vector<std::int64_t>& terms) {
  std::vector<PlanParam> out;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    // the plan's order is not that of names
    out.push_back({.name = std::string(1, static_cast<char>('z' - i))});
    out.back().terms = terms[i];
  }
  return out;
}

std::vector<StepTerms> with_largest(const std::vector<float>& values) {
  std::vector<StepTerms> out;
  for (float v : values) out.push_back({v, StepTerms::no_microbatch});
  return out;
}

/// One parameter with room for 50 bits, at this scale.
struct One {
  SumScales sums;
  explicit One(SumScale scale, std::int64_t updates = 0) : sums(sum_params({1}), 1, {updates, {{"z", scale}}}) {}
  SumScale scale() const { return sums.state().scales.at("z"); }
  /// The verdict of a step whose largest term is `m`, after which the scale is what that makes of it.
  Verdict step(float m) {
    const auto terms = with_largest({m});
    const Verdict kind = sums.judge(terms).kind;
    if (kind == Verdict::good) sums.commit(terms);
    if (kind == Verdict::overflow) sums.void_step(terms);
    return kind;
  }
};

}  // namespace

TEST_CASE(
    "the first exponent is 40 and the whole bits of a step's microbatches; bits of a term leave room for all of them "
    "below 2^62") {
  CHECK(first_exponent(1) == 40);
  CHECK(first_exponent(2) == 41);
  CHECK(first_exponent(3) == 41);
  CHECK(first_exponent(1536) == 50);
  CHECK(term_bits(1) == 50);
  CHECK(term_bits(1 << 12) == 50);
  CHECK(term_bits((1 << 12) + 1) == 49);
  CHECK(term_bits(1 << 13) == 49);
  CHECK(term_bits(1ll << 40) == 22);
  CHECK(term_bits((1ll << 40) + 1) == 21);
}

TEST_CASE("parameters without an entry begin at the first exponent, others where they were, in the plan's order") {
  const SumScales sums(sum_params({1, 1, 1}), 8, {5, {{"y", {-3, 0.5f}}, {"other", {7, 1}}}});
  CHECK(sums.exponents() == std::vector<std::int32_t>{43, -3, 43});
  CHECK(sums.state() == SumState{5, {{"x", {43, 0}}, {"y", {-3, 0.5f}}, {"z", {43, 0}}}});
}

TEST_CASE("SC-1 (overflow): a term overflows from exactly 2^term_bits on, and then lies margin_bits below the bound") {
  for (const std::int32_t e : {40, 0, -40}) {
    CAPTURE(e);
    const float bound = std::ldexp(1.0f, 50 - e);
    One below({e, 0});
    CHECK(below.step(std::nextafter(bound, 0.0f)) == Verdict::good);
    One at({e, 0});
    CHECK(at.step(bound) == Verdict::overflow);
    CHECK(at.scale() == SumScale{e - 13, 0});  // bound * 2^(e - 13) = 2^37, the least number of 38 bits
    CHECK(at.sums.state().updates == 0);
    CHECK(at.step(bound) == Verdict::good);
    CHECK(at.step(std::ldexp(bound, 12)) == Verdict::good);
    One far({e, 0});
    CHECK(far.step(std::numeric_limits<float>::max()) == Verdict::overflow);
    CHECK(far.scale().exponent == 50 - 12 - 128);
  }
  SumScales narrow(sum_params({1 << 20}), 1, {0, {{"z", {40, 0}}}});  // 42 bits
  CHECK(narrow.judge(with_largest({4.0f})).kind == Verdict::overflow);
  CHECK(narrow.judge(with_largest({3.999f})).kind == Verdict::good);
  narrow.void_step(with_largest({4.0f}));
  CHECK(narrow.exponents() == std::vector<std::int32_t>{42 - 12 - 3});
}

TEST_CASE("SC-2 (void step): a void step changes the scales of parameters that overflow, and nothing else") {
  SumScales sums(sum_params({1, 1, 1, 1}), 1, {63, {{"x", {39, 0.5f}}}});
  const auto before = sums.state();
  // of z, y, x, w; that of x would make its exponent coarser
  const auto terms = with_largest({2048, 0.001f, 1000, 4096});
  CHECK(sums.judge(terms).kind == Verdict::overflow);
  sums.void_step(terms);
  auto after = before;
  after.scales["z"] = {26, 0};
  after.scales["w"] = {25, 0};
  after.void_steps = 1;
  CHECK(sums.state() == after);
}

TEST_CASE(
    "SC-3 (margin): after a commit an exponent becomes coarser at once, by as much as it takes, and the peak is the "
    "largest since") {
  One one({40, 0});
  CHECK(one.step(0.125f) == Verdict::good);  // 2^-3, a number of 38 bits at 2^40
  CHECK(one.scale() == SumScale{40, 0.125f});
  CHECK(one.step(0.0625f) == Verdict::good);
  CHECK(one.scale() == SumScale{40, 0.125f});
  CHECK(one.step(0.25f) == Verdict::good);
  CHECK(one.scale() == SumScale{39, 0.25f});
  CHECK(one.step(500) == Verdict::good);
  CHECK(one.scale() == SumScale{50 - 12 - 9, 500});
}

TEST_CASE(
    "SC-3: an exponent becomes finer by one bit at each 64th update, void steps not counted, from what the updates "
    "between had") {
  One one({20, 0});
  CHECK(one.step(1e4f) == Verdict::good);  // 14 bits: wants 24
  int updates = 1;
  for (const std::int32_t expected : {21, 22, 23, 24, 25, 26}) {
    while (updates % 64 != 63) {
      CHECK(one.step(1e3f) == Verdict::good);  // wants 28
      CHECK(one.scale().exponent == expected - 1);
      ++updates;
    }
    CHECK(one.step(0) == Verdict::good);
    ++updates;
    CHECK(one.scale() == SumScale{expected, 0});
  }
  CHECK(one.sums.state().updates == updates);

  // It stops where its peak comes again and again.
  One steady({23, 0});
  for (int i = 0; i < 256; ++i) CHECK(steady.step(1e4f) == Verdict::good);
  CHECK(steady.scale().exponent == 24);

  One voided({40, 0}, 62);
  CHECK(voided.step(1e5f) == Verdict::overflow);
  CHECK(voided.scale() == SumScale{21, 0});
  CHECK(voided.step(1e4f) == Verdict::good);  // the 63rd
  CHECK(voided.step(1e4f) == Verdict::good);  // the 64th: wants 24
  CHECK(voided.scale() == SumScale{22, 0});
  for (int i = 0; i < 64; ++i) CHECK(voided.step(1e4f) == Verdict::good);
  CHECK(voided.scale() == SumScale{23, 0});
}

TEST_CASE("SC-3: the peak that a checkpoint has kept counts as if the run had not been interrupted") {
  One resumed({30, 100.0f}, 63);  // wants 31; without the peak SC-4 (too coarse) would make it 35
  CHECK(resumed.step(1e-3f) == Verdict::good);
  CHECK(resumed.scale() == SumScale{31, 0});
}

TEST_CASE(
    "SC-4: an exponent more than 12 bits below what the peak allows is 12 below it at the next commit, and no finer") {
  One one({20, 0});
  CHECK(one.step(0.0625f) == Verdict::good);  // 2^-4, a number of 38 bits at 2^41: wants 41
  CHECK(one.scale() == SumScale{41 - 12, 0.0625f});
  One enough({41 - 12, 0});
  CHECK(enough.step(0.0625f) == Verdict::good);
  CHECK(enough.scale() == SumScale{41 - 12, 0.0625f});
  One tiny({20, 0});
  CHECK(tiny.step(1e-3f) == Verdict::good);  // wants 47
  CHECK(tiny.scale() == SumScale{35, 1e-3f});
  for (int update = 2; update < 64; ++update) CHECK(tiny.step(1e-3f) == Verdict::good);
  CHECK(tiny.scale().exponent == 35);  // 12 bits: one at a time from here
  CHECK(tiny.step(1e-3f) == Verdict::good);
  CHECK(tiny.scale().exponent == 36);

  // An outlier that makes a step void, long after: the sums of one more step are useless, the next are not.
  One hit({47, 0}, 128);
  CHECK(hit.step(1e20f) == Verdict::overflow);
  CHECK(hit.scale().exponent == 50 - 12 - 67);
  CHECK(hit.step(1e-3f) == Verdict::good);
  CHECK(hit.scale().exponent == 35);
}

TEST_CASE("SC-5 (zero): terms that are all zero say nothing") {
  One one({40, 0});
  for (int i = 0; i < 200; ++i) CHECK(one.step(0) == Verdict::good);
  CHECK(one.scale() == SumScale{40, 0});
  CHECK(one.sums.state().updates == 200);
}

TEST_CASE("an exponent has the smallest and the largest f32 within its bounds, and stays within them") {
  One small({exponent_max, 0}, 63);
  CHECK(small.step(std::numeric_limits<float>::denorm_min()) == Verdict::overflow);  // it is 2^-149
  CHECK(small.scale().exponent == 50 - 12 + 148);
  One finest({-exponent_max, 0}, 63);
  CHECK(finest.step(std::numeric_limits<float>::max()) == Verdict::good);
  CHECK(finest.scale().exponent == 50 - 12 - 128 - 12);  // SC-4
}

TEST_CASE(
    "terms may grow 85-fold between two steps without an overflow once the exponent has adapted, and no exponent is "
    "finer than the margin") {
  for (const float first : {3e-8f, 1.0f, 700.0f}) {
    One one({40, 0});
    float m = first;
    if (one.step(m) == Verdict::overflow) CHECK(one.step(m) == Verdict::good);
    std::mt19937 random(1);
    for (int i = 0; i < 20'000; ++i) {
      const auto before = one.scale();
      const float grown = std::min(85 * m, 1e30f);
      m = random() % 200 == 0 ? grown : m * (random() % 2 ? 0.95f : 1.05f);
      REQUIRE(one.step(m) == Verdict::good);
      const auto after = one.scale();
      // SC-3, SC-4
      CHECK((after.exponent <= before.exponent + 1 || after.exponent + std::ilogb(m) + 1 <= 50 - 12 - 12));
      CHECK(std::ilogb(m) + 1 + after.exponent <= 50 - 12);
    }
  }
}

TEST_CASE("what places say of a parameter's terms comes to the same in any order and grouping; NaN is above all") {
  const float nan = std::nanf("");
  CHECK(StepTerms{}.largest == 0);
  std::mt19937 random(3);
  for (const bool with_nan : {false, true}) {
    std::vector<StepTerms> parts = {
        {1, StepTerms::no_microbatch}, {7, 5}, {endless, 2}, {3, 9}, {0, StepTerms::no_microbatch},
        {with_nan ? nan : 6, 4}};
    for (int i = 0; i < 50; ++i) {
      std::shuffle(parts.begin(), parts.end(), random);
      const auto cut = random() % parts.size();
      StepTerms left, right;
      for (std::size_t p = 0; p < parts.size(); ++p) (p < cut ? left : right).add(parts[p]);
      left.add(right);
      CHECK(left.microbatch == 2);
      CHECK((with_nan ? std::isnan(left.largest) : left.largest == endless));
    }
  }
}

TEST_CASE("named is what is not finite before what overflows, then the lowest microbatch, then the plan's order") {
  const SumScales sums(sum_params({1, 1, 1, 1}), 1, {});  // z, y, x, w at 40: from 1024 on it is an overflow
  const auto named = [&](const std::vector<StepTerms>& terms) {
    const auto v = sums.judge(terms);
    return std::tuple(v.kind, v.param, v.microbatch);
  };
  const auto none = StepTerms::no_microbatch;
  CHECK(named({{1023, none}, {0, none}, {1, none}, {1, none}}) == std::tuple(Verdict::good, -1, none));
  CHECK(named({{1023, none}, {2048, 7}, {4096, 3}, {1024, 3}}) == std::tuple(Verdict::overflow, 2, 3));
  // a microbatch that is known first
  CHECK(named({{1, none}, {2048, none}, {1, none}, {1024, 30}}) == std::tuple(Verdict::overflow, 3, 30));
  CHECK(named({{1, none}, {2048, none}, {1, none}, {1024, none}}) == std::tuple(Verdict::overflow, 1, none));
  CHECK(named({{2048, 0}, {endless, 5}, {1, none}, {std::nanf(""), 4}}) == std::tuple(Verdict::not_finite, 3, 4));
  CHECK(named({{endless, 4}, {endless, 4}, {endless, 4}, {2048, 1}}) == std::tuple(Verdict::not_finite, 0, 4));
}

TEST_CASE("of what places tell of one parameter the lowest microbatch of the worst kind stays, in any order") {
  const StepTerms large{1e30f, 2}, larger{2e30f, 4}, infinite{HUGE_VALF, 5}, nan{NAN, 7}, fine{1.0f};
  const auto sum = [](std::vector<StepTerms> parts) {
    std::vector<std::int32_t> seen;
    std::vector<std::size_t> order(parts.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      StepTerms all;
      for (const auto i : order) all.add(parts[i]);
      seen.push_back(all.microbatch);
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(std::equal(seen.begin() + 1, seen.end(), seen.begin()));
    return seen[0];
  };
  CHECK(sum({fine, large, larger}) == 2);
  CHECK(sum({large, infinite, fine}) == 5);
  CHECK(sum({nan, large, infinite}) == 5);
  CHECK(sum({fine, nan}) == 7);
  CHECK(sum({fine, fine}) == StepTerms::no_microbatch);
}
