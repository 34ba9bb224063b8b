#include "runtime/plan.h"

#include <algorithm>

#include "devices/base/check.h"
#include "placement/tree.h"

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
    case PlanChannel::Kind::part: return "part";
    case PlanChannel::Kind::sum: return "sum";
    case PlanChannel::Kind::gathered: return "gathered";
    case PlanChannel::Kind::turn: return "turn";
    case PlanChannel::Kind::snapshot: return "snapshot";
  }
  return "?";
}

const char* to_string(PlanActor::Kind kind) {
  switch (kind) {
    case PlanActor::Kind::segment: return "segment";
    case PlanActor::Kind::user: return "user";
    case PlanActor::Kind::exchange: return "exchange";
    case PlanActor::Kind::norm: return "norm";
    case PlanActor::Kind::update: return "update";
    case PlanActor::Kind::digest: return "digest";
    case PlanActor::Kind::sum: return "sum";
    case PlanActor::Kind::snapshot: return "snapshot";
    case PlanActor::Kind::writer: return "writer";
  }
  return "?";
}

const char* stream_of(PlanActor::Kind kind) {
  switch (kind) {
    case PlanActor::Kind::exchange: case PlanActor::Kind::sum: return "comm";
    case PlanActor::Kind::user: return "host";
    case PlanActor::Kind::snapshot: return "snapshot";
    case PlanActor::Kind::writer: return "disk";
    default: return "compute";
  }
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
  const auto it = std::find(programs.begin(), programs.end(), name);
  return it == programs.end() ? -1 : static_cast<std::int32_t>(it - programs.begin());
}

std::int32_t Plan::snapshot_slots() const {
  for (const auto& role : roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::snapshot) return c.slots;
  return 0;
}

std::vector<std::int32_t> Plan::stages_on(std::int32_t mesh) const {
  if (mesh < stages) return {mesh};
  std::vector<std::int32_t> out;
  for (std::int32_t s = 0; s < stages; ++s)
    if (meshes[mesh].find(meshes[s].ranks[0]) >= 0) out.push_back(s);
  return out;
}

bool Plan::shared(const PlanActor& actor) const {
  if (actor.kind != PlanActor::Kind::segment) return false;
  for (const auto& op : actor.ops)
    for (const auto* side : {&op.in, &op.out})
      for (const auto& o : *side)
        if (tensors[o.tensor].rate == Rate::microbatch && tensors[o.tensor].mesh >= stages) return true;
  return false;
}

std::int32_t Plan::lanes_for(std::int32_t program) const {
  const ProgramSpec& spec = program_specs[program];
  return spec.stateful ? 1 : static_cast<std::int32_t>(std::min<std::int64_t>(lanes, spec.microbatches));
}

std::int64_t Plan::dp_index(Rank rank) const {
  const Mesh& mesh = meshes[stage_of(rank)];
  const int axis = dp_axis(mesh);
  return axis < 0 ? 0 : mesh.coord(mesh.find(rank))[axis];
}

std::vector<std::int32_t> Plan::owned_lanes(std::int32_t program, std::int32_t stage, std::int64_t dp_index) const {
  const auto width = static_cast<std::int32_t>(dp_width(stage)), lanes = lanes_for(program);
  const Term run = interleaved ? Term{static_cast<std::int32_t>(dp_index), lanes} : lanes_of(width, dp_index, lanes);
  std::vector<std::int32_t> out;
  for (auto lane = run.lo; lane < run.hi; lane += interleaved ? width : 1) out.push_back(lane);
  return out;
}

std::int64_t Plan::lane_owner(std::int32_t program, std::int32_t stage, std::int32_t lane) const {
  return interleaved ? lane % dp_width(stage) : owner_of(lane, dp_width(stage), lanes_for(program));
}

std::int64_t Plan::owner(std::int32_t program, std::int32_t stage, std::int64_t microbatch) const {
  return lane_owner(program, stage, lane_of(microbatch, lanes_for(program), program_specs[program].microbatches));
}

