// How a job goes on when a place is lost: the part of the coordinator that takes it from one generation to the next.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/elastic/stall_text.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/act_watch.h"

namespace troupe::runtime {

void Coordinator::lose(Rank culprit, const std::string& actor, const Status& cause, std::int64_t now_ns) {
  if (!incident_) {
    const std::int64_t committed = session_->committed();
    count_in_a_row();
    incident_ = Incident{
        .cause = cause.message(), .actor = actor, .culprit = place_number(culprit), .committed = committed};
    incident_->down_ns = now_ns;
    generations_ = 0;
  }
  const bool first = incident_->planned && incident_->lost.empty() && !loss_;
  if (first) {  // a change was under way: now it is an incident
    incident_->planned = false;
    incident_->culprit = place_number(culprit);
    incident_->actor = actor;
    count_in_a_row();
  }
  if (first || loss_ || generations_ > 0) incident_->cause += "\nthen " + cause.message();
  incident_->last_down_ns = now_ns;
  if (down_.count(culprit) > 0) incident_->lost.push_back(place_number(culprit));
  if (!loss_) loss_ = Loss{culprit, actor, cause};
}

void Coordinator::count_in_a_row() {
  in_a_row_ = session_->committed() > furthest_ ? 1 : in_a_row_ + 1;
  furthest_ = std::max(furthest_, session_->committed());
}

void Coordinator::recover(std::int64_t now_ns) {
  if (gives_up(*std::exchange(loss_, std::nullopt))) return;
  leave_generation(now_ns);
}

Status Coordinator::may_change() const {
  if (!options_.recovers) return invalid("the job does not recover (CoordinatorOptions::recovers): it keeps its shape");
  if (over_ || !begun_ || diverged_ || session_->finished() || pause_.asked())
    return Status(Code::unavailable, begun_ ? "the job is about to end" : "the job has not begun");
  if (change_ || planned_) return Status(Code::unavailable, "the job is about to change its shape");
  if (session_->earliest_end() >= options_.session.steps)
    return Status(Code::unavailable, "the job ends with the steps that have begun");
  return {};
}

Status Coordinator::change(ChosenPlan chosen, const std::string& why, std::int64_t now_ns) {
  TROUPE_TRY(may_change());
  if (std::ssize(available()) < chosen.plan->workers())
    return invalid(
        fmt::format("{} needs {} places, and there are {}", chosen.shape, chosen.plan->workers(), available().size()));
  change_ = {std::move(chosen), why};
  if (phase_ == Phase::running) hold_for_change();
  progressed(now_ns);
  return {};
}

std::vector<PlaceId> Coordinator::available() const {
  std::vector<PlaceId> left;
  for (const PlaceId place : all_)
    if (gone_.count(place) == 0) left.push_back(place);
  return left;
}

std::int64_t Coordinator::grace_ends_ns() const {
  // In a generation that is entered for that, nothing is left but to save.
  const bool waits = pause_.begun() && !ends_early_ && recovers() && session_->committed() < pause_.version();
  return waits ? pause_.asked_ns() + options_.grace_ns : std::numeric_limits<std::int64_t>::max();
}

void Coordinator::end_early(std::int64_t now_ns) {
  ends_early_ = true;
  change_.reset();
  const std::string why = fmt::format("steps that had begun were not done {:.1f} s after the job was asked to end",
                                      static_cast<double>(options_.grace_ns) * 1e-9);
  if (!incident_) {
    incident_ = Incident{.cause = why, .committed = session_->committed()};
    incident_->down_ns = incident_->last_down_ns = now_ns;
    generations_ = 0;
  } else {
    incident_->cause += "\nthen " + why;
  }
  leave_generation(now_ns);
}

void Coordinator::hold_for_change() {
  if (!change_) return;
  if (!session_->finished() && session_->earliest_end() < options_.session.steps)
    return session_->hold_at(session_->earliest_end());
  log_warn(change_->why + ": the job ends before");
  change_.reset();
}

void Coordinator::begin_change(std::int64_t now_ns) {
  incident_ = Incident{.cause = change_->why, .planned = true, .committed = session_->committed()};
  incident_->down_ns = incident_->last_down_ns = now_ns;
  generations_ = 0;
  leave_generation(now_ns);
}

void Coordinator::leave_generation(std::int64_t now_ns) {
  if (options_.inputs_unchanged)
    if (const Status s = options_.inputs_unchanged(); !s.ok()) return end(s, exit_data);
  std::uint32_t number = fence_.generation().number + 1;
  told_.tell_written();  // their folder is of the generation that ends
  if (checkpoints_) {
    const auto next = checkpoints_->next_generation(fence_.generation().number);
    if (!next.ok()) return end(next.status(), exit_checkpoint);
    number = *next;
  }
  fence_.enter({fence_.generation().job, number});
  log_debug(fmt::format("generation {} begins", number));
  phase_ = Phase::leaving;
  if (answer_until_ns_) kill_the_blamed(now_ns);
  leave_until_ns_.reset();  // claiming a folder may have taken long
  quiesced_.clear();
  ready_.clear();
  addresses_.clear();
  suspicion_.reset();
  progressed(now_ns);
  std::vector<PlaceId> alive;  // also those that have no rank now: they follow the job from generation to generation
  for (const PlaceId place : available())
    if (told_plan_.count(place) > 0 && down_.count(rank_of(place)) == 0) alive.push_back(place);
  for (Rank r = 0; r < plan_->workers(); ++r) {
    if (is_gone(r)) quiesced_.insert(r);
    Pulse& pulse = pulses_[static_cast<std::size_t>(r)];
    pulse = {std::max(pulse.heard_ns, now_ns), 0, false, pulse.starts, {}};
  }
  sink_.send(alive, fence_.generation(), Abort{});
  for (const auto& [rank, how] : std::exchange(down_, {})) {
    if (options_.replan && how != ProcessEnd::Kind::worn) {
      gone_.insert(options_.places[static_cast<std::size_t>(rank)]);
      quiesced_.insert(rank);
    } else {
      start_again(rank, how == ProcessEnd::Kind::suspect, now_ns);
    }
  }
  if (!over_ && all(quiesced_)) enter_places(now_ns);
}

void Coordinator::start_again(Rank rank, bool afresh, std::int64_t now_ns) {
  quiesced_.insert(rank);
  if (watched_plan_ == plan_ && stragglers_->forget(rank) && options_.on_straggler)
    options_.on_straggler({place_number(rank), 1, session_->committed(), true});  // another process
  pulses_[static_cast<std::size_t>(rank)] = {now_ns + start_may_take_ns(), 0, false, true, {}};
  sink_.restart(options_.places[static_cast<std::size_t>(rank)], fence_.generation(), afresh);
}

bool Coordinator::gives_up(const Loss& loss) {
  const auto ends = [&](const std::string& why) {
    end(loss.cause.in(why), exit_do_not_requeue);
    return true;
  };
  const auto failed = std::pair(loss.actor, session_->committed());
  if (!loss.actor.empty() && std::exchange(last_failed_, failed) == failed)
    return ends(fmt::format("an actor has failed twice at step {}", failed.second));
  if (incident_)
    for (const std::int32_t place : incident_->lost)
      if (std::count(incident_->lost.begin(), incident_->lost.end(), place) > losses_in_incident_max)
        return ends(fmt::format("worker {} was lost {} times without an act between them, the last one", place,
                                losses_in_incident_max + 1));
  if (in_a_row_ > incidents_in_a_row_max)
    return ends(fmt::format("{} incidents without a new step between them, the last one", in_a_row_));
  // A place that dies again and again before its first act is one incident.
  if (++generations_ > (begun_ ? plan_->workers() : 0) + incidents_in_a_row_max)
    return ends(fmt::format("{} generations without an act, the last one", generations_ - 1));
  return false;
}

void Coordinator::kill_who_stay(std::int64_t now_ns) {
  leave_until_ns_ = std::numeric_limits<std::int64_t>::max();
  for (Rank r = 0; r < plan_->workers(); ++r) {
    if (quiesced_.count(r) == 0 && !pulses_[static_cast<std::size_t>(r)].starts)  // CR-5 (silence) sees to these
      blame(r, Fault::slow,
            fmt::format("{} has not left its generation within {} ms", worker(r), leaving_may_take_ns() / 1'000'000),
            now_ns);
  }
}

void Coordinator::blame(Rank rank, Fault fault, const std::string& why, std::int64_t now_ns) {
  const bool at_once = fault == Fault::slow || fault == Fault::corrupt;
  if (const auto [it, fresh] = blamed_.emplace(rank, Blame{fault, why, false, {}}); !fresh) {
    if (fault == Fault::corrupt) it->second.fault = fault;
    return;
  }
  log_debug(why);
  if (!at_once && !answer_until_ns_) {
    answer_until_ns_ = now_ns + options_.detect_ns / 8;
    answers_.clear();
    send_all(ExplainAll{});
  }
  if (!at_once) return;
  blamed_.at(rank).killed = true;
  sink_.kill(options_.places[static_cast<std::size_t>(rank)]);
}

bool Coordinator::have_answered(std::int64_t now_ns) const {
  if (now_ns >= *answer_until_ns_) return true;
  for (Rank r = 0; r < plan_->workers(); ++r)
    if (answers_.count(r) == 0 && blamed_.count(r) == 0 && stopped_.count(r) == 0 && !is_gone(r)) return false;
  return true;
}

void Coordinator::kill_the_blamed(std::int64_t now_ns) {
  answer_until_ns_.reset();
  const std::string report = "\n" + waits_text(place_numbers(), session_->waits_for(), std::exchange(answers_, {}));
  for (auto& [rank, blame] : blamed_) {
    if (std::exchange(blame.killed, true)) continue;
    blame.report = report;
    last_heard_ns_ = now_ns;  // what the kill sets free is waited for anew
    log_debug(fmt::format("{} is killed", worker(rank)));
    sink_.kill(options_.places[static_cast<std::size_t>(rank)]);
  }
}

std::vector<std::int32_t> Coordinator::place_numbers() const {
  std::vector<std::int32_t> numbers;
  for (const PlaceId place : options_.places) numbers.push_back(static_cast<std::int32_t>(place));
  return numbers;
}

std::int64_t Coordinator::silent_at_ns() const {
  std::int64_t at = std::numeric_limits<std::int64_t>::max();
  const bool ends = options_.recovers && session_->finished();  // one that hangs then would hold up the end
  if ((!recovers() && !ends) || options_.detect_ns == 0) return at;
  for (Rank r = 0; r < plan_->workers(); ++r)
    if (blamed_.count(r) == 0 && stopped_.count(r) == 0 && !is_gone(r))
      at = std::min(at, pulses_[static_cast<std::size_t>(r)].heard_ns + options_.detect_ns);
  return at;
}

void Coordinator::kill_who_are_silent(std::int64_t now_ns) {
  for (Rank r = 0; r < plan_->workers(); ++r) {
    const std::int64_t silence_ns = now_ns - pulses_[static_cast<std::size_t>(r)].heard_ns;
    if (silence_ns >= options_.detect_ns && stopped_.count(r) == 0 && !is_gone(r))
      blame(r, Fault::silent,
            pulses_[static_cast<std::size_t>(r)].starts
                ? worker(r) + " has said nothing since it was started"
                : fmt::format("{} has said nothing for {:.1f} s", worker(r), static_cast<double>(silence_ns) * 1e-9),
            now_ns);
  }
}

void Coordinator::kill_who_is_cut_off(std::int64_t now_ns) {
  // Places that enter may wait for messages, too, which exchange a checkpoint that they restore.
  if (!recovers() || options_.detect_ns == 0 || phase_ == Phase::leaving || !blamed_.empty()) return;
  const auto lives = [&](Rank r) {  // one that is silent everywhere is CR-5's
    return r >= 0 && r < plan_->workers() && stopped_.count(r) == 0 &&
           now_ns - pulses_[static_cast<std::size_t>(r)].heard_ns < options_.detect_ns / 2;
  };
  std::map<Rank, std::set<Rank>> cut;  // by rank: peers
  const auto misses = [&](Rank r, Rank peer) {
    const auto& unheard = pulses_[static_cast<std::size_t>(r)].unheard;
    return std::find(unheard.begin(), unheard.end(), peer) != unheard.end();
  };
  for (Rank r = 0; r < plan_->workers(); ++r)
    for (const Rank peer : pulses_[static_cast<std::size_t>(r)].unheard)
      if (peer != r && lives(r) && lives(peer) && misses(peer, r)) cut[r].insert(peer);
  const auto times_lost = [&](Rank r) {
    std::int64_t n = 0;
    for (const Incident& i : result_.incidents) n += std::count(i.lost.begin(), i.lost.end(), place_number(r));
    return n;
  };
  const auto weight = [&](const auto& of) {
    return std::tuple(of.second.size(), times_lost(of.first), place_number(of.first));
  };
  const auto worst = std::max_element(cut.begin(), cut.end(),
                                      [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  if (worst == cut.end()) return;
  std::string peers;
  for (const Rank peer : worst->second) peers += (peers.empty() ? "" : ", ") + worker(peer);
  blame(worst->first, Fault::other,
        fmt::format("{} and {} do not reach each other, though both are heard here", worker(worst->first), peers),
        now_ns);
}

std::int64_t Coordinator::known_quiet_ns() const {
  if (phase_ != Phase::running || !knows_a_step()) return stall_ns();
  return std::min(stall_ns(), std::max(options_.detect_ns, ActWatch::times_longest * longest_quiet_ns_));
}

std::int64_t Coordinator::quiet_ns() const {
  const bool busy = std::any_of(pulses_.begin(), pulses_.end(), [](const Pulse& p) { return p.busy; });
  return recovers() && options_.detect_ns > 0 && !busy ? known_quiet_ns() : stall_ns();
}

void Coordinator::take_stall(std::int64_t now_ns) {
  const Status stall(Code::unavailable, stall_text(static_cast<double>(explain_quiet_ns_) * 1e-9, place_numbers(),
                                                   session_->waits_for(), explanations_));
  if (!recovers() || !begun_) return end(stall, exit_stalled);
  Rank silent = 0;
  while (silent < plan_->workers() && explanations_.count(silent) > 0) ++silent;
  lose(silent < plan_->workers() ? silent : -1, "", stall, now_ns);
  recover(now_ns);
}

void Coordinator::note_left(PlaceId place, const WholeVersions& versions, bool suspect) {
  if (suspect) home_.suspect.insert(place);
  if (home_.plan != plan_) return;  // the state of the job lies where it has lain
  home_.left[place] = versions;
  if (!suspect) home_.suspect.erase(place);  // its memory is new since it was
}

void Coordinator::take_quiesced(Rank from, const Quiesced& quiesced, std::int64_t now_ns) {
  if (phase_ != Phase::leaving) return;
  note_left(options_.places[static_cast<std::size_t>(from)], quiesced.versions, false);
  if (quiesced_.insert(from).second && all(quiesced_)) enter_places(now_ns);
}

void Coordinator::enter_places(std::int64_t now_ns) {
  if (const Status s = replan(now_ns); !s.ok())
    return end(s.in(incident_->cause.substr(0, incident_->cause.find('\n'))), exit_worker);
  if (checkpoints_)
    if (const Status s = checkpoints_->all_left(*plan_); !s.ok()) return end(s, exit_checkpoint);
  phase_ = Phase::entering;
  checkpoint_rejected_ = false;
  incident_->left_ns = now_ns;
  send_all(Enter{});
}

namespace {

/// The same plan, for other places.
ChosenPlan as_before(const Plan& plan) { return {std::make_shared<const Plan>(plan), shape_of(plan), 0, {}}; }

}  // namespace

Status Coordinator::replan(std::int64_t now_ns) {
  const std::vector<PlaceId> left = available();
  std::optional<ChosenPlan> chosen;
  if (auto change = std::exchange(change_, std::nullopt)) {
    planned_ = true;
    if (change->chosen.plan->workers() <= std::ssize(left)) chosen = std::move(change->chosen);
    else log_warn(change->why + ": too few workers are left for " + change->chosen.shape);
  } else if (planned_ && home_.plan != plan_ && home_.plan->workers() <= std::ssize(left)) {
    incident_->cause += "\nthen the change was given up";
    chosen = as_before(*home_.plan);
  }
  bool fewer = false;
  for (Rank r = 0; r < plan_->workers(); ++r) fewer |= is_gone(r);
  if (!chosen && !fewer) return {};
  if (!chosen && plan_->workers() <= std::ssize(left)) chosen = as_before(*plan_);  // a spare takes the place
  if (!chosen) {
    TROUPE_ASSIGN(chosen, options_.replan(*home_.plan, std::ssize(left)));
  }
  // Where the state lies is told by its plan: the same plan once more, for memory that is new, is another one.
  if (chosen->plan.get() == home_.plan) chosen->plan = std::make_shared<const Plan>(*chosen->plan);
  plans_.push_back(chosen->plan);
  plan_ = chosen->plan.get();
  const auto before = std::exchange(options_.places, seat(*plan_, *home_.plan, home_.places, left));
  incident_->shape = shape_ = chosen->shape;
  incident_->others = chosen->others;
  told_plan_.insert(options_.places.begin(), options_.places.end());
  const auto pulses = std::exchange(pulses_, {});
  for (const PlaceId place : options_.places) {  // one that had no rank may only just have started
    const auto had = std::find(before.begin(), before.end(), place);
    pulses_.push_back(had == before.end() ? Pulse{now_ns + waits_.start_ns, 0, false, true, {}}
                                          : pulses[static_cast<std::size_t>(had - before.begin())]);
  }
  quiesced_.clear();
  blamed_.clear();
  if (result_.places.size() < options_.places.size()) result_.places.resize(options_.places.size());
  log_debug(fmt::format("the job goes on as {}", chosen->shape));
  sink_.reshape(*plan_, options_.places, fence_.generation());
  return {};
}

std::optional<std::int32_t> Coordinator::only_machine() const {
  const std::int32_t machine = sink_.machine_of(options_.places.front());
  const auto is_there = [&](PlaceId place) { return sink_.machine_of(place) == machine; };
  if (!std::all_of(options_.places.begin(), options_.places.end(), is_there)) return std::nullopt;
  return machine;
}

Inventory Coordinator::inventory() const {
  Inventory inventory(*home_.plan);
  const auto machine = only_machine();
  for (Rank r = 0; r < home_.plan->workers(); ++r) {
    const PlaceId place = home_.places[static_cast<std::size_t>(r)];
    const auto it = home_.left.find(place);
    const bool used = it != home_.left.end() && home_.suspect.count(place) == 0;
    if (used && (!machine || sink_.machine_of(place) == *machine)) inventory.holds(r, it->second);
  }
  return inventory;
}

bool Coordinator::can_reach(const Inventory& inventory, std::int64_t version) const {
  if (only_machine()) return true;                             // the inventory is of that machine
  bool stays = home_.plan == plan_ && !plan_->keeps_copies();  // each place has what it needs
  for (Rank r = 0; stays && r < plan_->workers(); ++r) stays = inventory.holds(r, version);
  return stays;
}

std::optional<std::int64_t> Coordinator::newest_held(const Inventory& inventory) const {
  std::int64_t most = session_->committed();
  if (const auto read = session_->oldest_read()) most = std::min(most, *read);
  return inventory.newest([&](std::int64_t v) { return v <= most && session_->sums_of(v) && can_reach(inventory, v); });
}

StateHome Coordinator::home_of(std::int64_t version, const Inventory& inventory) {
  StateHome home;
  const bool same = home_.plan == plan_;
  bool lacks = !same || plan_->keeps_copies();
  for (Rank r = 0; r < home_.plan->workers(); ++r) lacks |= !inventory.holds(r, version);
  if (!lacks) return home;
  if (!same) home.plan = write_plan(*home_.plan);
  for (Rank r = 0; r < home_.plan->workers(); ++r) {
    const PlaceId place = home_.places[static_cast<std::size_t>(r)];
    home.areas.push_back(inventory.has(r, version) ? sink_.memory_of(place) : "");
  }
  for (const PlaceId place : options_.places) {
    const auto it = std::find(home_.places.begin(), home_.places.end(), place);
    home.own.push_back(it == home_.places.end() ? -1 : static_cast<Rank>(it - home_.places.begin()));
  }
  return home;
}

void Coordinator::settle() {
  if (home_.plan != plan_) {
    home_.plan = plan_;
    home_.places = options_.places;
    sink_.settled(options_.places);
    if (options_.on_settled) options_.on_settled();
  }
  int spares = options_.spares;
  for (const PlaceId place : available())
    if (planned_ && rank_of(place) < 0 && spares-- <= 0) {
      gone_.insert(place);
      sink_.dismiss(place);
    }
  planned_ = false;
  home_.left.clear();
  home_.suspect.clear();
}

Connect Coordinator::choose_state(std::int64_t now_ns) {
  Connect connect;
  std::int64_t version = options_.session.first_step;
  std::optional<SumState> sums = options_.session.sums;
  const Inventory inventory = this->inventory();
  const auto saved = checkpoints_ ? checkpoints_->newest() : std::nullopt;
  const auto held = newest_held(inventory);
  if (ends_early_ && saved && saved->version >= held.value_or(0)) return end_as_saved(*saved), connect;
  // Memory first, also where a checkpoint is newer than copies: to repeat steps needs no disk, which may be damaged.
  if (held) {
    connect.adopt = version = *held;
    connect.home = home_of(version, inventory);
    sums = *session_->sums_of(version);
    incident_->from = "memory";
  } else if (saved) {
    version = saved->version;
    sums = saved->sums;
    incident_->from = connect.restore = saved->folder;
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

void Coordinator::end_as_saved(const SavedVersion& saved) {
  told_.go_on_from(saved.version);
  begin_session(saved.version, saved.sums);
  incident_->version = saved.version;
  incident_->from = saved.folder;
  incident_->generation = fence_.generation().number;
  incident_->ends = true;
  pause_.end_with(saved.version, options_.session.steps);
  end(pause_.status(), pause_.code());
}

void Coordinator::acted(std::int64_t now_ns) {
  if (!incident_ || phase_ != Phase::running) return;
  incident_->act_ns = now_ns;
  close_incident();
}

void Coordinator::close_incident() {
  const Incident incident = *std::exchange(incident_, std::nullopt);
  result_.incidents.push_back(incident);
  if (options_.on_incident) options_.on_incident(incident);
}

}  // namespace troupe::runtime
