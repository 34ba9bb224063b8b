// The way from a graph to a lowered graph: where its units run, then the layouts of all tensors. Internal to the
// compiler.
#pragma once

#include <map>
#include <set>

#include "runtime/compile/compile.h"
#include "runtime/planner/lowered.h"

namespace troupe::runtime {

/// The plan's tensors that hold the values of a graph, as far as it is lowered.
struct TensorLayouts {
  std::vector<std::int32_t> home;                           ///< graph value -> plan tensor, -1: not yet made
  std::map<std::int32_t, std::vector<std::int32_t>> boxed;  ///< home -> its copies with other layouts
  std::map<Value, Value> param_of_grad;
  /// parameters whose layout a reader has asked for
  std::set<Value> fixed;
  /// A tensor as it was made, and every boxed copy of it.
  std::vector<std::int32_t> variants(std::int32_t home) const;
};

/// What is decided before layouts: meshes, programs and costs of a plan, and where its units run.
struct Staged {
  Plan plan;
  std::vector<UnitPlace> units;
  std::int32_t virtual_stages = 1;
};
/// Errors: a graph, meshes or cuts that do not fit each other.
Expected<Staged> assign_units(const Graph& graph, const CompileOptions& options);

/// Deduces layouts and inserts boxings; fills tensors, meshes and params of `plan`. Error: what cannot be laid out, by
/// the name of the op, actor, feed or parameter.
Expected<Lowered> lower(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan);

/// The parameters that any node reads, each on the mesh of the stages that read it: on several, on the union of these.
/// Error: one that is read both inside and outside of shared units.
Status lower_params(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan, Lowered& low,
                    TensorLayouts& layouts);

}  // namespace troupe::runtime
