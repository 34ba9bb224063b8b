#include "apps/options/throttle_spec.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::lm;

TEST_CASE("a throttle reads: for every link or for one, with units, either part alone") {
  CHECK(*parse_throttle("latency=50us,bandwidth=100MB/s") == comm::Throttle{-1, -1, 50'000, 100'000'000});
  CHECK(*parse_throttle("0-1:latency=1.5ms") == comm::Throttle{0, 1, 1'500'000, 0});
  CHECK(*parse_throttle("3-2:bandwidth=0.25GB/s") == comm::Throttle{3, 2, 0, 250'000'000});
  CHECK(*parse_throttle("bandwidth=9B/s,latency=2s") == comm::Throttle{-1, -1, 2'000'000'000, 9});
  CHECK(parse_throttle("latency=100000s,bandwidth=1000000GB/s").ok());  // the largest
  CHECK(*parse_throttle("latency=7ns") == comm::Throttle{-1, -1, 7, 0});
  CHECK(*parse_throttle("bandwidth=64KB/s") == comm::Throttle{-1, -1, 0, 64'000});
}

TEST_CASE("what a throttle does not understand is named, with what was expected") {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "''"},
      {"fast", "'fast'"},
      {"latency=50", "'latency=50'"},
      {"latency=-1us", "'latency=-1us'"},
      {"latency=1us,speed=3", "'speed=3'"},
      {"bandwidth=0MB/s", "'bandwidth=0MB/s'"},
      {"bandwidth=100us", "'bandwidth=100us'"},
      {"bandwidth=1e300GB/s", "'bandwidth=1e300GB/s'"},
      {"latency=100001s", "a latency is at most 100000s"},
      {"bandwidth=2000000GB/s", "at most 1000000GB/s"},
      {"latency=nanus", "'latency=nanus'"},
      {"0:latency=1us", "'0'"},
      {"0-0:latency=1us", "'0-0'"},
      {"0-x:latency=1us", "'0-x'"},
      {"-1-0:latency=1us", "'-1-0'"},
      {"0-1:", "''"},
  };
  for (const auto& [text, part] : wrong) {
    CAPTURE(text);
    const auto t = parse_throttle(text);
    REQUIRE_FALSE(t.ok());
    CHECK(t.status().message().find(part) != std::string::npos);
    CHECK(t.status().message().find("latency=50us,bandwidth=100MB/s") != std::string::npos);
  }
}

TEST_CASE("a throttled link costs its own time and the throttle's; the last throttle that fits counts") {
  CostModel costs;
  costs.intra_node = {10e-6, 1e9};
  slow_down(costs, {});
  CHECK(costs == CostModel{.intra_node = {10e-6, 1e9}});
  costs.handover_s = 3e-6;
  slow_down(costs, {*parse_throttle("0-1:latency=7us")});
  CHECK(costs.link(0, 1).latency_s == doctest::Approx(20e-6));
  CHECK(costs.link(1, 2).latency_s == doctest::Approx(13e-6));
  costs = CostModel{.intra_node = {10e-6, 1e9}};
  slow_down(costs, {*parse_throttle("latency=90us,bandwidth=1GB/s"), *parse_throttle("1-0:latency=1ms"),
                    *parse_throttle("0-1:latency=2ms")});
  CHECK(costs.link(2, 3).latency_s == doctest::Approx(100e-6));
  CHECK(costs.link(2, 3).bytes_per_s == 1e9);
  CHECK(costs.link(2, 3).link_bytes_per_s == 1e9);
  for (const auto& link : {costs.link(0, 1), costs.link(1, 0)}) {
    CHECK(link.latency_s == doctest::Approx(2010e-6));
    CHECK(link.bytes_per_s == 1e9);
    CHECK(link.link_bytes_per_s == std::numeric_limits<double>::infinity());
  }
  slow_down(costs, {*parse_throttle("0-1:latency=1us"), *parse_throttle("latency=0us")});
  CHECK(costs.odd_links.empty());
}
