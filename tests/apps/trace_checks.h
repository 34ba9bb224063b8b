// What must hold of every trace.json.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

/// Each arrow's end has its start, not later, and both lie in a slice; slices of a row do not overlap. `events`:
/// traceEvents.
inline void check_picture(const nlohmann::json& events) {
  using Row = std::pair<int, int>;
  const auto row_of = [](const nlohmann::json& e) { return Row(e["pid"], e["tid"]); };
  constexpr double rounding_us = 1e-6;  // of sums of whole nanoseconds
  std::map<Row, std::vector<std::pair<double, double>>> slices;
  std::map<std::string, double> starts;
  int ends = 0, no_start = 0, backwards = 0, outside = 0, overlaps = 0;
  for (const auto& e : events) {
    if (e["ph"] == "X") slices[row_of(e)].push_back({e["ts"], e["ts"].get<double>() + e["dur"].get<double>()});
    if (e["ph"] == "s") starts[e["id"].dump()] = e["ts"];
  }
  for (auto& [row, all] : slices) {
    std::sort(all.begin(), all.end());
    for (std::size_t i = 1; i < all.size(); ++i) overlaps += all[i].first < all[i - 1].second - rounding_us;
  }
  for (const auto& e : events) {
    if (e["ph"] != "s" && e["ph"] != "f") continue;
    const double at = e["ts"];
    const auto& all = slices[row_of(e)];
    outside += std::none_of(all.begin(), all.end(),
                            [&](const auto& s) { return s.first <= at + rounding_us && at <= s.second + rounding_us; });
    if (e["ph"] != "f") continue;
    ++ends;
    const auto start = starts.find(e["id"].dump());
    if (start == starts.end()) ++no_start;
    else backwards += at < start->second;
  }
  INFO(ends, " arrows, ", starts.size(), " starts");
  CHECK(ends == static_cast<int>(starts.size()));
  CHECK(no_start == 0);
  CHECK(backwards == 0);
  CHECK(outside == 0);
  CHECK(overlaps == 0);
}

}  // namespace troupe::test
