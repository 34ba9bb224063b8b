#include "runtime/worker/remains.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/place/guard_layout.h"
#include "runtime/place/state_places.h"

namespace troupe::runtime {

Status check_home(const StateHome& home, const Plan& before, const Plan& takes) {
  if (std::ssize(home.areas) == before.workers() && std::ssize(home.own) == takes.workers()) return {};
  return invalid(fmt::format("the memory of {} ranks is named for {}, and the generation before has {} for {}",
                             home.areas.size(), home.own.size(), before.workers(), takes.workers()));
}

Remains remains_of(const StateHome& home, const Plan& plan) {
  Remains remains;
  remains.plan = &plan;
  remains.own = home.own;
  remains.guards = !home.keepers.empty();
  remains.same_plan = home.plan.empty() && !plan.keeps_copies() && !remains.guards;
  remains.area_machines = home.area_machines;
  remains.machines = home.machines;
  return remains;
}

bool opens(const StateHome& home, Rank rank, Rank from) {
  const auto r = static_cast<std::size_t>(from);
  if (home.areas[r].empty()) return false;
  return home.machines.empty() || home.machines[static_cast<std::size_t>(rank)] == home.area_machines[r];
}

Expected<std::int64_t> offset_in_area(const StateHome& home, const Plan& before, Rank from, std::size_t bytes) {
  if (home.keepers.empty()) return std::int64_t{0};
  const Rank keeper = home.keepers[static_cast<std::size_t>(from)];
  const GuardLayout layout(before, home.guard_machines);
  if (keeper != from && keeper != layout.guard_of(from))
    return invalid(fmt::format("what rank {} has is said to be guarded by rank {}", from, keeper));
  TROUPE_ASSIGN(const LocalPlan local, local_plan(before, keeper));
  const std::int64_t at = local.kept_bytes() + layout.offset(keeper, from);
  if (at + guard_slots * layout.part(from).slot_bytes > static_cast<std::int64_t>(bytes))
    return invalid(fmt::format("the memory of rank {} has {} bytes, too few for its guards", keeper, bytes));
  return at;
}

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

HealingSources::HealingSources(const Plan& plan, const Remains& remains)
    : plan_(plan), remains_(remains), kept_(*remains.plan, remains.guards), trained_(trained_params(plan)) {
  const bool several = !remains.machines.empty();
  for (std::size_t r = 0; r < remains.areas.size(); ++r) {
    lost_.push_back(several ? remains.area_machines[r] < 0 : remains.areas[r] == nullptr);
    senders_.push_back(-1);
    for (Rank q = plan.workers() - 1; several && q >= 0; --q)
      if (remains.machines[static_cast<std::size_t>(q)] == remains.area_machines[r]) senders_.back() = q;
    const auto own = std::find(remains.own.begin(), remains.own.end(), static_cast<Rank>(r));
    const bool reaches = several && own != remains.own.end() &&
                         remains.machines[static_cast<std::size_t>(own - remains.own.begin())] ==
                             remains.area_machines[r];  // else its guard has it
    if (reaches) senders_.back() = static_cast<Rank>(own - remains.own.begin());
  }
  const auto& there = remains.plan->params;
  for (const PlanParam& param : plan.params) {
    const auto it = std::find_if(there.begin(), there.end(), [&](const PlanParam& p) { return p.name == param.name; });
    params_.push_back(it == there.end() ? -1 : static_cast<std::int32_t>(it - there.begin()));
  }
}

bool HealingSources::takes(Rank rank) const {
  const Rank own = remains_.own[static_cast<std::size_t>(rank)];
  return !remains_.same_plan || own < 0 || lost_[static_cast<std::size_t>(own)];
}

bool HealingSources::reaches(Rank rank, Rank from) const {
  return remains_.machines.empty() ||
         remains_.machines[static_cast<std::size_t>(rank)] == remains_.area_machines[static_cast<std::size_t>(from)];
}

Expected<BoxingPlan> HealingSources::transfers(Rank rank, const Extent& want, std::size_t param, StatePart part,
                                               bool far) const {
  std::vector<Holding> held;
  for (Rank from = 0; from < std::ssize(lost_); ++from) {
    if (lost_[static_cast<std::size_t>(from)] || !(reaches(rank, from) || (far && sender_of(from) >= 0))) continue;
    Extent extent = kept_.of(from, params_[param], part);
    if (!extent.empty()) held.push_back({from, std::move(extent), {}});
  }
  const Rank own = remains_.own[static_cast<std::size_t>(rank)];
  const Rank self = own >= 0 ? own : static_cast<Rank>(lost_.size());
  return plan_boxing(HoldingList(std::move(held)), {{self, want, {}}});
}

Expected<BoxingPlan> HealingSources::transfers_to(Rank rank, std::size_t param, StatePart part) const {
  const PlanParam& p = plan_.params[param];
  const Extent want = extent_of(plan_, p, part, rank);
  if (want.empty() || !takes(rank) || (part != StatePart::parameter && !trained_[param])) return BoxingPlan();
  if (params_[param] < 0)
    return Status(Code::internal, fmt::format("the generation before has no parameter '{}'", p.name));
  auto near = transfers(rank, want, param, part, false);
  if (near.ok()) return near;
  auto all = transfers(rank, want, param, part, true);
  if (all.ok()) return all;
  return Status(Code::internal, p.name + ": " + all.status().message());
}

Expected<HealingPieces> healing_pieces(const Remains& remains, std::int64_t version, HealingSources& sources) {
  HealingPieces out;
  for (std::size_t r = 0; r < remains.areas.size(); ++r) {
    if (!remains.areas[r]) continue;
    const auto rank = static_cast<Rank>(r);
    TROUPE_ASSIGN(auto pieces, remains.guards ? guarded_pieces(*remains.plan, rank, remains.areas[r], version)
                                              : state_pieces(*remains.plan, rank, remains.areas[r], version));
    if (pieces) out[rank] = *std::move(pieces);
    else if (remains.machines.empty()) sources.lose(rank);
    else
      return Status(Code::internal, fmt::format("rank {} of the generation before does not hold version {}, though its "
                                                "place has said so",
                                                r, version));
  }
  return out;
}

Expected<HealedBytes> heal(const Plan& plan, const LocalPlan& local, std::byte* pool, const Remains& remains,
                           std::int64_t version, const std::function<bool()>& goes_on) {
  HealingSources sources(plan, remains);
  TROUPE_ASSIGN(const HealingPieces pieces, healing_pieces(remains, version, sources));
  const auto places = state_places(plan, local);
  HealedBytes bytes;
  for (std::size_t p = 0; p < plan.params.size(); ++p) {
    for (const StatePart part : state_parts) {
      TROUPE_ASSIGN(const BoxingPlan boxing, sources.transfers_to(local.rank, p, part));
      const Extent want = extent_of(plan, plan.params[p], part, local.rank);
      const std::int64_t item = item_bytes(plan, plan.params[p], part);
      for (const Transfer& t : boxing.transfers) {
        if (!sources.reaches(local.rank, t.from)) continue;  // it travels
        const StatePiece& piece =
            pieces.at(t.from)[static_cast<std::size_t>(sources.param_there(p))][static_cast<std::size_t>(part)];
        std::byte* to = pool + local.channels[places[p].channel].offset + offset_of(places[p], part, want.elements());
        copy_extent(t.extent, piece.data, piece.extent, to, want, item);
        (t.from == remains.own[static_cast<std::size_t>(local.rank)] ? bytes.own : bytes.other) += t.extent.elements() *
                                                                                                   item;
      }
    }
    if (goes_on && !goes_on()) return Status(Code::unavailable, "healing was stopped");
  }
  return bytes;
}

}  // namespace troupe::runtime
