#include "apps/options/suggest.h"

#include <algorithm>

namespace troupe::lm {

int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the optimal string alignment table: row i holds the distances of a[0, i) to b[0, j).
  std::vector<int> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) current[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, previous);
    std::swap(previous, current);
    current[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
  }
  return current[b.size()];
}

std::string nearest(std::string_view typed, const std::vector<std::string>& known) {
  const auto last = [](std::string_view name) { return name.substr(name.rfind('.') + 1); };
  std::string best;
  int best_distance = 0;
  for (const auto& name : known) {
    // A right key in the wrong section costs one edit, whatever the sections are called.
    const int distance = std::min(edit_distance(typed, name), edit_distance(last(typed), last(name)) + 1);
    const auto length = static_cast<int>(last(name).size());
    if (distance > std::max(2, length / 3) || distance >= std::max(length, static_cast<int>(last(typed).size())))
      continue;
    if (best.empty() || distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known) {
  const std::string best = nearest(typed, known);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace troupe::lm
