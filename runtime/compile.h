// From a graph to a plan: stages, SBP deduction with visible boxings, segments, channels, slots, memory.
#pragma once

#include "runtime/plan.h"

namespace troupe::runtime {

struct CompileOptions {
  std::vector<Mesh> stages;                  ///< one mesh per pipeline stage, with ranks 0 .. n-1; see stage_meshes
  /// One per unit, in order, every stage used; empty: cut by cost. Interleaved, the stages are virtual ones; a
  /// shared unit's entry says where it begins and ends.
  std::vector<std::int32_t> stage_of_unit;
  Pipeline pipeline;                         ///< order of the stages' work
  std::int32_t zero = 0;                     ///< ZeRO stage (Rajbhandari et al., 2020): 1 divides optimizer state over dp, 2 reduced
                                             ///< gradients as well, 3 parameters too
  /// Per stage: which dp coordinate runs each microbatch of a step; empty: microbatch m is run by m mod width.
  std::vector<std::vector<std::int32_t>> owners;
  std::uint64_t seed = 0;
  /// Versions of parameters and optimizer state that every place has room for in host memory, to be written to disk while
  /// training goes on (the arena); 0: no checkpoint can be taken.
  std::int32_t snapshots = 0;
  CostModel costs;
};

/// Where a unit's ops run.
struct UnitPlace {
  std::int32_t mesh = 0;                     ///< index into Plan::meshes: a stage's own, or that of all stages together
  std::int32_t depth = 0;                    ///< virtual stage
  bool operator==(const UnitPlace&) const = default;
};

/// Meshes with axes {tp, dp} for stages of dp widths `dp`, ranks numbered stage by stage, tp fastest. tp is
/// the outer axis so that a dim that both split is cut by tp first: a ZeRO share lies inside a tp part. With
/// `replicas` > 1 the axis is two, {tp: tp / replicas, tp.q: replicas}: what the first divides down to one unit (a
/// key-value head), the second can have whole at several places (grouped-query attention on many places).
std::vector<Mesh> stage_meshes(const std::vector<std::int64_t>& dp, std::int64_t tp = 1, std::int64_t replicas = 1);

/// Cuts consecutive units into `stages` runs so that the costliest run is as cheap as possible.
/// Error: more stages than units.
Expected<std::vector<std::int32_t>> partition_units(const std::vector<double>& costs, std::int32_t stages);

/// Errors name the op, the tensor, both layouts and the boxing it would need with its bytes.
Expected<Plan> compile(const Graph& graph, const CompileOptions& options);

}  // namespace troupe::runtime
