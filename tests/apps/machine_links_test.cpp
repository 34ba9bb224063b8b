// What the times of messages between machines say of their links.
#include "apps/calibrate/machine_links.h"

#include <doctest/doctest.h>

#include <set>

#include "comm/ucx/ucx_transport.h"

using namespace troupe;
using namespace troupe::calibrate;

namespace {

/// The times that such links would have, with a hand-over of 40 us.
PairTimes times_of(double latency_s, double there_per_s, double back_per_s, double rendezvous_s) {
  const double op_s = 2 * 40e-6, small_s = 2 * (op_s + latency_s);
  PairTimes t{op_s, small_s, {}, {}};
  for (const auto& [way, per_s] : {std::pair(0, there_per_s), {1, back_per_s}}) {
    t.middle_s[way] = small_s + rendezvous_s + static_cast<double>(middle_bytes) / per_s;
    t.large_s[way] = small_s + rendezvous_s + static_cast<double>(large_bytes) / per_s;
  }
  return t;
}

}  // namespace

TEST_CASE("a link is found from its times: latency, the slower way's rate, rendezvous; times of no link are refused") {
  const auto link = link_of(times_of(3e-3, 2e8, 1e8, 6e-3));
  REQUIRE_MESSAGE(link.ok(), link.status().message());
  CHECK(link->latency_s == doctest::Approx(3e-3));
  CHECK(link->bytes_per_s == doctest::Approx(1e8));
  CHECK(link->rendezvous_s == doctest::Approx(6e-3));
  CHECK(link_of(times_of(3e-3, 2e8, 1e8, 0))->rendezvous_s < 1e-9);
  CHECK(link_of(times_of(-1e-3, 2e8, 1e8, 0))->latency_s == 1e-6);  // less than acts wait for each other
  PairTimes busy = times_of(3e-3, 2e8, 1e8, 0);
  busy.large_s[1] = busy.middle_s[1] / 2;
  CHECK(link_of(busy).status().code() == Code::unavailable);
  CHECK(static_cast<std::int64_t>(comm::UcxOptions().eager_bytes_max) == LinkCost::eager_bytes);
}

TEST_CASE("a pair of which most rounds were disturbed is judged by the quickest ones, and refused where all were") {
  const PairTimes quiet = times_of(3e-3, 2e8, 1e8, 0);
  const std::vector<double> disturbs = {0.3, 0.001, 0, 0.25, 0.4, 0.002, 0.3, 0.26};
  PairRounds rounds;
  const std::array<double, measurements_of_pair> of = {quiet.op_s,        quiet.small_s,    quiet.middle_s[0],
                                                       quiet.middle_s[1], quiet.large_s[0], quiet.large_s[1]};
  for (std::size_t m = 0; m < rounds.size(); ++m)
    for (const double more : disturbs) rounds[m].push_back(of[m] + (m == 3 ? more : more / 100));
  const auto link = link_of(times_of(rounds));
  REQUIRE_MESSAGE(link.ok(), link.status().message());
  CHECK(link->bytes_per_s == doctest::Approx(1e8));
  CHECK(link->latency_s == doctest::Approx(3e-3));
  for (double& s : rounds[3]) s += 0.3;
  CHECK_FALSE(link_of(times_of(rounds)).ok());
  rounds = {};
  for (std::size_t m = 0; m < rounds.size(); ++m) rounds[m] = {of[m], of[m] * 1.01, of[m] * 1.02};
  CHECK(times_of(rounds).large_s[0] == quiet.large_s[0] * 1.01);  // medians of a machine that is quiet
}

TEST_CASE("links that differ from the typical one by more than a fifth are told each") {
  const std::vector<MachineLink> links = {{"a", "b", {1e-3, 1e9}},
                                          {"a", "c", {1.1e-3, 1e9}},
                                          {"b", "c", {1e-3, 0.9e9}},
                                          {"b", "d", {1.3e-3, 1e9}},
                                          {"c", "d", {1e-3, 0.75e9}}};
  const MachineLinks found = summary_of({"a", "b", "c", "d"}, links);
  CHECK(found.typical == LinkCost{1e-3, 1e9});
  REQUIRE(found.odd.size() == 2);
  CHECK(found.odd[0] == links[3]);
  CHECK(found.odd[1] == links[4]);
}

TEST_CASE("all pairs of a few machines are measured, and of many some of each machine") {
  CHECK(pairs_to_measure(2) == std::vector<std::pair<int, int>>{{0, 1}});
  for (const int n : {3, all_pairs_max, 7, 8, 33, 64}) {
    const auto pairs = pairs_to_measure(n);
    const std::set<std::pair<int, int>> distinct(pairs.begin(), pairs.end());
    CHECK(distinct.size() == pairs.size());
    std::set<int> met;
    for (const auto& [a, b] : pairs) {
      CHECK(a < b);
      met.insert({a, b});
    }
    CHECK(std::ssize(met) == n);
    if (n <= all_pairs_max) CHECK(std::ssize(pairs) == n * (n - 1) / 2);
    else CHECK(std::ssize(pairs) <= 2 * n);
  }
}
