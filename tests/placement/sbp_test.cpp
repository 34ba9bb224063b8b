#include <doctest/doctest.h>

#include <limits>

#include "placement/sbp.h"

using namespace troupe;

TEST_CASE("an Sbp reads back what it writes") {
  for (const Sbp& s : {Sbp::S(0), Sbp::S(12), Sbp::S(1, 64), Sbp::B(), Sbp::P()}) {
    const auto back = parse_sbp(to_string(s));
    REQUIRE(back.ok());
    CHECK(*back == s);
  }
  CHECK(to_string(Sbp::S(1, 64)) == "S(1,64)");
  CHECK(to_string(NdSbp{Sbp::S(0), Sbp::B()}) == "S(0), B");
}

TEST_CASE("what is no Sbp is refused, with the word that was given and what to write") {
  for (const std::string text : {"", "b", "S", "S()", "S(x)", "S(0", "S(-1)", "S(0,0)", "S(0,)", "S(0)x", "BB", "S(0) ",
                                 "S(,2)", "S(4294967296)", "S(99999999999999999999)", "S(0,99999999999999999999)"}) {
    const auto s = parse_sbp(text);
    INFO("text: '" << text << "'");
    REQUIRE_FALSE(s.ok());
    CHECK(s.status().message().find("'" + text + "'") == 0);
  }
}

TEST_CASE("split_range: parts tile the range in order, in whole units, the first ones longer") {
  for (std::int64_t n = 0; n <= 30; ++n)
    for (std::int64_t parts = 1; parts <= 7; ++parts)
      for (std::int64_t unit = 1; unit <= 5; ++unit) {
        INFO("n " << n << ", parts " << parts << ", unit " << unit);
        const Range whole{10, 10 + n};
        const std::int64_t units = (n + unit - 1) / unit;
        std::int64_t at = whole.lo;
        for (std::int64_t i = 0; i < parts; ++i) {
          const Range r = split_range(whole, parts, i, unit);
          REQUIRE(r.lo == at);
          REQUIRE(r.hi >= r.lo);
          at = r.hi;
          const std::int64_t expected = units / parts + (i < units % parts ? 1 : 0);
          REQUIRE((r.size() + unit - 1) / unit == expected);
          REQUIRE((r.hi == whole.hi || r.size() % unit == 0));  // only the last unit may be short
        }
        REQUIRE(at == whole.hi);
        // Those that overlap a range are found without a look at each.
        for (std::int64_t lo = whole.lo - 2; lo <= whole.hi + 1; ++lo)
          for (std::int64_t hi = lo; hi <= whole.hi + 2; hi += 1 + (hi - lo) / 3) {
            const Range found = parts_overlapping(whole, parts, {lo, hi}, unit);
            for (std::int64_t i = 0; i < parts; ++i)
              REQUIRE((intersect(split_range(whole, parts, i, unit), Range{lo, hi}).size() > 0) ==
                      (i >= found.lo && i < found.hi));
          }
      }
}

TEST_CASE("a unit may be larger than the range, up to the largest number: the first part then has all") {
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{30}, std::int64_t{1} << 40})
    for (const std::int64_t unit : {n + 1, std::numeric_limits<std::int64_t>::max()})
      for (std::int64_t parts = 1; parts <= 3; ++parts) {
        CAPTURE(n);
        CAPTURE(parts);
        const Range whole{10, 10 + n};
        for (std::int64_t i = 0; i < parts; ++i)
          CHECK(split_range(whole, parts, i, unit) == (i == 0 ? whole : Range{whole.hi, whole.hi}));
        CHECK(parts_overlapping(whole, parts, whole, unit) == (n == 0 ? Range{0, 0} : Range{0, 1}));
      }
}
