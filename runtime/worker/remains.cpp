#include "runtime/worker/remains.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "placement/boxing.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

namespace {

/// A place of the remains that holds the version.
struct Source {
  LocalPlan local;
  std::vector<StatePlace> places;            // by parameter
  std::map<std::int32_t, std::byte*> slots;  // that have the version, by local channel
};

Expected<std::optional<Source>> source_of(const Remains& remains, Rank rank, std::int64_t version) {
  std::byte* area = remains.areas[static_cast<std::size_t>(rank)];
  if (!area) return std::optional<Source>();
  Source s;
  TROUPE_ASSIGN(s.local, local_plan(*remains.plan, rank));
  if (!holds(*remains.plan, s.local, area, version)) return std::optional<Source>();
  s.places = state_places(*remains.plan, s.local);
  for (const HeldVersion& held : held_versions(*remains.plan, s.local, area)) {
    if (held.version != version) continue;
    for (std::size_t c = 0; c < s.local.channels.size(); ++c) {
      const LocalChannel& channel = s.local.channels[c];
      if (remains.plan->roles[s.local.stage].channels[channel.channel].name == held.channel)
        s.slots[static_cast<std::int32_t>(c)] = area + channel.offset + held.slot * channel.slot_bytes;
    }
  }
  return std::optional(std::move(s));
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
      TROUPE_TRY(take(param, places_[index], *it, static_cast<std::size_t>(it - old.begin()), part).in(param.name));
    return {};
  }
  const HealedBytes& bytes() const { return bytes_; }

 private:
  Status take(const PlanParam& param, const StatePlace& place, const PlanParam& old, std::size_t old_index,
              StatePart part) {
    const Extent want = extent_of(plan_, param, part, local_.rank);
    const std::int64_t to = offset_of(place, part, want.elements());
    if (to < 0 || want.empty()) return {};
    std::vector<Holding> held;
    for (const auto& [rank, source] : sources_) {
      Extent extent = extent_of(*remains_.plan, old, part, rank);
      if (source.places[old_index].channel >= 0 && !extent.empty()) held.push_back({rank, std::move(extent), {}});
    }
    const Rank self = own_ >= 0 ? own_ : static_cast<Rank>(remains_.areas.size());
    TROUPE_ASSIGN(const BoxingPlan boxing, plan_boxing(HoldingList(std::move(held)), {{self, want, {}}}));
    const std::int64_t item = item_bytes(plan_, param, part);
    std::byte* destination = pool_ + local_.channels[place.channel].offset + to;
    for (const Transfer& t : boxing.transfers) {
      const Source& source = sources_.at(t.from);
      const StatePlace& from = source.places[old_index];
      const Extent lies = extent_of(*remains_.plan, old, part, t.from);
      const std::byte* begin = source.slots.at(from.channel) + offset_of(from, part, lies.elements());
      copy_extent(t.extent, begin, lies, destination, want, item);
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
  for (const PlanParam& param : plan.params)
    for (const StatePart part : state_parts) {
      std::vector<Holding> held;
      const Mesh& mesh = plan.meshes[plan.tensors[tensor_of(param, part)].mesh];
      for (const Rank rank : mesh.ranks) {
        Extent extent = extent_of(plan, param, part, rank);
        if (holds(rank) && !extent.empty()) held.push_back({rank, std::move(extent), {}});
      }
      const Extent all = Extent::whole(plan.tensors[param.tensor].shape);
      if (!plan_boxing(HoldingList(std::move(held)), {{plan.workers(), all, {}}}).ok()) return false;
    }
  return true;
}

Expected<HealedBytes> heal(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains, Rank own,
                           std::int64_t version, const std::function<void()>& progress) {
  Healing healing(plan, local, pool, remains, own);
  TROUPE_TRY(healing.find_sources(version));
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    TROUPE_TRY(healing.take(p));
    if (progress) progress();
  }
  return healing.bytes();
}

}  // namespace troupe::runtime
