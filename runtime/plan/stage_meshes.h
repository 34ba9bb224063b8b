// Which places form the stages of a pipeline. A stage is the places that run the same units: the ranks of one mesh,
// with a dp width, and sizes of model axes, of its own. The first Plan::stages meshes of a plan are those of its
// stages, in the pipeline's order; of several models one pipeline behind the other. This file makes such meshes and
// checks them.
#pragma once

#include <string>
#include <vector>

#include "devices/base/status.h"
#include "placement/mesh.h"

namespace troupe::runtime {

/// Bytes and counts that a plan may name: far above any machine, far below overflow.
inline constexpr std::int64_t bytes_max = std::int64_t{1} << 46, count_max = 1 << 20;

/// The axis of all stages together: the compiler adds it to the meshes of a plan whose stages share units. A mesh of
/// CompileOptions::stages must not have it.
inline constexpr const char* stages_axis = "stages";

/// In which order the places of all stages are numbered, and so fill the machines of a job. The places of a replica
/// of a stage, which the model axes have, follow each other in either.
enum class RankOrder : std::uint8_t {
  stage_by_stage,     ///< of a stage all replicas, then the next stage: dp is inside a machine before pp
  replica_by_replica  ///< of all stages the first replica, then the second: pp is inside a machine before dp
};

/// "stage by stage".
std::string to_string(RankOrder order);

/// Meshes with the axes `model` and dp for stages of dp widths `dp`, ranks numbered in this order, model axes fastest.
/// dp is the innermost axis so that a dim that a model axis splits, too, is cut by the model axis first: a ZeRO share
/// lies inside a part. With several model axes a tensor may be divided on one and whole on another.
std::vector<Mesh> stage_meshes(const std::vector<std::int64_t>& dp, const std::vector<Axis>& model,
                               RankOrder order = RankOrder::stage_by_stage);
/// With one model axis, tp.
std::vector<Mesh> stage_meshes(const std::vector<std::int64_t>& dp, std::int64_t tp = 1);

/// Whether two meshes differ in the width of dp only: only then may stages share a parameter or a unit, for a share of
/// dp lies inside a part of the model axes.
bool same_model_axes(const Mesh& one, const Mesh& other);

/// The stages' meshes hold ranks 0 .. n-1, each once, and have the same axes; sizes may differ.
Status check_stage_meshes(const std::vector<Mesh>& stages);

/// The mesh has as many ranks as its axes need. Error: begins with `where`.
Status check_mesh(const Mesh& mesh, const std::string& where);

}  // namespace troupe::runtime
