// What --mesh says: "dp=2,pp=2", "dp=2/1,pp=2" (each stage its own dp width), "tp=2".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options/config.h"
#include "placement/mesh.h"

namespace troupe::lm {

/// A value type. `dp.size() == pp`.
struct MeshSpec {
  std::vector<std::int64_t> dp = {1};  ///< data-parallel width of each pipeline stage
  std::int64_t pp = 1;                 ///< pipeline stages
  std::int64_t tp = 1;                 ///< tensor-parallel width, the same everywhere
  bool operator==(const MeshSpec&) const = default;

  /// Number of worker processes.
  std::int64_t workers() const;
};

/// "dp=2,pp=2", "dp=2/1,pp=2,tp=2": every axis wider than 1, "dp=1" when there is none. Parses back.
std::string to_string(const MeshSpec& mesh);

/// Reads --mesh. Axes that are not named are 1; "dp=2/1" alone implies pp=2. Error: another text, widths that do not
/// fit.
Expected<MeshSpec> parse_mesh(std::string_view text);

/// The mesh of a config's [mesh] section. Error: as parse_mesh.
Expected<MeshSpec> mesh_of(const MeshConfig& mesh);
/// The [mesh] section of a mesh, so that the effective config has the mesh that was run.
MeshConfig mesh_config(const MeshSpec& mesh);

/// Error: this model cannot run on this mesh; names the numbers and the nearest mesh that works.
Status check_mesh(const MeshSpec& mesh, const LmConfig& config);

/// Places that share a key-value head: tp / kv_heads where that is a whole number above 1, else 1.
std::int64_t kv_replicas(const MeshSpec& mesh, const LmConfig& config);
/// The model axes of each stage's mesh: {tp}, or, where places share a key-value head, {tp: kv_heads, tp.q: those
/// places}: on tp.q a single head lies whole at each place (grouped-query attention on many places).
std::vector<Axis> model_axes(const MeshSpec& mesh, const LmConfig& config);

/// Says what is legal but wasteful (fewer microbatches than stages, ...), for people; empty if nothing is.
std::string mesh_warning(const MeshSpec& mesh, const LmConfig& config);

/// Units that pipeline stages are made of: embedding, layers, head.
inline std::int64_t pipeline_units(const ModelConfig& model) { return model.layers + 2; }

}  // namespace troupe::lm
