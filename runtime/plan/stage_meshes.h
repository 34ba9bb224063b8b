// The meshes of a pipeline's stages: how they are made, and what they must satisfy.
#pragma once

#include <string>
#include <vector>

#include "devices/base/status.h"
#include "placement/mesh.h"

namespace troupe::runtime {

/// Bytes and counts that a plan may name: far above any machine, far below overflow.
inline constexpr std::int64_t bytes_max = std::int64_t{1} << 46, count_max = 1 << 20;

/// Meshes with axes {tp, dp} for stages of dp widths `dp`, ranks numbered stage by stage, tp fastest. tp is
/// the outer axis so that a dim that both split is cut by tp first: a ZeRO share lies inside a tp part. With
/// `replicas` > 1 tp becomes two axes, {tp: tp / replicas, tp.q: replicas}: a tensor that tp splits down to one unit (a
/// key-value head) can be whole along tp.q (grouped-query attention on many places). REQUIRES: `replicas` divides tp.
std::vector<Mesh> stage_meshes(const std::vector<std::int64_t>& dp, std::int64_t tp = 1, std::int64_t replicas = 1);

/// The stages' meshes hold ranks 0 .. n-1, each once.
Status check_stage_meshes(const std::vector<Mesh>& stages);

/// The mesh has as many ranks as its axes need. Error: begins with `where`.
Status check_mesh(const Mesh& mesh, const std::string& where);

}  // namespace troupe::runtime
