#include "runtime/compile/model_stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace troupe::runtime {

Expected<std::vector<StageRange>> join_models(const Graph& graph, const CompileOptions& options,
                                              std::vector<Mesh>& stages) {
  const auto& names = graph.models();
  if (!options.stages.empty())
    return invalid("CompileOptions has stages and models: the stages of a graph are the one or the other");
  std::vector<StageRange> ranges;
  Rank ranks = 0;
  for (const ModelStages& of : options.models) {
    const std::string where = "CompileOptions::models, '" + of.model + "'";
    const auto model = static_cast<std::int32_t>(std::find(names.begin(), names.end(), of.model) - names.begin());
    if (model == std::ssize(names))
      return invalid(fmt::format("{}: the graph has no such model; it has {}", where, fmt::join(names, ", ")));
    if (std::any_of(ranges.begin(), ranges.end(), [&](const StageRange& range) { return range.model == model; }))
      return invalid(where + " is there twice");
    if (of.stages.empty()) return invalid(where + " has no stages: give a mesh or more, such as stage_meshes({1})");
    TROUPE_TRY(check_stage_meshes(of.stages).in(where));
    ranges.push_back({model, static_cast<std::int32_t>(stages.size()), static_cast<std::int32_t>(of.stages.size())});
    const Rank first = ranks;
    for (Mesh mesh : of.stages) {
      std::vector<Rank> moved = mesh.ranks;
      for (Rank& rank : moved) rank += first;
      ranks += static_cast<Rank>(moved.size());
      mesh.ranks = std::move(moved);
      stages.push_back(std::move(mesh));
    }
  }
  for (std::int32_t model = 0; model < std::ssize(names); ++model) {
    bool has_unit = false;
    for (std::int32_t u = 0; u < std::ssize(graph.units()); ++u) has_unit |= graph.model_of(u) == model;
    if (!has_unit)
      return invalid("model '" + names[static_cast<std::size_t>(model)] +
                     "' of the graph has no unit: name one, or an op, behind it");
    if (std::none_of(ranges.begin(), ranges.end(), [&](const StageRange& range) { return range.model == model; }))
      return invalid("CompileOptions::models has no stages for model '" + names[static_cast<std::size_t>(model)] +
                     "' of the graph");
  }
  return ranges;
}

}  // namespace troupe::runtime
