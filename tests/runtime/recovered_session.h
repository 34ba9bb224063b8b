// What simulated jobs that recover run, and what they tell of evaluations.
#pragma once

#include <algorithm>

#include "tests/runtime/kept_cases.h"

namespace mlp {

/// Of versions, in their order: the values that all places have reported, sorted.
using Evaluations = std::vector<std::pair<std::int64_t, std::vector<double>>>;

/// Evaluates every other version, from `first` on. REQUIRES: `evaluations` outlives the job.
inline SessionOptions recovered_session(std::int64_t steps, std::int64_t first, Evaluations& evaluations) {
  SessionOptions session;
  session.steps = steps;
  session.clip = 0.5;
  session.loss_divisor = 8;
  session.readers = [first](std::int64_t version) {
    return version % 2 == first % 2 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  session.on_closed = [&](const std::string& program, std::int64_t version, const std::vector<Report>& reports) {
    CHECK(program == "evaluate");
    std::vector<double> values;
    for (const Report& r : reports) values.insert(values.end(), r.values.begin(), r.values.end());
    std::sort(values.begin(), values.end());
    evaluations.emplace_back(version, std::move(values));
  };
  return session;
}

/// One line a step, each bit that of the undisturbed run.
inline void check_steps(const std::vector<StepResult>& one, const std::vector<StepResult>& whole, std::size_t steps) {
  REQUIRE(one.size() == steps);
  for (std::size_t s = 0; s < steps; ++s) {
    CHECK(one[s].step == static_cast<std::int64_t>(s));
    CHECK(one[s].loss == whole[s].loss);
    CHECK(one[s].grad_norm == whole[s].grad_norm);
  }
}

}  // namespace mlp
