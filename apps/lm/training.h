// One run of `troupe train`: its text, its plan, its session.
#pragma once

#include "apps/lm/model.h"
#include "apps/lm/results.h"

namespace troupe::lm {

class Training {
 public:
  Training(const runtime::App& app, const JobArguments& arguments, Prepared prepared);
  /// Trains and writes what there is to say; answers the exit code.
  int run();

 private:
  Status open(int& code);
  runtime::JobOptions options();
  bool evaluates_at(std::int64_t version) const;

  const runtime::App& app_;
  const JobArguments& a_;
  const Prepared p_;
  const std::int64_t steps_;
  Results results_;
  Sampler sampler_;
  runtime::Plan plan_;
};

}  // namespace troupe::lm
