// The memory of a place: one pool on its device, one arena (host memory for snapshots), host memory for copies where
// its job recovers from those; an offset for everything. A pool begins with the state area: parameters with their
// moments, and what ops keep from act to act.
#include <algorithm>
#include <utility>

#include "actors/version_word.h"
#include "runtime/place/passes.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t page = 4096;

/// What fills pages begins at one.
std::int64_t alignment_of(std::int64_t bytes) { return bytes >= page ? page : tensor_alignment; }

std::int64_t& purpose(MemoryUse& m, PlanChannel::Kind kind) {
  using Kind = PlanChannel::Kind;
  switch (kind) {
    case Kind::activation:
    case Kind::delayed:
    case Kind::kept: return m.activations;
    case Kind::stash: return m.stash;
    case Kind::boundary: return m.boundary;
    case Kind::gradient:
    case Kind::reduced:
    case Kind::rounded: return m.gradients;
    case Kind::parameter: return m.parameters;
    case Kind::gathered: return m.gathered;
    case Kind::go:
    case Kind::commit:
    case Kind::feed:
    case Kind::turn: return m.control;
    case Kind::snapshot: return m.arena;
  }
  return m.control;
}

}  // namespace

void LocalMemory::run() {
  place_state();
  place_rings();
  place_channels();
  if (plan_.keeps_copies()) place_copies();
  MemoryUse& m = local_.memory;
  for (const auto& a : local_.actors)
    if (plan_actor(a).stream == "compute")
      local_.scratch_bytes = std::max(local_.scratch_bytes, plan_actor(a).scratch_bytes);
  m.scratch = local_.scratch_bytes;
  local_.scratch_offset = take(m.scratch, page);
  place_staging();
  place_areas();
  local_.pool_bytes = aligned(at_, page);
  find_device_channels();
}

void LocalMemory::find_device_channels() {
  using Kind = PlanActor::Kind;
  const auto computes = [&](std::int32_t actor) {
    const PlanActor& a = role_->actors[static_cast<std::size_t>(actor)];
    return (a.kind == Kind::segment || a.kind == Kind::norm || a.kind == Kind::update || a.kind == Kind::digest) &&
           !a.gathers();
  };
  const auto reads_there = [&](std::int32_t actor) {
    const Kind kind = role_->actors[static_cast<std::size_t>(actor)].kind;
    return computes(actor) || kind == Kind::snapshot || kind == Kind::copy;
  };
  for (auto& c : local_.channels) {
    const PlanChannel& pc = role_->channels[c.channel];
    // Versions are kept in memory that outlives a process, which that of a device does not.
    const bool kept = pc.kind == PlanChannel::Kind::parameter && plan_.keeps_version() && !plan_.keeps_copies();
    c.of_device = pc.writer >= 0 && pc.kind != PlanChannel::Kind::snapshot && !kept && computes(pc.writer) &&
                  std::all_of(pc.readers.begin(), pc.readers.end(),
                              [&](const PlanReader& r) { return reads_there(r.actor); });
  }
}

std::int64_t LocalMemory::take(std::int64_t bytes, std::int64_t alignment) {
  at_ = aligned(at_, alignment);
  const auto here = at_;
  at_ += bytes;
  return here;
}

void LocalMemory::place_state() {
  MemoryUse& m = local_.memory;
  for (auto& c : local_.channels) {
    if (role_->channels[c.channel].kind != PlanChannel::Kind::parameter) continue;
    m.parameters += c.slot_bytes * c.slots;
    c.moments_offset = aligned(c.slot_bytes);
    std::int64_t end = c.moments_offset;
    if (plan_.trains()) moments_offsets(plan_, rank_, role_->actors[role_->channels[c.channel].writer], end);
    m.optimizer += (end - c.moments_offset) * c.slots;
    if (c.slots > 1) {
      c.version_offset = aligned(end);
      end = c.version_offset + actors::VersionWord::bytes;
    }
    // Two slots in pages of their own: a version can be protected alone.
    const std::int64_t alignment = c.slots > 1 ? page : alignment_of(end);
    c.slot_bytes = aligned(end, alignment);
    c.offset = take(c.slot_bytes * c.slots, alignment);
  }
  if (plan_.keeps_version()) take(0, page);
  for (auto& a : local_.actors) {
    a.op_state_offset = take(plan_actor(a).op_state_bytes);
    m.op_state += plan_actor(a).op_state_bytes;
  }
  local_.state_area_bytes = take(0, page);
}

