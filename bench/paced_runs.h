// What the tools of this folder that play and run plans share.
#pragma once

#include <string>

#include "apps/job/planning.h"

namespace bench {

/// Kernels of paced runs take this many times their predicted time: the cores stay idle.
inline constexpr double paced = 2;

[[noreturn]] void die(const std::string& why);

template <class T>
T must(troupe::Expected<T> value) {
  if (!value.ok()) die(value.status().message());
  return *std::move(value);
}

/// A job as `troupe train` starts it: all its workers on this machine.
troupe::lm::Prepared prepare_train(const troupe::lm::JobArguments& arguments);

/// Seconds a step of `plan` on processes whose kernels sleep, on links that are throttled so: the median of the five
/// steps after the first two.
double measured_s(const troupe::runtime::App& app, const troupe::lm::Prepared& p, const troupe::runtime::Plan& plan,
                  const std::vector<troupe::comm::Throttle>& throttle);

}  // namespace bench
