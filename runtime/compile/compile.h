// From a graph to a plan: stages, SBP deduction with visible boxings, segments, channels, slots, memory.
#pragma once

#include <optional>

#include "runtime/plan/plan.h"
#include "runtime/plan/stage_meshes.h"

namespace troupe::runtime {

/// The stages of one model of a graph.
struct ModelStages {
  std::string model;  ///< as Graph::model names it
  /// one mesh per stage, with ranks 0 .. n-1 of its own; see stage_meshes
  std::vector<Mesh> stages;
};

struct CompileOptions {
  /// one mesh per pipeline stage, with ranks 0 .. n-1; see stage_meshes; empty: one place. No axis is called
  /// stages_axis. All have the same axes, in one order; model axes may differ in size where stages share no parameter.
  std::vector<Mesh> stages;
  /// Instead: a chain of stages for each model of the graph, which its units are cut into. The plan has their stages,
  /// and ranks, one model behind the other: with ZeRO 3 data goes from a model to later ones only. Empty: the units of
  /// all models lie on `stages`.
  std::vector<ModelStages> models;
  /// One per unit, as Graph::units has them, every stage used; empty: cut by cost, in the order of the data. With
  /// `models` the stages are numbered through, and a unit is on one of its model.
  /// Interleaved, the stages are virtual ones; a shared unit's entry says where it begins and ends. Data may go back to
  /// an earlier stage where passes have no order (1f1b), with ZeRO 0 to 2; likewise from a unit to another one of its
  /// stage and back.
  std::vector<std::int32_t> stage_of_unit;
  Pipeline pipeline;  ///< order in which stages begin their passes
  /// ZeRO stage (Rajbhandari et al., 2020): 1 divides optimizer state over dp, 2 reduced gradients as well, 3
  /// parameters too
  std::int32_t zero = 0;
  /// Per stage: which dp coordinate runs each microbatch of a step; empty: they take turns.
  std::vector<std::vector<std::int32_t>> owners;
  std::uint64_t seed = 0;
  /// An update writes version v + 1 of parameters and moments into a slot of its own, so that version v stays
  /// whole until every place has voted for step v + 1: what a job needs to go on after a worker has died. Twice
  /// the memory of both; the same bits.
  bool keeps_version = false;
  /// Instead: each place copies its part of some versions (SessionOptions::copy_every) to host memory that outlives its
  /// process, with room for two. For devices whose memory dies with the process, or has no room for the state twice.
  bool keeps_copies = false;
  /// Versions of parameters and moments for which every place's arena has room; 0: the plan takes no checkpoint.
  std::int32_t snapshots = 0;
  CostModel costs;
  /// What layouts along model axes are found with; empty: `costs`. Under tp layouts decide the order of sums, and so
  /// bits (NU-3 model axes): for the same bits on any dp and pp and with any number of threads these costs depend on
  /// none of them.
  std::optional<CostModel> layout_costs;
};

/// Where a unit's ops run.
struct UnitPlace {
  /// index into Plan::meshes: a stage's own mesh, or the mesh of all stages together
  std::int32_t mesh = 0;
  std::int32_t virtual_stage = 0;
  bool operator==(const UnitPlace&) const = default;
};

/// What a unit asks of the stage that runs it.
struct UnitCost {
  double seconds = 0;  ///< of a microbatch, forward
  double param_bytes = 0;
};
/// Cuts consecutive units into runs, one per stage, so that the slowest stage is as fast as possible; of cuts that are
/// as fast, within 1 %, the cut whose fullest place has least parameters, if it has less. `widths`: the stages' dp
/// widths, by which a stage's throughput grows. `parts`: by stage, the places that divide a unit (model axes); empty:
/// as many everywhere. Returns the stage of each unit. Error: more stages than units.
Expected<std::vector<std::int32_t>> partition_units(const std::vector<UnitCost>& units,
                                                    const std::vector<std::int64_t>& widths,
                                                    const std::vector<std::int64_t>& parts = {});

/// Error: a graph, meshes or options that do not fit each other; layouts that no boxing connects. Errors name the op,
/// the tensor, both layouts and the boxing it would need with its bytes. The plan is not verified: see verify.h.
Expected<Plan> compile(const Graph& graph, const CompileOptions& options);

}  // namespace troupe::runtime
