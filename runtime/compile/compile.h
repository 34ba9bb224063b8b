// From a graph to a plan: stages, SBP deduction with visible boxings, segments, channels, slots, memory.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/stage_meshes.h"

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
  std::int32_t virtual_stage = 0;                    ///< virtual stage
  bool operator==(const UnitPlace&) const = default;
};

/// Cuts consecutive units into `stages` runs so that the costliest run is as cheap as possible.
/// Error: more stages than units.
Expected<std::vector<std::int32_t>> partition_units(const std::vector<double>& costs, std::int32_t stages);

/// Errors name the op, the tensor, both layouts and the boxing it would need with its bytes.
Expected<Plan> compile(const Graph& graph, const CompileOptions& options);

}  // namespace troupe::runtime
