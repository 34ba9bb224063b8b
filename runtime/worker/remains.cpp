#include "runtime/worker/remains.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>

#include "placement/boxing.h"
#include "runtime/place/kept_extents.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

namespace {

/// What a place of the remains has of a part of a parameter's state.
struct Piece {
  Extent extent = {{{0, 0}}};
  const std::byte* data = nullptr;  // null: nothing
};

/// A place that holds the version: its pieces, by index of the remains' parameters and by StatePart.
using Source = std::vector<std::array<Piece, std::size(state_parts)>>;

/// By group: where the version lies.
using Groups = std::map<std::string, const std::byte*>;

void take_slots(const Plan& plan, const LocalPlan& local, const Groups& groups, Source& out) {
  const auto places = state_places(plan, local);
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    if (places[p].channel < 0) continue;
    const auto& channel = local.channels[static_cast<std::size_t>(places[p].channel)];
    const auto group = groups.find(plan.roles[static_cast<std::size_t>(local.stage)].channels[channel.channel].name);
    for (const StatePart part : state_parts) {
      const Extent extent = extent_of(plan, plan.params[p], part, local.rank);
      const std::int64_t at = offset_of(places[p], part, extent.elements());
      if (at >= 0 && !extent.empty() && group != groups.end())
        out[p][static_cast<std::size_t>(part)] = {extent, group->second + at};
    }
  }
}

void take_copies(const Plan& plan, const LocalPlan& local, const Groups& groups, Source& out) {
  for (const LocalActor& a : local.actors)
    for (const CopiedPart& part : a.copied)
      out[static_cast<std::size_t>(part.param)][static_cast<std::size_t>(part.part)] = {
          part.extent, groups.at(plan.roles[static_cast<std::size_t>(local.stage)].actors[a.actor].name) + part.offset};
}

Expected<std::optional<Source>> source_of(const Remains& remains, Rank rank, std::int64_t version) {
  std::byte* area = remains.areas[static_cast<std::size_t>(rank)];
  if (!area) return std::optional<Source>();
  const Plan& plan = *remains.plan;
  TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, rank));
  if (!holds(plan, local, area, version)) return std::optional<Source>();
  Groups groups;
  for (const HeldVersion& held : held_versions(plan, local, area))
    if (held.version == version) groups[held.group] = held.state.data();
  Source source(plan.params.size());
  (plan.keeps_copies() ? take_copies : take_slots)(plan, local, groups, source);
  return std::optional(std::move(source));
}

class Healing {
 public:
  Healing(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains, Rank own)
      : plan_(plan), local_(local), pool_(pool), remains_(remains), own_(own), places_(state_places(plan, local)) {}

  Status find_sources(std::int64_t version) {
    for (std::size_t r = 0; r < remains_.areas.size(); ++r) {
      TROUPE_ASSIGN(auto source, source_of(remains_, static_cast<Rank>(r), version));
      if (source) sources_[static_cast<Rank>(r)] = *std::move(source);
    }
    return {};
  }

  Status take(std::size_t index) {
    const PlanParam& param = plan_.params[index];
    if (places_[index].channel < 0) return {};
    const auto& old = remains_.plan->params;
    const auto it = std::find_if(old.begin(), old.end(), [&](const PlanParam& p) { return p.name == param.name; });
    if (it == old.end())
      return Status(Code::internal, fmt::format("the generation before has no parameter '{}'", param.name));
    for (const StatePart part : state_parts)
      TROUPE_TRY(take(param, places_[index], static_cast<std::size_t>(it - old.begin()), part).in(param.name));
    return {};
  }
  const HealedBytes& bytes() const { return bytes_; }

 private:
  Status take(const PlanParam& param, const StatePlace& place, std::size_t old_index, StatePart part) {
    const Extent want = extent_of(plan_, param, part, local_.rank);
    const std::int64_t to = offset_of(place, part, want.elements());
    if (to < 0 || want.empty()) return {};
    const auto piece_of = [&](const Source& source) -> const Piece& {
      return source[old_index][static_cast<std::size_t>(part)];
    };
    std::vector<Holding> held;
    for (const auto& [rank, source] : sources_)
      if (const Piece& piece = piece_of(source); piece.data) held.push_back({rank, piece.extent, {}});
    const Rank self = own_ >= 0 ? own_ : static_cast<Rank>(remains_.areas.size());
    TROUPE_ASSIGN(const BoxingPlan boxing, plan_boxing(HoldingList(std::move(held)), {{self, want, {}}}));
    const std::int64_t item = item_bytes(plan_, param, part);
    std::byte* destination = pool_ + local_.channels[place.channel].offset + to;
    for (const Transfer& t : boxing.transfers) {
      const Piece& piece = piece_of(sources_.at(t.from));
      copy_extent(t.extent, piece.data, piece.extent, destination, want, item);
      (t.from == own_ ? bytes_.own : bytes_.other) += t.extent.elements() * item;
    }
    return {};
  }

  const Plan& plan_;
  const LocalPlan& local_;
  std::byte* const pool_;
  const Remains& remains_;
  const Rank own_;
  const std::vector<StatePlace> places_;
  std::map<Rank, Source> sources_;
  HealedBytes bytes_;
};

}  // namespace

bool is_whole(const Plan& plan, const std::function<bool(Rank)>& holds) {
  const KeptExtents kept(plan);
  for (std::size_t p = 0; p < plan.params.size(); ++p)
    for (const StatePart part : state_parts) {
      const auto param = static_cast<std::int32_t>(p);
      if (!kept.any(param, part)) continue;
      std::vector<Holding> held;
      for (const Rank rank : plan.meshes[plan.tensors[tensor_of(plan.params[p], part)].mesh].ranks) {
        Extent extent = kept.of(rank, param, part);
        if (holds(rank) && !extent.empty()) held.push_back({rank, std::move(extent), {}});
      }
      const Extent all = Extent::whole(plan.tensors[plan.params[p].tensor].shape);
      if (!plan_boxing(HoldingList(std::move(held)), {{plan.workers(), all, {}}}).ok()) return false;
    }
  return true;
}

Expected<HealedBytes> heal(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains, Rank own,
                           std::int64_t version, const std::function<bool()>& goes_on) {
  Healing healing(plan, local, pool, remains, own);
  TROUPE_TRY(healing.find_sources(version));
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    TROUPE_TRY(healing.take(p));
    if (goes_on && !goes_on()) return Status(Code::unavailable, "healing was stopped");
  }
  return healing.bytes();
}

}  // namespace troupe::runtime
