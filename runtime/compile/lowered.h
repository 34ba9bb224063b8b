// The graph between deduction and planning: every op knows its stage and the layouts of its arguments,
// every change of layout is a boxing node. Internal to the compiler.
#pragma once

#include <map>
#include <set>

#include "runtime/compile/compile.h"

namespace troupe::runtime {

struct LoweredNode {
  enum class Kind : std::uint8_t { op, actor, feed, report, boxing };
  Kind kind = Kind::op;
  std::string op, name;
  Attrs attrs;
  std::vector<std::int32_t> in, out;   ///< tensors of the plan
  std::int32_t mesh = 0;               ///< of the places that run it; boxing: where it ends
  std::int32_t virtual_stage = 0;
  std::int32_t unit = 0;
  std::int32_t program = 0;
  bool backward = false;
  Rate rate = Rate::microbatch;
};

/// A parameter as lowered: its tensor and the gradients of its uses.
struct LoweredParam {
  std::int32_t graph_node = 0;
  std::int32_t tensor = -1;
  std::int32_t unit = 0;
  std::vector<std::int32_t> stages;    ///< ascending
  std::vector<std::int32_t> grads;     ///< one tensor per use, in graph order
};

struct Lowered {
  std::vector<LoweredNode> nodes;
  std::vector<LoweredParam> params;
  std::vector<std::int32_t> producer;  ///< per tensor: node, or -1 (parameter)
};

/// The plan's tensors that hold the values of a graph, as far as it is lowered.
struct TensorLayouts {
  std::vector<std::int32_t> home;                             ///< graph value -> plan tensor, -1: not yet made
  std::map<std::int32_t, std::vector<std::int32_t>> boxed;    ///< home -> its copies with other layouts
  std::map<Value, Value> param_of_grad;
  std::set<Value> fixed;                                      ///< parameters whose layout a reader has asked for
  /// A tensor as it was made, and every boxed copy of it.
  std::vector<std::int32_t> variants(std::int32_t home) const;
};

/// What is decided before layouts: meshes, programs and costs of a plan, and where its units run.
struct Staged {
  Plan plan;
  std::vector<UnitPlace> units;
  std::int32_t depths = 1;             ///< virtual stages
};
/// Errors: a graph, meshes or cuts that do not fit each other.
Expected<Staged> assign_units(const Graph& graph, const CompileOptions& options);

/// Deduces layouts and inserts boxings; fills tensors, meshes and params of `plan`. Error: what cannot be laid out, by
/// the name of the op, actor, feed or parameter.
Expected<Lowered> lower(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan);

/// The parameters that any node reads, each on the mesh of the stages that read it: on several, on the union of these.
/// Error: one that is read both inside and outside of shared units.
Status lower_params(const Graph& graph, const std::vector<UnitPlace>& units, Plan& plan, Lowered& low, TensorLayouts& layouts);

/// Cost of one op at the largest place of its stage.
kernels::OpCost op_cost(const kernels::OpDef& def, const std::vector<TensorType>& in,
                        const std::vector<TensorType>& out, const Attrs& attrs);

}  // namespace troupe::runtime