/// One page at least: a place keeps copies even where it has nothing to copy.
void LocalMemory::place_copies() {
  for (auto& a : local_.actors) {
    if (a.copied.empty()) continue;
    std::int64_t end = 0;
    for (CopiedPart& part : a.copied) {
      part.offset = std::exchange(
          end, end + aligned(part.extent.elements() * item_bytes(plan_, plan_.params[part.param], part.part)));
    }
    a.copies.offset = local_.copies_bytes;
    a.copies.version_offset = end;
    a.copies.slot_bytes = aligned(end + actors::VersionWord::bytes, page);
    local_.copies_bytes += copy_slots * a.copies.slot_bytes;
  }
  local_.copies_bytes = std::max(local_.copies_bytes, page);
  local_.memory.copies = local_.copies_bytes;
}

void LocalMemory::place_rings() {
  struct Buffer {
    std::int64_t bytes = 0, offset = -1;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Buffer> buffers;  // as large as their largest occupant
  for (const auto& c : local_.channels)
    if (const PlanChannel& pc = role_->channels[c.channel]; pc.ring >= 0) {
      auto& bytes = buffers[{pc.ring, pc.buffer}].bytes;
      bytes = std::max(bytes, pc.buffer_offset + c.slot_bytes);
    }
  for (auto& c : local_.channels) {
    const PlanChannel& pc = role_->channels[c.channel];
    if (pc.ring < 0) continue;
    auto& buffer = buffers.at({pc.ring, pc.buffer});
    if (buffer.offset < 0) {
      buffer.offset = take(buffer.bytes, page);
      purpose(local_.memory, pc.kind) += buffer.bytes;
    }
    c.offset = buffer.offset + pc.buffer_offset;
  }
}

void LocalMemory::place_channels() {
  using Kind = PlanChannel::Kind;
  for (auto& c : local_.channels) {
    const PlanChannel& pc = role_->channels[c.channel];
    if (pc.ring >= 0 || pc.kind == Kind::parameter) continue;
    const std::int64_t bytes = c.slot_bytes * c.slots;
    purpose(local_.memory, pc.kind) += bytes;
    if (pc.kind == Kind::snapshot) {
      c.offset = local_.arena_bytes;
      local_.arena_bytes += bytes;
    } else if (pc.area >= 0) {
      add_tenant(pc.area, pc.shift, bytes, {&c.offset});
    } else {
      c.offset = take(bytes, alignment_of(bytes));
    }
  }
}

void LocalMemory::place_staging() {
  struct StagingBuffer {
    std::int64_t bytes = 0;
    std::vector<LocalActor*> users;
  };
  // as large as the largest exchange of a buffer needs
  std::map<std::pair<std::int32_t, std::int32_t>, StagingBuffer> rings;
  std::vector<StagingBuffer> buffers;
  for (auto& a : local_.actors) {
    const PlanActor& pa = plan_actor(a);
    if (pa.staging_ring < 0) {
      buffers.push_back({a.staging_bytes * a.staging_slots, {&a}});
      continue;
    }
    StagingBuffer& shared = rings[{pa.staging_ring, pa.staging_buffer}];
    shared.bytes = std::max(shared.bytes, a.staging_bytes);
    shared.users.push_back(&a);
  }
  for (auto& [number, shared] : rings) buffers.push_back(std::move(shared));
  for (const StagingBuffer& b : buffers) {
    local_.memory.staging += b.bytes;
    const PlanActor& pa = plan_actor(*b.users.front());
    std::vector<std::int64_t*> offsets;
    for (auto* a : b.users) offsets.push_back(&a->staging_offset);
    if (pa.staging_area >= 0) {
      add_tenant(pa.staging_area, pa.staging_shift, b.bytes, std::move(offsets));
    } else {
      const auto here = take(b.bytes);
      for (auto* offset : offsets) *offset = here;
    }
  }
}

void LocalMemory::add_tenant(std::int32_t area, std::int32_t shift, std::int64_t bytes,
                             std::vector<std::int64_t*> offsets) {
  std::int64_t& end = areas_[area].shifts[shift];
  areas_[area].tenants.emplace_back(end, std::move(offsets));
  end += aligned(bytes);
  local_.memory.shared += aligned(bytes);
}

void LocalMemory::place_areas() {
  for (const auto& [number, area] : areas_) {
    std::int64_t bytes = 0;
    for (const auto& [shift, end] : area.shifts) bytes = std::max(bytes, end);
    local_.memory.shared -= bytes;
    const auto here = take(bytes, alignment_of(bytes));
    for (const auto& [at, offsets] : area.tenants)
      for (auto* offset : offsets) *offset = here + at;
  }
}

std::vector<std::int64_t> moments_offsets(const Plan& plan, Rank rank, const PlanActor& update, std::int64_t& total) {
  std::vector<std::int64_t> offsets;
  for (const auto& ref : update.params) {
    const PlanParam& p = plan.params[ref.param];
    offsets.push_back(p.by_ops ? -1 : total);
    if (p.by_ops) continue;
    total +=
        aligned(kernels::AdamW::state_values() * plan.extent(p.share >= 0 ? p.share : p.tensor, rank).elements() * 4);
  }
  return offsets;
}

}  // namespace troupe::runtime
