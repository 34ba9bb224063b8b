#include <algorithm>
#include <limits>

#include "runtime/compile/compile.h"

namespace troupe::runtime {

Expected<std::vector<std::int32_t>> partition_units(const std::vector<double>& costs, std::int32_t stages) {
  const auto n = static_cast<std::int32_t>(costs.size());
  if (stages > n)
    return invalid(std::to_string(stages) + " pipeline stages need at least as many units (layers), and there are " +
                   std::to_string(n) + ": use pp=" + std::to_string(n) + " or less");
  // best[s][i]: least possible maximum when the first i units make s stages.
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(n + 1, inf));
  std::vector<std::vector<std::int32_t>> cut(stages + 1, std::vector<std::int32_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::int32_t s = 1; s <= stages; ++s)
    for (std::int32_t i = s; i <= n; ++i) {
      double run = 0;
      for (std::int32_t j = i - 1; j >= s - 1; --j) {
        run += costs[j];
        const double worst = std::max(best[s - 1][j], run);
        if (worst < best[s][i]) best[s][i] = worst, cut[s][i] = j;
      }
    }
  std::vector<std::int32_t> stage(n, 0);
  for (std::int32_t s = stages, i = n; s > 0; --s) {
    for (std::int32_t u = cut[s][i]; u < i; ++u) stage[u] = s - 1;
    i = cut[s][i];
  }
  return stage;
}

}  // namespace troupe::runtime
