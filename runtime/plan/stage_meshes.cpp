#include "runtime/plan/stage_meshes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

std::string to_string(RankOrder order) {
  return order == RankOrder::stage_by_stage ? "stage by stage" : "replica by replica";
}

namespace {

/// By stage and dp coordinate: how many replicas of stages have lower ranks.
std::vector<std::vector<std::int64_t>> replicas_before(const std::vector<std::int64_t>& dp, RankOrder order) {
  std::vector<std::vector<std::int64_t>> before(dp.size());
  std::int64_t next = 0;
  if (order == RankOrder::stage_by_stage) {
    for (std::size_t s = 0; s < dp.size(); ++s)
      for (std::int64_t d = 0; d < dp[s]; ++d) before[s].push_back(next++);
    return before;
  }
  const std::int64_t widest = dp.empty() ? 0 : *std::max_element(dp.begin(), dp.end());
  for (std::int64_t d = 0; d < widest; ++d)
    for (std::size_t s = 0; s < dp.size(); ++s)
      if (d < dp[s]) before[s].push_back(next++);
  return before;
}

}  // namespace

std::vector<Mesh> stage_meshes(const std::vector<std::int64_t>& dp, const std::vector<Axis>& model, RankOrder order) {
  std::int64_t parts = 1;
  for (const Axis& axis : model) parts *= axis.size;
  const auto before = replicas_before(dp, order);
  std::vector<Mesh> meshes;
  for (std::size_t s = 0; s < dp.size(); ++s) {
    Mesh m;
    m.axes = model;
    m.axes.push_back({"dp", dp[s]});
    for (std::int64_t t = 0; t < parts; ++t)
      for (const std::int64_t replicas : before[s]) m.ranks.edit().push_back(static_cast<Rank>(replicas * parts + t));
    meshes.push_back(std::move(m));
  }
  return meshes;
}

std::vector<Mesh> stage_meshes(const std::vector<std::int64_t>& dp, std::int64_t tp) {
  return stage_meshes(dp, {{"tp", tp}});
}

bool same_model_axes(const Mesh& one, const Mesh& other) {
  return std::equal(
      one.axes.begin(), one.axes.end(), other.axes.begin(), other.axes.end(),
      [](const Axis& a, const Axis& b) { return a.name == b.name && (a.name == "dp" || a.size == b.size); });
}

Status check_mesh(const Mesh& mesh, const std::string& where) {
  std::set<std::string> axes;
  std::int64_t places = 1;
  for (const auto& a : mesh.axes) {
    if (a.size < 1 || a.size > count_max)
      return invalid(fmt::format("{}has an axis of size {}; every axis has at least 1 place", where, a.size));
    if (!axes.insert(a.name).second) return invalid(where + "has two axes called '" + a.name + "'");
    places = std::min(places * a.size, bytes_max >> 20);
  }
  if (places != mesh.size())
    return invalid(fmt::format("{}has {} ranks; its axes need {}", where, mesh.size(), places));
  return {};
}

Status check_stage_meshes(const std::vector<Mesh>& stages) {
  std::map<Rank, std::size_t> stage_of;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::string where = fmt::format("stage {}: mesh {} ", s, to_string(stages[s]));
    TROUPE_TRY(check_mesh(stages[s], where));
    const auto &axes = stages[s].axes, &first = stages[0].axes;
    const auto same_name = [](const Axis& a, const Axis& b) { return a.name == b.name; };
    if (!std::equal(axes.begin(), axes.end(), first.begin(), first.end(), same_name))
      return invalid(where + "has other axes than stage 0, " + to_string(stages[0]) +
                     ": all stages have the same axes in one order, of size 1 where they divide nothing");
    if (const int dp = dp_axis(stages[s]); dp >= 0 && dp + 1 != static_cast<int>(axes.size()))
      return invalid(where + "has an axis behind dp: dp is the innermost axis, see stage_meshes");
    for (Rank r : stages[s].ranks)
      if (const auto [it, fresh] = stage_of.try_emplace(r, s); !fresh)
        return invalid(
            fmt::format("{}has rank {}, which stage {} has too; a rank has one place", where, r, it->second));
  }
  Rank expected = 0;
  for (const auto& [rank, s] : stage_of)
    if (rank != expected++)
      return invalid(fmt::format("no stage has rank {}, and stage {} has rank {}: the {} ranks must be 0 to {}",
                                 expected - 1, s, rank, stage_of.size(), stage_of.size() - 1));
  return {};
}

}  // namespace troupe::runtime
