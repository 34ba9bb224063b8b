#include "runtime/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "devices/base/check.h"
#include "runtime/plan/stage_meshes.h"

namespace troupe::runtime {

const char* to_string(PlanChannel::Kind kind) {
  switch (kind) {
    case PlanChannel::Kind::activation: return "activation";
    case PlanChannel::Kind::stash: return "stash";
    case PlanChannel::Kind::boundary: return "boundary";
    case PlanChannel::Kind::gradient: return "gradient";
    case PlanChannel::Kind::reduced: return "reduced";
    case PlanChannel::Kind::parameter: return "parameter";
    case PlanChannel::Kind::go: return "go";
    case PlanChannel::Kind::commit: return "commit";
    case PlanChannel::Kind::feed: return "feed";
    case PlanChannel::Kind::delayed: return "delayed";
    case PlanChannel::Kind::kept: return "kept";
    case PlanChannel::Kind::rounded: return "rounded";
    case PlanChannel::Kind::gathered: return "gathered";
    case PlanChannel::Kind::turn: return "turn";
    case PlanChannel::Kind::snapshot: return "snapshot";
  }
  return "?";
}

bool PlanActor::reports(const std::string& report) const {
  return std::any_of(ops.begin(), ops.end(), [&](const PlanOp& o) {
    return kind == Kind::user ? lists_report(o.attrs, report) : o.op.empty() && o.name == report;
  });
}

std::int32_t Plan::workers() const {
  std::int32_t n = 0;
  for (std::int32_t s = 0; s < stages; ++s)
    for (Rank r : meshes[s].ranks) n = std::max(n, r + 1);
  return n;
}

std::int32_t Plan::stage_of(Rank rank) const {
  for (std::int32_t s = 0; s < stages; ++s)
    if (meshes[s].guess(rank) >= 0) return s;
  for (std::int32_t s = 0; s < stages; ++s)
    if (meshes[s].find(rank) >= 0) return s;
  return -1;
}

std::int32_t Plan::program(const std::string& name) const {
  const auto it = std::find_if(programs.begin(), programs.end(), [&](const PlanProgram& p) { return p.name == name; });
  return it == programs.end() ? -1 : static_cast<std::int32_t>(it - programs.begin());
}

bool Plan::trains() const {
  return std::any_of(programs.begin(), programs.end(), [](const PlanProgram& p) { return p.optimizer.has_value(); });
}

std::int32_t Plan::step_program() const {
  const auto it = std::find_if(programs.begin(), programs.end(), [](const PlanProgram& p) { return p.steps; });
  ASSERT(it != programs.end(), programs.size());
  return static_cast<std::int32_t>(it - programs.begin());
}

std::vector<std::int32_t> Plan::training() const {
  std::vector<std::int32_t> out;
  for (std::int32_t p = 0; p < std::ssize(programs); ++p)
    if (programs[static_cast<std::size_t>(p)].optimizer) out.push_back(p);
  return out;
}

bool Plan::has_one_step_program() const {
  return std::count_if(programs.begin(), programs.end(), [](const PlanProgram& p) { return p.steps; }) == 1;
}

std::int32_t Plan::snapshot_slots() const {
  for (const auto& role : roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::snapshot) return c.slots;
  return 0;
}

bool Plan::keeps_version() const {
  for (const auto& role : roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::parameter && c.slots > 1) return true;
  return false;
}

bool Plan::on_mesh(std::int32_t mesh, std::int32_t stage) const {
  // The mesh has all places of a stage or none: the first one says which.
  return mesh < stages ? mesh == stage : meshes[mesh].find(meshes[stage].ranks[0]) >= 0;
}

std::vector<std::int32_t> Plan::stages_on(std::int32_t mesh) const {
  if (mesh < stages) return {mesh};
  std::vector<std::int32_t> out;
  for (std::int32_t s = 0; s < stages; ++s)
    if (on_mesh(mesh, s)) out.push_back(s);
  return out;
}

bool Plan::runs_on(std::int32_t program, std::int32_t stage) const {
  if (stage >= std::ssize(roles)) return false;
  const auto& actors = roles[static_cast<std::size_t>(stage)].actors;
  return std::any_of(actors.begin(), actors.end(),
                     [&](const PlanActor& a) { return a.program == program && a.rate == Rate::microbatch; });
}

bool Plan::shared(const PlanActor& actor) const {
  if (actor.kind != PlanActor::Kind::segment) return false;
  for (const auto& op : actor.ops)
    for (const auto* side : {&op.in, &op.out})
      for (const auto& o : *side)
        if (tensors[o.tensor].rate == Rate::microbatch && tensors[o.tensor].mesh >= stages) return true;
  return false;
}

std::int64_t Plan::dp_index(Rank rank) const {
  const Mesh& mesh = meshes[stage_of(rank)];
  const int axis = dp_axis(mesh);
  return axis < 0 ? 0 : mesh.coord(mesh.find(rank))[axis];
}

bool Plan::leads(Rank rank) const {
  const Mesh& mesh = meshes[stage_of(rank)];
  const auto coord = mesh.coord(mesh.find(rank));
  for (std::size_t a = 0; a < coord.size(); ++a)
    if (static_cast<int>(a) != dp_axis(mesh) && coord[a] != 0) return false;
  return true;
}

MicrobatchOwners Plan::owners_of(const PlanExchange& x) const {
  return owners_of(x.program, stages_on(tensors[reduces(x) ? x.moves[0].from : x.moves[0].to].mesh).front());
}

bool Plan::ordered() const {
  // Programs that do not train take no turns: their microbatches wait for no later one.
  bool alike = trains() && has_one_step_program() && pipeline.ordered() && meshes[0].axis(stages_axis) < 0;
  for (std::int32_t s = 1; s < stages; ++s) alike &= dp_width(s) == dp_width(0);
  return alike;
}

Layout Plan::layout(std::int32_t tensor, std::int64_t dp_index) const {
  const PlanTensor& t = tensors[tensor];
  const Mesh& mesh = meshes[t.mesh];
  const int axis = dp_axis(mesh);
  if (t.rate != Rate::microbatch || axis < 0) return {t.shape, t.dtype, mesh, t.sbp};
  NdSbp sbp = t.sbp;
  sbp.erase(sbp.begin() + axis);
  return {t.shape, t.dtype, mesh.slice(axis, dp_index), sbp};
}

Extent Plan::extent(std::int32_t tensor, Rank rank) const {
  const PlanTensor& t = tensors[tensor];
  const Mesh& mesh = meshes[t.mesh];
  const std::int64_t position = mesh.find(rank);
  ASSERT(position >= 0, t.name, rank);
  const int axis = dp_axis(mesh);
  const Layout l = layout(tensor, t.rate != Rate::microbatch || axis < 0 ? 0 : mesh.coord(position)[axis]);
  return l.extent_at(l.mesh.find(rank));
}

Status check_owners(const std::vector<std::vector<std::int32_t>>& owners, const Plan& plan) {
  if (owners.empty()) return {};
  if (owners.size() != static_cast<std::size_t>(plan.stages))
    return invalid(
        fmt::format("there are owners of microbatches for {} stages; the plan has {}", owners.size(), plan.stages));
  if (!plan.has_one_step_program())
    return invalid("there are owners of microbatches, and several programs train: owners are those of one");
  if (plan.programs[plan.step_program()].blocks > 1)
    return invalid("there are owners of microbatches, and program '" + plan.programs[plan.step_program()].name +
                   "' has a delay over steps on a stage of several dp coordinates, each of which runs a block of them: "
                   "leave out CompileOptions::owners");
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    const std::string where = fmt::format("stage {}: ", s);
    if (owners[s].size() != static_cast<std::size_t>(plan.step_spec().microbatches))
      return invalid(fmt::format("{}{} microbatches have owners, and a step has {}", where, owners[s].size(),
                                 plan.step_spec().microbatches));
    std::set<std::int32_t> all(owners[s].begin(), owners[s].end());
    if (*all.begin() < 0 || *all.rbegin() >= plan.dp_width(s) ||
        static_cast<std::int64_t>(all.size()) != plan.dp_width(s))
      return invalid(
          fmt::format("{}the owners of microbatches are not all of the {} dp coordinates: each runs at least one",
                      where, plan.dp_width(s)));
  }
  // The parts of a shared unit run the same microbatch together.
  for (std::size_t m = static_cast<std::size_t>(plan.stages); m < plan.meshes.size(); ++m) {
    if (plan.meshes[m].axis_size(stages_axis) == 1) continue;
    const auto sharing = plan.stages_on(static_cast<std::int32_t>(m));
    for (const std::int32_t s : sharing)
      if (owners[s] != owners[sharing.front()])
        return invalid(fmt::format("stages {} and {} share a unit, and the owners of their microbatches differ",
                                   sharing.front(), s));
  }
  return {};
}

}  // namespace troupe::runtime
