// From which version and whose memory a job goes on: the part of the coordinator that chooses the state.
#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/place/guard_layout.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/remains.h"

namespace troupe::runtime {

void Coordinator::note_left(PlaceId place, const WholeVersions& versions, bool suspect) {
  if (suspect) home_.suspect.insert(place), unguarded_.insert(place);
  if (home_.plan != plan_) return;  // the state of the job lies where it has lain
  home_.left[place] = versions;
  if (!suspect) home_.suspect.erase(place);  // its memory is new since it was
}

std::set<std::int32_t> Coordinator::machines_of(std::span<const PlaceId> places) const {
  std::set<std::int32_t> machines;
  for (const PlaceId place : places) machines.insert(sink_.machine_of(place));
  return machines;
}

bool Coordinator::have_state(const std::set<std::int32_t>& machines) const {
  return is_whole(*home_.plan, [&](Rank rank) {
    const PlaceId place = home_.places[static_cast<std::size_t>(rank)];
    return machines.count(sink_.machine_of(place)) > 0 && home_.bare.count(place) == 0;
  });
}

Coordinator::StateOn Coordinator::state_on(const std::set<std::int32_t>& machines) const {
  if (newest_held(inventory(machines))) return StateOn::held;
  const auto guarded = this->guarded();
  return guarded && keepers(*guarded, machines) ? StateOn::guarded : StateOn::none;
}

std::vector<PlaceId> Coordinator::seats(const Plan& next, std::span<const PlaceId> left, const Keeps& keeps) const {
  std::vector<PlaceId> places = seat(next, *home_.plan, home_.places, left);
  const auto machine_of = [this](PlaceId place) { return sink_.machine_of(place); };
  std::set<std::int32_t> needed = machines_of(left);
  const auto seated = machines_of(places);
  if (seated.size() == needed.size() || keeps(seated) || !keeps(needed)) return places;
  for (const bool with_rank : {false, true})  // those without a rank go first
    for (const std::int32_t machine : machines_of(left))
      if ((seated.count(machine) > 0) == with_rank && needed.erase(machine) > 0 && !keeps(needed))
        needed.insert(machine);
  if (needed.size() > places.size()) return places;
  for (const std::int32_t machine : needed) {
    if (machines_of(places).count(machine) > 0) continue;
    const auto can_spare = [&](PlaceId place) {
      const auto is_there = [&](PlaceId other) { return machine_of(other) == machine_of(place); };
      return needed.count(machine_of(place)) == 0 || std::count_if(places.begin(), places.end(), is_there) > 1;
    };
    const auto last = std::find_if(places.rbegin(), places.rend(), can_spare);
    ASSERT(last != places.rend(), needed.size(), places.size());
    *last = *std::find_if(left.begin(), left.end(), [&](PlaceId place) { return machine_of(place) == machine; });
  }
  return places;
}

ChosenPlan Coordinator::with_state(ChosenPlan fastest, std::span<const PlaceId> left, const Keeps& keeps) const {
  const auto machines = machines_of(left);
  const auto is_kept_by = [&](const ChosenPlan& shape) { return keeps(machines_of(seats(*shape.plan, left, keeps))); };
  if (machines.size() == 1 || fastest.slower.empty() || is_kept_by(fastest) || !keeps(machines)) return fastest;
  const auto kept = std::find_if(fastest.slower.begin(), fastest.slower.end(), is_kept_by);
  if (kept == fastest.slower.end()) return fastest;
  ChosenPlan chosen = *kept;
  chosen.others = std::move(fastest.others);
  std::erase_if(chosen.others, [&](const std::string& other) { return other.starts_with(chosen.shape + ": "); });
  chosen.others.push_back(fmt::format("{}: a step of {:.3g} ms, but a machine with state would have no place",
                                      fastest.shape, fastest.step_s * 1e3));
  return chosen;
}

Inventory Coordinator::inventory(const std::set<std::int32_t>& machines) const {
  Inventory inventory(*home_.plan);
  for (Rank r = 0; r < home_.plan->workers(); ++r) {
    const PlaceId place = home_.places[static_cast<std::size_t>(r)];
    const auto it = home_.left.find(place);
    const bool used = it != home_.left.end() && home_.suspect.count(place) == 0;
    if (used && machines.count(sink_.machine_of(place)) > 0) inventory.holds(r, it->second);
  }
  return inventory;
}

std::optional<std::int64_t> Coordinator::newest_held(const Inventory& inventory) const {
  std::int64_t most = session_->committed();
  if (const auto read = session_->oldest_read()) most = std::min(most, *read);
  return inventory.newest([&](std::int64_t v) { return v <= most && session_->sums_of(v); });
}

StateHome Coordinator::home_of(std::int64_t version, const Inventory& inventory) {
  bool lacks = home_.plan != plan_ || plan_->keeps_copies();
  for (Rank r = 0; r < home_.plan->workers(); ++r) lacks |= !inventory.holds(r, version);
  if (!lacks) return {};
  return home_with([&](Rank r) -> std::optional<PlaceId> {
    if (!inventory.has(r, version)) return {};
    return home_.places[static_cast<std::size_t>(r)];
  });
}

StateHome Coordinator::home_of(const GuardedVersion& guarded, const std::vector<Rank>& keepers) {
  StateHome home = home_with([&](Rank r) -> std::optional<PlaceId> {
    const Rank keeper = keepers[static_cast<std::size_t>(r)];
    if (keeper < 0) return {};
    return home_.places[static_cast<std::size_t>(keeper)];
  });
  home.keepers = keepers;
  home.guard_machines = guarded.machines;
  return home;
}

StateHome Coordinator::home_with(const std::function<std::optional<PlaceId>(Rank)>& place_of) {
  StateHome home;
  if (home_.plan != plan_) home.plan = write_plan(*home_.plan);
  const bool several = machines_of(options_.places).size() > 1;
  for (Rank r = 0; r < home_.plan->workers(); ++r) {
    const auto place = place_of(r);
    home.areas.push_back(place ? sink_.memory_of(*place) : "");
    if (several) home.area_machines.push_back(place ? sink_.machine_of(*place) : -1);
  }
  for (const PlaceId place : options_.places) {
    const auto it = std::find(home_.places.begin(), home_.places.end(), place);
    home.own.push_back(it == home_.places.end() ? -1 : static_cast<Rank>(it - home_.places.begin()));
    if (several) home.machines.push_back(sink_.machine_of(place));
  }
  return home;
}

GuardRule Coordinator::guard_rule() const {
  if (options_.guard_within == 0 || !options_.recovers || !plan_->keeps_version()) return {};
  GuardRule rule = guard_within(options_.guard_within, options_.guard_window_most);
  for (const PlaceId place : options_.places) rule.machines.push_back(sink_.machine_of(place));
  return needs_guards(*plan_, rule.machines) ? rule : GuardRule{};
}

std::optional<GuardedVersion> Coordinator::guarded() const {
  // Places of another plan guard in memory of their own; those of the same one begin to with the first commit.
  const bool anew = phase_ == Phase::running && home_.plan == plan_ && session_->committed() > begins_with_;
  return anew ? guards_.newest(session_->committed()) : guarded_before_;
}

std::optional<std::vector<Rank>> Coordinator::keepers(const GuardedVersion& guarded,
                                                      const std::set<std::int32_t>& machines) const {
  const GuardLayout layout(*home_.plan, guarded.machines);
  const auto holds = [&](Rank rank) {
    const PlaceId place = home_.places[static_cast<std::size_t>(rank)];
    return home_.left.count(place) > 0 && home_.suspect.count(place) == 0 && unguarded_.count(place) == 0 &&
           machines.count(sink_.machine_of(place)) > 0;
  };
  std::vector<Rank> out;
  for (Rank r = 0; r < home_.plan->workers(); ++r) {
    const Rank guard = layout.guard_of(r);
    if (layout.part(r).parts.empty()) out.push_back(-1);
    else if (holds(r)) out.push_back(r);
    else if (guard >= 0 && holds(guard)) out.push_back(guard);
    else return {};
  }
  return out;
}

void Coordinator::settle() {
  if (home_.plan != plan_) {
    home_.plan = plan_;
    home_.places = options_.places;
    home_.bare.clear();
    sink_.settled(options_.places);
    if (options_.on_settled) options_.on_settled();
  } else if (!home_.bare.empty() && session_->committed() > begins_with_) {
    home_.bare.clear();
    sink_.settled(options_.places);
    if (options_.on_settled) options_.on_settled();
  }
  int spares = options_.spares;
  for (const PlaceId place : available())
    if (planned_ && rank_of(place) < 0 && spares-- <= 0) {
      dismiss(place);
    }
  planned_ = false;
  home_.left.clear();
  home_.suspect.clear();
}

Connect Coordinator::choose_state(std::int64_t now_ns) {
  Connect connect;
  std::int64_t version = options_.session.first_step;
  std::optional<SumState> sums = options_.session.sums;
  const Inventory inventory = this->inventory(machines_of(options_.places));
  const auto held = newest_held(inventory);
  const auto guarded = this->guarded();
  std::optional<std::vector<Rank>> kept_by;
  if (guarded) kept_by = keepers(*guarded, machines_of(options_.places));
  std::int64_t in_memory = held.value_or(-1);  // -1: nothing is
  if (!held && kept_by) in_memory = guarded->version;
  // Asked only where it may count: a disk may be slow, or damaged.
  auto saved = checkpoints_ && (in_memory < 0 || ends_early_) ? checkpoints_->newest() : std::nullopt;
  if (saved && saved->version < version) saved.reset();  // of the job that this one goes on for
  if (ends_early_ && saved && saved->version >= in_memory) return end_as_saved(*saved, now_ns), connect;
  // Memory first, also where a checkpoint is newer than copies: to repeat steps needs no disk, which may be damaged.
  if (held) {
    connect.adopt = version = *held;
    connect.home = home_of(version, inventory);
    sums = *session_->sums_of(version);
    incident_->from = "memory";
  } else if (kept_by) {
    connect.adopt = version = guarded->version;
    connect.home = home_of(*guarded, *kept_by);
    sums = guarded->sums;
    incident_->from = "guard";
  } else if (saved) {
    version = saved->version;
    sums = saved->sums;
    incident_->from = connect.restore = saved->folder;
  } else if (options_.left) {
    end(Status(Code::unavailable, incident_->first_line())
            .in(fmt::format("of step {}, with which the job began in memory, not all is left", version)),
        exit_worker);
    return connect;
  } else {
    incident_->from = connect.restore = options_.restore;
  }
  if (ends_early_) {
    pause_.end_with(version, options_.session.steps);
    checkpoints_->end_with(version);
  }
  told_.go_on_from(version);
  begin_session(version, std::move(sums));
  incident_->version = version;
  incident_->ends = ends_early_;
  if (version > last_version_) in_a_row_ = std::min(in_a_row_, incident_->planned ? 0 : 1);  // it has come further
  last_version_ = version;
  incident_->generation = fence_.generation().number;
  incident_->agreed_ns = now_ns;
  log_debug(fmt::format("the job goes on from version {}", version));
  return connect;
}

void Coordinator::end_as_saved(const SavedVersion& saved, std::int64_t now_ns) {
  told_.go_on_from(saved.version);
  begin_session(saved.version, saved.sums);
  incident_->version = saved.version;
  incident_->from = saved.folder;
  incident_->generation = fence_.generation().number;
  incident_->ends = true;
  incident_->agreed_ns = incident_->ready_ns = incident_->act_ns = now_ns;  // there is nothing left to do
  pause_.end_with(saved.version, options_.session.steps);
  end(pause_.status(), pause_.code());
}

}  // namespace troupe::runtime
