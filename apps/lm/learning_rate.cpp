#include "apps/lm/learning_rate.h"

#include <cmath>
#include <numbers>

namespace troupe::lm {

double lr_at(const ScheduleConfig& s, std::int64_t step) {
  if (step < s.warmup) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup + 1);
  if (step >= s.steps) return s.min_lr;
  const double done = static_cast<double>(step - s.warmup) / static_cast<double>(s.steps - s.warmup);
  return s.min_lr + (s.lr - s.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace troupe::lm
