#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/compile/compile.h"

namespace troupe::runtime {

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Cuts units into runs, one per stage, so that the largest cost of a run is as small as possible (the linear partition
/// problem, by dynamic programming). `cost(s, i, j)`: of units i .. j - 1 on stage s. Returns that cost and the stage
/// of each unit.
template <class Cost>
std::pair<double, std::vector<std::int32_t>> cut_runs(std::int32_t units, std::int32_t stages, Cost&& cost) {
  // best[s][j]: least possible maximum when the first j units make s stages.
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(units + 1, never));
  std::vector<std::vector<std::int32_t>> cut(stages + 1, std::vector<std::int32_t>(units + 1, 0));
  best[0][0] = 0;
  for (std::int32_t s = 1; s <= stages; ++s)
    for (std::int32_t j = s; j <= units; ++j)
      for (std::int32_t i = j - 1; i >= s - 1; --i) {
        const double worst = std::max(best[s - 1][i], cost(s - 1, i, j));
        if (worst < best[s][j]) best[s][j] = worst, cut[s][j] = i;
      }
  std::vector<std::int32_t> stage(units, 0);
  for (std::int32_t s = stages, j = units; s > 0; --s) {
    for (std::int32_t u = cut[s][j]; u < j; ++u) stage[u] = s - 1;
    j = cut[s][j];
  }
  return {best[stages][units], std::move(stage)};
}

std::vector<double> sums(const std::vector<UnitCost>& units, double UnitCost::*what) {
  std::vector<double> out{0};
  for (const auto& u : units) out.push_back(out.back() + u.*what);
  return out;
}

}  // namespace

Expected<std::vector<std::int32_t>> partition_units(const std::vector<UnitCost>& units,
                                                    const std::vector<std::int64_t>& widths,
                                                    const std::vector<std::int64_t>& parts) {
  const auto parts_of = [&](std::int32_t s) { return parts.empty() ? 1.0 : static_cast<double>(parts[s]); };
  const auto n = static_cast<std::int32_t>(units.size()), stages = static_cast<std::int32_t>(widths.size());
  if (stages > n)
    return invalid(fmt::format(
        "{} pipeline stages need at least as many units (layers), and there are {}: use pp={} or less", stages, n, n));
  const auto seconds = sums(units, &UnitCost::seconds), bytes = sums(units, &UnitCost::param_bytes);
  // dp coordinates of a stage run different microbatches at the same time.
  const auto time = [&](std::int32_t s, std::int32_t i, std::int32_t j) {
    return (seconds[j] - seconds[i]) / (static_cast<double>(widths[s]) * parts_of(s));
  };
  auto fastest = cut_runs(n, stages, time);
  // Of cuts that are as fast, within what costs are known to, the cut whose fullest place has least.
  constexpr double tolerance = 1.01;
  const auto memory = [&](std::int32_t s, std::int32_t i, std::int32_t j) {
    return time(s, i, j) > tolerance * fastest.first ? never : (bytes[j] - bytes[i]) / parts_of(s);
  };
  auto leanest = cut_runs(n, stages, memory);
  const auto most_bytes = [&](const std::vector<std::int32_t>& stage) {
    std::vector<double> held(widths.size(), 0);
    for (std::int32_t u = 0; u < n; ++u) held[stage[u]] += units[u].param_bytes / parts_of(stage[u]);
    return *std::max_element(held.begin(), held.end());
  };
  return leanest.first < most_bytes(fastest.second) ? std::move(leanest.second) : std::move(fastest.second);
}

}  // namespace troupe::runtime
