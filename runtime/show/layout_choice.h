// LayoutChoice: which row of its SBP table each kind of forward op took on a model axis, and what the whole layout would
// have cost with another row there: what `troupe plan` says about the search of deduce.h.
#pragma once

#include "runtime/compile/deduce.h"

namespace troupe::runtime {

struct LayoutChoice {
  std::string axis;                    ///< mesh axis
  std::string ops;                     ///< alike ops of all layers, by op and parameter: "linear model.layers.*.mlp.up_proj.weight"
  std::int32_t count = 0;
  kernels::Signature chosen;
  std::optional<kernels::Signature> instead;   ///< what the best layout without `chosen` takes there; none: there is no other
  LayoutCost more;                     ///< what that layout costs in all, beyond the chosen one
};

struct LayoutChoices {
  LayoutCost cost;                     ///< of the chosen layout, all model axes together
  std::vector<LayoutChoice> choices;   ///< by axis, in the order of the graph
};

/// Searches once for each kind of op. Empty where no mesh has a model axis wider than 1. Errors as of compile().
Expected<LayoutChoices> layout_choices(const Graph& graph, const CompileOptions& options);

/// For people; empty when there was nothing to choose.
std::string layout_text(const LayoutChoices& choices);

}  // namespace troupe::runtime
