#include "apps/lm/learning_rate.h"

#include <numbers>

#include "kernels/exact_math.h"

namespace troupe::lm {

double lr_at(const ScheduleConfig& s, std::int64_t step) {
  if (step < s.warmup) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup + 1);
  if (step >= s.steps) return s.min_lr;
  const double done = static_cast<double>(step - s.warmup) / static_cast<double>(s.steps - s.warmup);
  double sine, cosine;  // the same bits on the machine of every process that may lead the run
  kernels::exact::sin_cos(std::numbers::pi * done, sine, cosine);
  return s.min_lr + (s.lr - s.min_lr) * 0.5 * (1.0 + cosine);
}

}  // namespace troupe::lm
