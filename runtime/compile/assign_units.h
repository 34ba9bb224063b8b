// Where units (Graph::unit: the pieces of a model, such as a layer, of which stages are made) run, which is decided
// before layouts. compile() begins with it; the search for layouts (deduce.h) needs it, without the rest of a plan.
#pragma once

#include "runtime/compile/compile.h"

namespace troupe::runtime {

/// A plan that has its meshes, programs and costs only, and where its units run.
struct Staged {
  Plan plan;
  CostModel layout_costs;        ///< what layouts are found with (CompileOptions::layout_costs)
  std::vector<UnitPlace> units;  ///< by unit of the graph
  std::int32_t virtual_stages = 1;
};

/// Errors: a graph, meshes or cuts that do not fit each other.
Expected<Staged> assign_units(const Graph& graph, const CompileOptions& options);

}  // namespace troupe::runtime
