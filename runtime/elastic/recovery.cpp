// How a job goes on when a place is lost: the part of the coordinator that takes it from one generation to the next.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "runtime/elastic/coordinator.h"

namespace troupe::runtime {

void Coordinator::lose(Rank culprit, const std::string& actor, const Status& cause, std::int64_t now_ns) {
  const bool opens = !incident_;
  const std::optional<Incident> before = incident_;
  if (opens) {
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
    incident_->cause += ", but " + cause.message();
    incident_->culprit = place_number(culprit);
    incident_->actor = actor;
    count_in_a_row();
  }
  if (!first && (loss_ || generations_ > 0)) incident_->cause += "\nthen " + cause.message();
  incident_->last_down_ns = now_ns;
  if (!loss_) loss_ = Loss{culprit, actor, cause, before};
}

void Coordinator::lose_place(PlaceId place, ProcessEnd::Kind how, const Status& cause, std::int64_t now_ns) {
  lose(rank_of(place), "", cause, now_ns);
  if (down_.insert_or_assign(place, how).second) incident_->lost.push_back(static_cast<std::int32_t>(place));
}

void Coordinator::forget_losses(std::int64_t now_ns) {
  suspicion_.reset();
  for (const auto& [place, how] : std::exchange(down_, {})) stopped_.insert(rank_of(place));
  if (loss_) incident_ = std::move(loss_->incident_before);  // that is none
  loss_.reset();
  if (!incident_) return;
  if (incident_->act_ns < 0) incident_->act_ns = now_ns;
  close_incident();
}

void Coordinator::count_in_a_row() {
  in_a_row_ = session_->committed() > furthest_ ? 1 : in_a_row_ + 1;
  furthest_ = std::max(furthest_, session_->committed());
}

void Coordinator::recover(std::int64_t now_ns) {
  if (are_apart() && options_.wait_for_places_ns > 0 && now_ns >= apart_->since_ns + options_.wait_for_places_ns)
    return end(pause_.unsaved(Status(Code::unavailable, incident_->first_line())
                                  .in(fmt::format("machines have not reached each other for {:.0f} s",
                                                  static_cast<double>(now_ns - apart_->since_ns) * 1e-9))),
               exit_worker);
  if (gives_up(*std::exchange(loss_, std::nullopt))) return;
  leave_generation(now_ns);
}

Status Coordinator::may_change() const {
  if (!options_.recovers) return invalid("the job does not recover (CoordinatorOptions::recovers): it keeps its shape");
  if (over_ || !begun_ || diverged_ || session_->finished() || pause_.asked())
    return Status(Code::unavailable, begun_ ? "the job is about to end" : "the job has not begun");
  if (change_ || planned_) return Status(Code::unavailable, "the job is about to change its shape");
  for (const PlanRole& role : plan_->roles)
    for (const PlanActor& a : role.actors)
      if (a.waits())
        return invalid("actor '" + a.name +
                       "' waits for the outside, and a change waits for its act: it keeps its shape");
  if (session_->earliest_end() >= options_.session.steps)
    return Status(Code::unavailable, "the job ends with the steps that have begun");
  return {};
}

Status Coordinator::change(ChosenPlan chosen, const std::string& why, std::int64_t now_ns) {
  TROUPE_TRY(may_change());
  if (std::ssize(available()) < chosen.plan->workers())
    return invalid(
        fmt::format("{} needs {} places, and there are {}", chosen.shape, chosen.plan->workers(), available().size()));
  const Keeps keeps = [this](const std::set<std::int32_t>& machines) { return have_state(machines); };
  if (!have_state(seats(*chosen.plan, available(), keeps)))
    return invalid(chosen.shape +
                   " would leave machines that alone have a part of the state: ask for a mesh that has a "
                   "worker on each machine");
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

void Coordinator::end_early(const std::string& why, std::int64_t now_ns) {
  ends_early_ = true;
  change_.reset();
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
  ASSERT(incident_, fence_.generation().number);
  if (options_.inputs_unchanged)
    if (const Status s = options_.inputs_unchanged(); !s.ok()) return end(s, exit_data);
  std::uint32_t number = fence_.generation().number + 1;
  guarded_before_ = guarded();
  told_.tell_written();  // their folder is of the generation that ends
  if (checkpoints_) {
    const auto next = checkpoints_->next_generation(fence_.generation().number);
    if (!next.ok()) return end(pause_.unsaved(next.status()), checkpoint_code());
    number = *next;
  }
  fence_.enter({fence_.generation().job, number});
  claimed_ = !options_.claim;
  claim_wait_began_ns_.reset();
  if (options_.claim) options_.claim(fence_.generation());
  log_debug(fmt::format("generation {} begins", number));
  phase_ = Phase::leaving;
  if (answer_until_ns_) kill_the_blamed(now_ns);
  leave_until_ns_.reset();  // claiming a folder may have taken long
  quiesced_.clear();
  ready_.clear();
  addresses_.clear();
  connected_ = false;
  suspicion_.reset();
  progressed(now_ns);
  std::vector<PlaceId> alive;  // also those that have no rank now: they follow the job from generation to generation
  for (const PlaceId place : available())
    if (told_plan_.count(place) > 0 && down_.count(place) == 0) alive.push_back(place);
  for (Rank r = 0; r < plan_->workers(); ++r) {
    if (is_gone(r)) quiesced_.insert(r);
    Pulse& pulse = pulses_[static_cast<std::size_t>(r)];
    pulse = {std::max(pulse.heard_ns, now_ns), 0, false, pulse.starts, {}};
  }
  sink_.send(alive, fence_.generation(), Abort{});
  for (const auto& [place, how] : std::exchange(down_, {})) {
    const bool for_good = how == ProcessEnd::Kind::lost || (!options_.replaces && how != ProcessEnd::Kind::worn);
    if (for_good) {
      give_up(place);
      quiesced_.insert(rank_of(place));
    } else {
      start_again(rank_of(place), how == ProcessEnd::Kind::suspect, now_ns);
    }
  }
}

void Coordinator::start_again(Rank rank, bool afresh, std::int64_t now_ns) {
  quiesced_.insert(rank);
  if (watched_plan_ == plan_ && stragglers_->forget(rank) && options_.on_straggler)
    options_.on_straggler({place_number(rank), 1, session_->committed(), true});  // another process
  pulses_[static_cast<std::size_t>(rank)] = {now_ns + start_may_take_ns(), 0, false, true, {}};
  sink_.restart(place_of(rank), fence_.generation(), afresh);
}

bool Coordinator::gives_up(const Loss& loss) {
  const auto ends = [&](const std::string& why) {
    end(loss.cause.in(why), exit_do_not_requeue);
    return true;
  };
  const auto failed = std::pair(loss.actor, session_->committed());
  if (!loss.actor.empty() && std::exchange(last_failed_, failed) == failed)
    return ends(fmt::format("an actor has failed twice with {} done", counted(failed.second, "step")));
  if (incident_)
    for (const std::int32_t place : incident_->lost)
      if (std::count(incident_->lost.begin(), incident_->lost.end(), place) > losses_in_incident_max)
        return ends(fmt::format("worker {} was lost {} times without an act between them, the last one", place,
                                losses_in_incident_max + 1));
  if (in_a_row_ > incidents_in_a_row_max)
    return ends(fmt::format("{} incidents without a new step between them, the last one", in_a_row_));
  // A place that dies again and again before its first act is one incident. Nothing is gained by trying on where none
  // has died, and none has acted yet.
  const Rank more = begun_ || !incident_->lost.empty() ? plan_->workers() : 0;
  if (++generations_ > more + incidents_in_a_row_max)
    return ends(fmt::format("{} generations without an act, the last one", generations_ - 1));
  return false;
}

void Coordinator::take_quiesced(Rank from, const Quiesced& quiesced) {
  if (phase_ != Phase::leaving) return;
  note_left(place_of(from), quiesced.versions, false);
  quiesced_.insert(from);
}

std::int64_t Coordinator::needs_places() const {
  if (change_) return change_->chosen.plan->workers();
  const bool may_go_back = planned_ && home_.plan != plan_;
  return may_go_back ? std::min(plan_->workers(), home_.plan->workers()) : plan_->workers();
}

bool Coordinator::lacks_places(std::int64_t now_ns) const {
  if (options_.wait_for_places_ns == 0) return false;
  const std::vector<PlaceId> left = available();
  if (left.empty()) return true;
  if (ends_early_ && options_.replan) return false;  // who is left saves what there is
  if (change_) return std::ssize(left) < needs_places();
  if (!options_.replaces) return sink_.machines_reached() < options_.machines_min;
  if (std::ssize(left) < needs_places()) return true;
  // Who alone has a part of the state may only have been cut off.
  const auto guarded = this->guarded();
  const bool guards = guarded && keepers(*guarded, machines_of(left));
  const bool has_state = begun_ || options_.left;
  return has_state && !guards && !have_state(left) && now_ns < place_wait_began_ns_.value_or(now_ns) + waits_.return_ns;
}

void Coordinator::wait_for_places(std::int64_t now_ns) {
  progressed(now_ns);  // no place has anything to do
  const auto ends = [&](const std::string& why) {
    const Status s = Status(Code::unavailable, incident_->first_line()).in(why);
    end(pause_.unsaved(s), exit_worker);
  };
  if (ends_early_) return ends("the machines that have its parameters are lost");
  if (pause_.asked())  // no place works at the steps that have begun
    return end_early("the job was asked to end while it waited for machines", now_ns);
  const double wait_s = static_cast<double>(options_.wait_for_places_ns) * 1e-9;
  if (!place_wait_began_ns_) place_wait_began_ns_ = now_ns, told_of_wait_ = false;
  constexpr std::int64_t short_ns = 1'000'000'000;  // a machine that has joined may be about to take the places
  if (now_ns >= *place_wait_began_ns_ + short_ns && !std::exchange(told_of_wait_, true)) {
    if (!are_apart() || !std::exchange(apart_->told, true))
      log_warn(fmt::format("the run has lost machines, and waits for others to join, for {:.0f} s", wait_s));
  }
  if (now_ns < *place_wait_began_ns_ + options_.wait_for_places_ns) return;
  ends(fmt::format("the run has lost machines, and too few have joined within {:.0f} s", wait_s));
}

void Coordinator::wait_for_claim(std::int64_t now_ns) {
  progressed(now_ns);  // no place has anything to do
  if (!claim_wait_began_ns_) claim_wait_began_ns_ = now_ns;
  if (now_ns < *claim_wait_began_ns_ + claim_may_take_ns()) return;
  const Status s =
      Status(Code::unavailable, incident_->first_line())
          .in(fmt::format("the store has not answered for {:.0f} s, without which no generation is entered",
                          static_cast<double>(claim_may_take_ns()) * 1e-9));
  end(pause_.unsaved(s), exit_worker);
}

void Coordinator::comes_back(PlaceId place, const WholeVersions& left, std::int64_t now_ns) {
  REQUIRE(waits_for(place), static_cast<std::int32_t>(place));
  gone_.erase(place);
  home_.left[place] = left;
  generations_ = 0;  // CR-4 (giving up) is not about machines that come and go
  std::erase(incident_->lost, static_cast<std::int32_t>(place));
  incident_->lost.push_back(static_cast<std::int32_t>(place));
  start_again(rank_of(place), false, now_ns);
}

void Coordinator::enter_places(std::int64_t now_ns) {
  if (const Status s = replan(now_ns); !s.ok()) return end(s.in(incident_->first_line()), exit_worker);
  if (checkpoints_) checkpoints_->all_left(*plan_);
  phase_ = Phase::entering;
  checkpoint_rejected_ = false;
  incident_->left_ns = now_ns;
  send_all(Enter{});
}

std::int64_t Coordinator::spare_heard_ns(PlaceId place, std::int64_t now_ns) const {
  const auto added = added_ns_.find(place);
  const std::int64_t started_ns = added == added_ns_.end() ? now_ns : added->second + waits_.start_ns;
  return std::max(started_ns, now_ns + waits_.budget_ns);  // it has a plan to read first
}

Status Coordinator::replan(std::int64_t now_ns) {
  ASSERT(down_.empty() && !loss_, down_.size());  // ranks are of the plan before
  const std::vector<PlaceId> left = available();
  std::optional<ChosenPlan> chosen;
  if (auto change = std::exchange(change_, std::nullopt)) {
    planned_ = true;
    if (change->chosen.plan->workers() <= std::ssize(left)) chosen = std::move(change->chosen);
    else log_warn(change->why + ": too few workers are left for " + change->chosen.shape);
  } else if (planned_ && home_.plan != plan_ && home_.plan->workers() <= std::ssize(left)) {
    incident_->cause += "\nthen the change was given up";
    chosen = same_shape(*home_.plan);
  }
  bool fewer = false;
  for (Rank r = 0; r < plan_->workers(); ++r) fewer |= is_gone(r);
  if (!chosen && !fewer) return {};
  const StateOn there = state_on(machines_of(left));
  const Keeps keeps = [&](const std::set<std::int32_t>& machines) { return state_on(machines) == there; };
  if (!chosen && fill(left, keeps, now_ns)) return {};
  if (!chosen && plan_->workers() <= std::ssize(left)) chosen = same_shape(*plan_);  // a spare takes the place
  if (!chosen) {
    TROUPE_ASSIGN(chosen, options_.replan(*home_.plan, std::ssize(left)));
    chosen = with_state(*std::move(chosen), left, keeps);
  }
  // Where the state lies is told by its plan: the same plan once more, for memory that is new, is another one.
  if (chosen->plan.get() == home_.plan) chosen->plan = std::make_shared<const Plan>(*chosen->plan);
  plans_.push_back(chosen->plan);
  plan_ = chosen->plan.get();
  const auto before = std::exchange(options_.places, seats(*plan_, left, keeps));
  incident_->shape = shape_ = chosen->shape;
  incident_->others = chosen->others;
  told_plan_.insert(options_.places.begin(), options_.places.end());
  const auto pulses = std::exchange(pulses_, {});
  for (const PlaceId place : options_.places) {  // one that had no rank may only just have started
    const auto had = std::find(before.begin(), before.end(), place);
    pulses_.push_back(had == before.end() ? Pulse{spare_heard_ns(place, now_ns), 0, false, true, {}}
                                          : pulses[static_cast<std::size_t>(had - before.begin())]);
  }
  quiesced_.clear();
  std::erase_if(blamed_, [](const auto& blamed) { return blamed.second.killed_ns < 0; });
  if (result_.places.size() < options_.places.size()) result_.places.resize(options_.places.size());
  log_debug(fmt::format("the job goes on as {}", chosen->shape));
  sink_.reshape(*plan_, options_.places, fence_.generation());
  return {};
}

bool Coordinator::fill(std::span<const PlaceId> left, const Keeps& keeps, std::int64_t now_ns) {
  if (plan_->workers() > std::ssize(left) || home_.plan != plan_ || guarded() || guard_rule().on()) return false;
  const std::vector<PlaceId> places = seats(*plan_, left, keeps);
  std::vector<PlaceId> newcomers;
  for (Rank r = 0; r < plan_->workers(); ++r) {
    const PlaceId before = place_of(r), now = places[static_cast<std::size_t>(r)];
    if (now == before) continue;
    const bool has_left_memory = home_.left.count(before) > 0 && home_.suspect.count(before) == 0;
    if (!is_gone(r) || has_left_memory || rank_of(now) >= 0) return false;
    newcomers.push_back(now);
  }
  const auto before = std::exchange(options_.places, places);
  if (guard_rule().on()) return options_.places = before, false;
  for (const PlaceId place : newcomers) {
    home_.left.erase(place);
    home_.suspect.erase(place);
    home_.bare.insert(place);
    unguarded_.insert(place);
    told_plan_.insert(place);
    const Rank rank = rank_of(place);
    pulses_[static_cast<std::size_t>(rank)] = {spare_heard_ns(place, now_ns), 0, false, true, {}};
    if (watched_plan_ == plan_) (void)stragglers_->forget(rank);  // its place before it may have been slow
  }
  home_.places = places;
  incident_->shape = shape_ = shape_of(*plan_);
  log_debug(fmt::format("the job goes on as {}, with {} for what it has lost", shape_,
                        counted(std::ssize(newcomers), "other worker")));
  sink_.fill(*plan_, options_.places, newcomers, fence_.generation());
  return true;
}

void Coordinator::acted(std::int64_t now_ns) {
  if (!incident_ || loss_ || phase_ != Phase::running)
    return;                 // an act of the generation that was lost counts for none
  if (are_apart()) return;  // what a place does by itself shows nothing of the others
  incident_->act_ns = now_ns;
  close_incident();
}

void Coordinator::close_incident() {
  const Incident incident = *std::exchange(incident_, std::nullopt);
  result_.incidents.push_back(incident);
  if (options_.on_incident) options_.on_incident(incident);
}

}  // namespace troupe::runtime
