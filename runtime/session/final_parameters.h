// Parameters whose values a run's result has: those of the last version, brought by its digest.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/session/control.h"

namespace troupe::runtime {

/// A parameter, whole.
struct FinalParameter {
  Shape shape;
  std::vector<float> values;  ///< row-major
};
using FinalParameters = std::map<std::string, FinalParameter>;  ///< by name

/// Of all that a result has: they travel over control links. Larger models save a checkpoint.
inline constexpr std::int64_t final_parameters_bytes_max = std::int64_t{64} << 20;

/// Their indices in Plan::params. Error: a plan that does not train, and so has no last version; a name that no
/// parameter has, or that is there twice; more than final_parameters_bytes_max.
Expected<std::vector<std::int32_t>> find_parameters(const Plan& plan, const std::vector<std::string>& names);

/// What the places have reported of `wanted` (indices into Plan::params) with a digest, put together. Empty where no
/// place has (a run without kernels). Error: bytes that are none of a part of the parameter, or an element of it that
/// no place has brought.
Expected<FinalParameters> assemble(const Plan& plan, const std::vector<std::int32_t>& wanted,
                                   const std::vector<Closed>& places);

}  // namespace troupe::runtime