std::int32_t Plan::acts(Rate rate, std::int32_t program, std::int32_t stage, std::int64_t dp_index) const {
  switch (rate) {
    case Rate::step: return 1;
    case Rate::microbatch: return static_cast<std::int32_t>(microbatches(program, stage, dp_index).size());
    case Rate::lane: return static_cast<std::int32_t>(owned_lanes(program, stage, dp_index).size());
    // Coordinate 0 has most of everything.
    case Rate::lane_round: return acts(Rate::lane, program, stage, 0);
    case Rate::round:
      return program_specs[program].sequential ? static_cast<std::int32_t>(program_specs[program].microbatches)
                                               : acts(Rate::microbatch, program, stage, 0);
  }
  return 1;
}

bool Plan::runs_in_round(std::int32_t program, std::int32_t stage, std::int64_t dp_index, std::int32_t round) const {
  return program_specs[program].sequential ? owner(program, stage, round) == dp_index
                                           : round < acts(Rate::microbatch, program, stage, dp_index);
}

std::int64_t Plan::acts_of(const PlanExchange& x) const {
  return x.rate == Rate::microbatch ? program_specs[x.program].microbatches : acts(x.rate, x.program, round_stage(x), 0);
}

std::int32_t Plan::round_stage(const PlanExchange& x) const {
  return stages_on(tensors[x.rate == Rate::round ? x.moves[0].to : x.moves[0].from].mesh).front();
}

std::vector<std::int32_t> Plan::microbatches(std::int32_t program, std::int32_t stage, std::int64_t dp_index) const {
  std::vector<std::int32_t> out;
  for (auto lane : owned_lanes(program, stage, dp_index)) {
    const Range r = microbatches_of(lane, lanes_for(program), program_specs[program].microbatches);
    for (auto m = r.lo; m < r.hi; ++m) out.push_back(static_cast<std::int32_t>(m));
  }
  std::int64_t widest = 0;
  for (std::int32_t s = 0; s < stages; ++s) widest = std::max(widest, dp_width(s));
  if (interleaved || widest == dp_width(stage) || program_specs[program].sequential) return out;
  std::vector<std::pair<std::int64_t, std::int32_t>> turns;   // (how many the widest stage's owner runs before it, itself)
  for (auto m : out) {
    const auto owner = owner_of(lane_of(m, lanes_for(program), program_specs[program].microbatches), widest, lanes_for(program));
    const auto first = microbatches_of(lanes_of(widest, owner, lanes_for(program)).lo, lanes_for(program), program_specs[program].microbatches).lo;
    turns.push_back({m - first, m});
  }
  std::sort(turns.begin(), turns.end());
  std::transform(turns.begin(), turns.end(), out.begin(), [](const auto& t) { return t.second; });
  return out;
}

bool Plan::ordered() const {
  // A program that does not train may be sequential: its first microbatch waits for no later one.
  bool alike = trains && pipeline.ordered() && meshes[0].axis("stages") < 0;
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

LaneSchedule Plan::lane_schedule(std::int32_t stage, std::int64_t dp_index) const {
  return troupe::lane_schedule(microbatches(0, stage, dp_index), lanes_for(0), program_specs[0].microbatches);
}

std::int32_t Plan::grad_copies(std::int32_t stage, std::int64_t dp_index) const {
  if (interleaved && dp_width(stage) > 1) return fold_schedule(lanes_for(0)).copies;
  return std::max(1, lane_schedule(stage, dp_index).copies);
}

std::int32_t Plan::copies(const PlanRole& role, const PlanChannel& c, std::int64_t dp_index) const {
  if (c.sums_lanes()) return grad_copies(role.stage, dp_index);
  switch (c.kind) {
    case PlanChannel::Kind::part:
      return static_cast<std::int32_t>(dp_width(round_stage(exchanges[role.actors[c.writer].exchange])));
    case PlanChannel::Kind::sum: return fold_schedule(lanes_for(0)).copies;
    default: return 1;
  }
}

}  // namespace troupe::runtime
