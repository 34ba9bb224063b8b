// The memory of a place: one pool, one arena, an offset for everything.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "devices/base/check.h"
#include "runtime/plan/local_passes.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t page = 4096;

std::int64_t& purpose(MemoryUse& m, PlanChannel::Kind kind) {
  using Kind = PlanChannel::Kind;
  switch (kind) {
    case Kind::activation: return m.activations;
    case Kind::stash: return m.stash;
    case Kind::boundary: return m.boundary;
    case Kind::gradient: case Kind::reduced: case Kind::rounded: return m.gradients;
    case Kind::parameter: return m.parameters;
    case Kind::gathered: return m.gathered;
    case Kind::go: case Kind::commit: case Kind::feed: case Kind::turn: return m.control;
    case Kind::snapshot: return m.arena;
  }
  return m.control;
}

}  // namespace

void LocalMemory::run() {
  std::int64_t at = 0;
  auto take = [&](std::int64_t bytes, std::int64_t alignment = tensor_alignment) {
    at = aligned(at, alignment);
    const auto here = at;
    at += bytes;
    return here;
  };
  MemoryUse& m = local_.memory;
  struct Shared { std::int64_t bytes = 0, offset = 0; };
  std::map<std::pair<std::int32_t, std::int32_t>, Shared> buffers;   // of rings: as large as their largest occupant
  for (const auto& c : local_.channels) {
    const PlanChannel& pc = role_->channels[c.channel];
    if (pc.ring < 0) continue;
    auto& shared = buffers[{pc.ring, pc.buffer}];
    shared.bytes = std::max(shared.bytes, pc.buffer_offset + c.slot_bytes);
  }
  std::set<std::pair<std::int32_t, std::int32_t>> placed;
  for (auto& c : local_.channels) {
    const PlanChannel& pc = role_->channels[c.channel];
    std::int64_t bytes = c.slot_bytes * c.slots;
    if (pc.ring >= 0) {
      auto& shared = buffers.at({pc.ring, pc.buffer});
      bytes = placed.insert({pc.ring, pc.buffer}).second ? shared.bytes : 0;
      if (bytes > 0) shared.offset = take(bytes, page);
      c.offset = shared.offset + pc.buffer_offset;
    } else if (pc.kind == PlanChannel::Kind::snapshot) {
      c.offset = local_.arena_bytes;
      local_.arena_bytes += bytes;
    } else {
      c.offset = take(bytes, bytes >= page ? page : tensor_alignment);
    }
    purpose(m, pc.kind) += bytes;
  }
  local_.moments_offset = take(0, page);
  if (plan_.trains)
    for (const auto& a : local_.actors)
      if (plan_actor(a).kind == PlanActor::Kind::update) {
        std::int64_t bytes = 0;
        moments_offsets(plan_, rank_, plan_actor(a), bytes);
        m.optimizer += bytes;
      }
  take(m.optimizer);
  for (const auto& a : local_.actors)
    if (plan_actor(a).stream == "compute") local_.scratch_bytes = std::max(local_.scratch_bytes, plan_actor(a).scratch_bytes);
  m.scratch = local_.scratch_bytes;
  local_.scratch_offset = take(m.scratch, page);
  // As large as the largest exchange of a buffer needs.
  std::map<std::pair<std::int32_t, std::int32_t>, Shared> landing;
  for (const auto& a : local_.actors)
    if (const PlanActor& pa = plan_actor(a); pa.staging_ring >= 0) {
      auto& bytes = landing[{pa.staging_ring, pa.staging_buffer}].bytes;
      bytes = std::max(bytes, a.staging_bytes);
    }
  for (auto& [buffer, shared] : landing) {
    shared.offset = take(shared.bytes);
    m.staging += shared.bytes;
  }
  for (auto& a : local_.actors) {
    if (const PlanActor& pa = plan_actor(a); pa.staging_ring >= 0) {
      a.staging_offset = landing.at({pa.staging_ring, pa.staging_buffer}).offset;
    } else {
      a.staging_offset = take(a.staging_bytes * a.staging_slots);
      m.staging += a.staging_bytes * a.staging_slots;
    }
    a.op_state_offset = take(plan_actor(a).state_bytes);
    m.cache += plan_actor(a).state_bytes;
  }
  local_.pool_bytes = aligned(at, page);
}

std::vector<std::int64_t> moments_offsets(const Plan& plan, Rank rank, const PlanActor& update, std::int64_t& total) {
  std::vector<std::int64_t> offsets;
  for (const auto& ref : update.params) {
    offsets.push_back(total);
    const PlanParam& p = plan.params[ref.param];
    total += aligned(kernels::AdamW::state_values() * plan.extent(p.share >= 0 ? p.share : p.tensor, rank).elements() * 4);
  }
  return offsets;
}

}  // namespace troupe::runtime
