// What the session makes of the numbers that places report: sums in an order that no topology changes (SE-3 fixed
// order, NU-2 topologies). What they tell of gradients: gradient_totals.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/session/control.h"

namespace troupe::runtime {

struct VersionDigest {
  /// one hash over all logical parameters in name order, the same on any topology
  std::string params_hash;
  /// the first parameter, by index of Plan::params, with an element that is not finite
  std::int32_t not_finite = -1;
};

/// Each function reads the reports of one step, by rank.
class Reductions {
 public:
  /// REQUIRES: `plan` outlives this object.
  explicit Reductions(const Plan& plan);

  /// Sum of the losses of a program, over microbatches in index order; of microbatch `only` if that is given. Error: a
  /// loss of a microbatch that a step does not have, or of a program that does not train.
  Expected<double> loss(const std::vector<Closed>& places, std::int32_t program,
                        std::optional<std::int32_t> only = {}) const;
  /// The digest of a version. Error: replicas differ; no place of this plan can make a report that came; the reports
  /// leave out an element of a parameter. Without any report (a run without kernels) the hash is that of no parameter.
  Expected<VersionDigest> digest(const std::vector<Closed>& places) const;

 private:
  const Plan& plan_;
  std::map<std::string_view, std::size_t> index_;  // of Plan::params, by name
  std::vector<double> elements_;                   // of each parameter
};

}  // namespace troupe::runtime
