// What the session makes of the numbers that places report: sums in an order that no topology changes (SE-3, NU-2).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <map>
#include <vector>

#include "runtime/session/control.h"
#include "runtime/plan/plan.h"
#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

struct VersionDigest {
  std::string params_hash;             ///< one hash over all logical parameters in name order, the same on any topology
  std::int32_t not_finite = -1;        ///< the first parameter, by index of Plan::params, with an element that is not finite
};

/// Each function reads the reports of one step, by rank.
class Reductions {
 public:
  /// REQUIRES: `plan` outlives this object.
  explicit Reductions(const Plan& plan);

  /// Sum of the losses, over microbatches in index order; of microbatch `only` if that is given.
  double loss(const std::vector<Closed>& places, std::optional<std::int32_t> only = {}) const;
  /// Norm of the gradient: the square sums of the trained parameters, added in name order. Error: the reports leave
  /// rows of a parameter out, or have rows twice.
  Expected<double> norm(const std::vector<Closed>& places) const;
  /// Largest terms by index of Plan::params. Error: a report that no place of this plan can make.
  Expected<std::vector<StepTerms>> terms(const std::vector<Closed>& places) const;
  /// The digest of a version. Error: replicas that differ, or a report that no place of this plan can make.
  Expected<VersionDigest> digest(const std::vector<Closed>& places) const;

 private:
  const Plan& plan_;
  std::map<std::string_view, std::size_t> index_;   // of Plan::params, by name
  std::vector<std::size_t> by_name_;                          // indices of Plan::params in name order
  std::vector<bool> trained_;                                 // by index of Plan::params
};

}  // namespace troupe::runtime
