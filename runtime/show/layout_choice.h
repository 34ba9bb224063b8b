// LayoutChoice: which row of its SBP table each kind of forward op took on a model axis, and the cost of the best
// layout with another row there: what `troupe plan` prints of the search of deduce.h.
#pragma once

#include "runtime/compile/deduce.h"

namespace troupe::runtime {

struct LayoutChoice {
  std::string axis;  ///< mesh axis
  /// alike ops of all units of a kind, by op and parameter: "linear KIND.up.weight"
  std::string ops;
  std::int32_t count = 0;
  kernels::Signature chosen;
  /// the row of the best layout without `chosen`; none: no other row fits
  std::optional<kernels::Signature> instead;
  LayoutCost more;  ///< cost of that layout, less the cost of the chosen one
};

struct LayoutChoices {
  LayoutCost cost;                    ///< of the chosen layout, all model axes together
  std::vector<LayoutChoice> choices;  ///< by axis, in the order of the graph
};

/// Searches once for each kind of op. Empty where no mesh has a model axis wider than 1. Error: as compile().
Expected<LayoutChoices> layout_choices(const Graph& graph, const CompileOptions& options);

/// The choices as a table for people; empty if there are none.
std::string layout_text(const LayoutChoices& choices);

}  // namespace troupe::runtime
