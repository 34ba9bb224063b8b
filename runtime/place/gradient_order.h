// What a place tells the session of the gradients of a step, and in which order. Place and session each derive the
// order from the plan, so that a report (actors::GradientReport) has numbers without names:
//
//   square sums: for each norm actor of the place's role, in the role's order, for each of its parameters: one number
//                for each node of square_rows()
//   peaks:       for each segment of the role, in the role's order: one number for each of made_gradients()
#pragma once

#include <vector>

#include "actors/gradient_report.h"
#include "placement/tree.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// The rows of a gradient of which one place tells square sums.
struct SquareRows {
  Extent extent;            ///< that the place has
  std::int64_t column = 0;  ///< index within a row of the extent's first element
  /// Of the tree over all rows (indices of dim 0), in order. None where the extent is empty, or where a place of lower
  /// coordinates has the same one and tells of it.
  std::vector<Term> nodes;
};

/// REQUIRES: the gradient is whole: P on axes of one place only.
SquareRows square_rows(const Layout& gradient, std::int64_t position);
/// Of the gradient that a norm actor of `rank` has of a parameter.
SquareRows square_rows(const Plan& plan, std::int32_t tensor, Rank rank);
/// Of a gradient of this shape: the leaves of the tree. REQUIRES, as square_rows: at most gradient_rows_max rows.
inline std::int32_t rows_of(const Shape& shape) { return shape.empty() ? 1 : static_cast<std::int32_t>(shape[0]); }

/// The tensor whose square sums a norm actor tells of a parameter: its uses have the same parts.
std::int32_t normed(const PlanRole& role, const PlanActor& norm, const PlanParamRef& ref);
/// The parameters of the gradients that a segment makes, in the order of its ops.
std::vector<std::int32_t> made_gradients(const Plan& plan, const PlanActor& segment);

/// What a place tells, and where in its report each of its actors begins.
struct GradientOrder {
  std::size_t square_sums = 0, peaks = 0;                 ///< of the place
  std::vector<std::size_t> first_square_sum, first_peak;  ///< by actor of the role
};
GradientOrder gradient_order(const Plan& plan, Rank rank);

}  // namespace troupe::runtime
