// The stages of each model of a graph, put one behind the other (CompileOptions::models). Internal to the compiler.
#pragma once

#include "runtime/compile/compile.h"

namespace troupe::runtime {

/// Stages in a row that units are cut into: those of one model, or of all.
struct StageRange {
  std::int32_t model = -1;  ///< index into Graph::models; -1: all
  std::int32_t first = 0, stages = 1;
  /// Behind the last virtual stage. A pipeline with several chunks a stage has one range.
  std::int32_t virtual_end(const Plan& plan) const { return first + stages * plan.pipeline.chunks; }
  bool has(const Graph& graph, std::size_t unit) const {
    return model < 0 || graph.model_of(static_cast<std::int32_t>(unit)) == model;
  }
};

/// The ranges of CompileOptions::models; their meshes are appended to `stages`, with ranks numbered through. Error:
/// models that are not those of the graph, a model without units, or without stages; meshes that cannot be.
Expected<std::vector<StageRange>> join_models(const Graph& graph, const CompileOptions& options,
                                              std::vector<Mesh>& stages);

}  // namespace troupe::runtime
