// The way from a graph whose units have their meshes (assign_units.h) to a lowered graph: the layouts of all tensors.
// Internal to the compiler.
#pragma once

#include <map>
#include <set>

#include "runtime/compile/assign_units.h"
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
  std::vector<std::int32_t> variants(std::int32_t of) const {
    std::vector<std::int32_t> all = {of};
    if (const auto it = boxed.find(of); it != boxed.end()) all.insert(all.end(), it->second.begin(), it->second.end());
    return all;
  }
};

/// Deduces layouts and inserts boxings; fills tensors, meshes and params of `staged.plan`. Error: what cannot be laid
/// out, by the name of the op, actor, feed or parameter.
Expected<Lowered> lower(const Graph& graph, Staged& staged);

/// Error: a parameter that is read both inside and outside of a shared unit, or on stages whose model axes differ;
/// parameters that an update joins, on different stages.
Status check_param_stages(const Graph& graph, const Staged& staged);

/// The parameters that any node, or the ops of an update, reads, each on the mesh of the stages that read it: on
/// several, on the union of their meshes. REQUIRES: check_param_stages.
void lower_params(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan, Lowered& low,
                  TensorLayouts& layouts);

/// Parameters whose next versions depend on each other, by Graph::next.
struct LinkedParams {
  std::int32_t program = 0;
  std::vector<Value> params;  ///< in the graph's order
};
std::vector<LinkedParams> linked_params(const Graph& graph);

/// The ops of updates, once all parameters that ops of microbatches read have their layouts; sets program and by_ops of
/// the parameters that they make. Error: what no place of a parameter's stages can compute, by name.
Status lower_updates(const Graph& graph, Plan& plan, Lowered& low, TensorLayouts& layouts);

}  // namespace troupe::runtime
