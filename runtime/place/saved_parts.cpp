#include "runtime/place/saved_parts.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "checkpoint/cut.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

SavedParts::SavedParts(const Plan& plan) : plan_(plan), trained_(trained_params(plan)) {
  std::vector<std::int32_t> order(plan.params.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return plan.params[a].name < plan.params[b].name; });
  writer_.resize(plan.params.size());
  // bytes that a place of dp coordinate 0 writes: along dp all write equally much
  std::map<Rank, std::int64_t> load;
  for (auto p : order) {
    const PlanTensor& t = plan.tensors[plan.params[p].tensor];
    const Mesh& mesh = plan.meshes[t.mesh];
    const int dp = dp_axis(mesh);
    std::vector<bool> free(mesh.axes.size(), false);
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) free[a] = static_cast<int>(a) != dp && t.sbp[a].is_broadcast();
    const auto candidates = mesh.group(0, free);
    const auto least = *std::min_element(candidates.begin(), candidates.end(),
                                         [&](auto a, auto b) { return load[mesh.ranks[a]] < load[mesh.ranks[b]]; });
    const auto chosen = mesh.coord(least);
    auto& writer = writer_[static_cast<std::size_t>(p)];
    writer.assign(mesh.axes.size(), -1);
    for (std::size_t a = 0; a < mesh.axes.size(); ++a)
      if (free[a]) writer[a] = chosen[a];
    // All coordinates of the axes that split the tensor write equally much.
    std::vector<bool> split(mesh.axes.size(), false);
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) split[a] = static_cast<int>(a) != dp && !free[a];
    const Layout layout{t.shape, t.dtype, mesh, t.sbp};
    for (auto position : mesh.group(least, split)) load[mesh.ranks[position]] += layout.bytes_at(position);
  }
}

std::optional<SavedPart> SavedParts::of(Rank rank, std::int32_t param) const {
  const PlanParam& p = plan_.params[static_cast<std::size_t>(param)];
  const Mesh& mesh = plan_.meshes[plan_.tensors[p.tensor].mesh];
  const auto position = mesh.find(rank);
  if (position < 0) return {};
  const auto coord = mesh.coord(position);
  const auto& writer = writer_[static_cast<std::size_t>(param)];
  bool writes = true;
  for (std::size_t a = 0; a < coord.size(); ++a) writes &= writer[a] < 0 || writer[a] == coord[a];
  if (!writes) return {};
  Extent part = plan_.extent(p.share >= 0 ? p.share : p.tensor, rank);
  if (const int dp = dp_axis(mesh); p.share < 0 && dp >= 0) {
    if (part.dims.empty()) writes = coord[dp] == 0;
    else part.dims[0] = split_range(part.dims[0], mesh.axes[dp].size, coord[dp]);
  }
  if (!writes || part.empty()) return {};
  return SavedPart{param, std::move(part), trained(param)};
}

std::vector<SavedPart> SavedParts::of(Rank rank, const PlanActor& snapshot) const {
  std::vector<SavedPart> out;
  for (const auto& ref : snapshot.params)
    if (auto part = of(rank, ref.param)) out.push_back(*std::move(part));
  return out;
}

std::vector<checkpoint::ShardEntry> SavedParts::entries(Rank rank, const PlanActor& snapshot) const {
  std::vector<checkpoint::ShardEntry> out;
  for (const auto& part : of(rank, snapshot)) {
    const PlanParam& p = plan_.params[part.param];
    const PlanTensor& t = plan_.tensors[p.tensor];
    for (auto kind : checkpoint::tensor_kinds) {
      const bool moment = kind != checkpoint::TensorKind::parameter;
      if (moment && !part.trained) continue;
      const DType dtype = moment ? DType::f32 : t.dtype;
      for (auto& piece : checkpoint::cut_rows(part.extent, size_of(dtype)))
        out.push_back({p.name, kind, dtype, t.shape, std::move(piece), 0, !p.kept});
    }
  }
  return out;
}

}  // namespace troupe::runtime
