#include "runtime/elastic/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "runtime/elastic/stall_text.h"

namespace troupe::runtime {

namespace {

CoordinatorOptions with_places(CoordinatorOptions options, Rank ranks) {
  if (options.places.empty())
    for (Rank r = 0; r < ranks; ++r) options.places.push_back(PlaceId{r});
  return options;
}

}  // namespace

Coordinator::Coordinator(const Plan& plan, CoordinatorOptions options, JobCheckpoints* checkpoints,
                         CoordinatorSink& sink)
    : plan_(&plan), options_(with_places(std::move(options), plan.workers())), waits_(options_.detect_ns),
      checkpoints_(checkpoints), sink_(sink), told_(options_.session, options_.recovers),
      held_checkpoints_(checkpoints ? told_.observer(*checkpoints) : nullptr), all_(options_.places),
      told_plan_(all_.begin(), all_.end()), home_{&plan, all_, {}, {}, {}} {
  const auto ranks = static_cast<std::size_t>(plan.workers());
  REQUIRE(options_.places.size() == ranks, options_.places.size(), ranks);
  REQUIRE(std::set(options_.places.begin(), options_.places.end()).size() == ranks, ranks);
  REQUIRE(options_.replaces || options_.replan, ranks);
  REQUIRE(!options_.recovers || plan.keeps_version() || (plan.keeps_copies() && options_.session.copy_every > 0),
          ranks);
  result_.places.resize(ranks);
  pulses_.resize(ranks);
  begin_session(options_.session.first_step, options_.session.sums);
  if (!options_.left) return;
  home_.left = options_.left->by_place;
  incident_ = Incident{.cause = options_.left->cause, .committed = options_.session.first_step};
}

void Coordinator::begin_session(std::int64_t version, std::optional<SumState> sums) {
  SessionOptions s = told_.options();
  s.first_step = begins_with_ = version;
  s.sums = std::move(sums);
  s.steps = options_.session.steps;  // fewer than the application has asked for, where actors have ended the run
  if (pause_.begun()) s.steps = pause_.version();
  s.on_voted = [this, told = std::move(s.on_voted)](std::int64_t step) {
    told(step);
    if (options_.recovers) sink_.remember(step + 1, session_->sums());
    guards_.made(step + 1, session_->sums());
    if (step == begins_with_) unguarded_.clear();
  };
  session_ = std::make_unique<Session>(*plan_, std::move(s), held_checkpoints_,
                                       [this](Rank to, const ToWorker& message) {
                                         sink_.send(std::span(&options_.places[to], 1), fence_.generation(), message);
                                       });
  session_->name_places([this](Rank rank) { return worker(rank); });
}

void Coordinator::started(std::int64_t now_ns) {
  last_heard_ns_ = now_ns;
  if (incident_) incident_->down_ns = incident_->last_down_ns = incident_->left_ns = now_ns;
  for (Pulse& p : pulses_) p.heard_ns = now_ns + start_may_take_ns();
  if (!over_ && phase_ == Phase::entering) send_all(Enter{});
}

void Coordinator::begin_without(std::span<const PlaceId> lost) {
  REQUIRE(options_.left && options_.replan, lost.size());
  for (const PlaceId place : lost) {
    gone_.insert(place);
    incident_->lost.push_back(static_cast<std::int32_t>(place));
  }
  // All have left the generation that the process of the job before was in.
  for (Rank r = 0; r < plan_->workers(); ++r) quiesced_.insert(r);
  phase_ = Phase::leaving;
}

Rank Coordinator::rank_of(PlaceId place) const {
  const auto found = std::find(options_.places.begin(), options_.places.end(), place);
  return found == options_.places.end() ? -1 : static_cast<Rank>(found - options_.places.begin());
}

std::string Coordinator::worker(Rank rank) const {
  return fmt::format("worker {}", static_cast<std::int32_t>(place_of(rank)));
}

// ---- events ----------------------------------------------------------------------------------------

void Coordinator::heard(PlaceId from, const ControlFrame& frame, std::int64_t now_ns) {
  const Rank rank = rank_of(from);
  // A place without a rank has nothing to do, one that is gone nothing to say.
  if (over_ || rank < 0 || is_gone(rank) || is_corrupt(from) || !fence_.admits(frame.of)) return;
  auto message = decode_from_worker(frame.message);
  if (!message.ok()) return distrust(from, message.status().in(worker(rank)), now_ns);
  pulses_[static_cast<std::size_t>(rank)].heard_ns = now_ns;
  pulses_[static_cast<std::size_t>(rank)].starts = false;
  if (const auto it = blamed_.find(from);
      it != blamed_.end() && it->second.fault == Fault::silent && it->second.killed_ns < 0)
    blamed_.erase(it);  // it speaks
  if (auto* m = std::get_if<Explained>(&*message)) {
    if (answer_until_ns_) answers_[rank] = m->text;
    if (explain_until_ns_) explanations_[rank] = std::move(m->text);  // else of a question that progress has answered
    return;
  }
  told_.at(now_ns, fence_.generation().number);
  if (auto* m = std::get_if<Progress>(&*message)) return take_progress(rank, *m, now_ns);
  progressed(now_ns);
  if (auto* m = std::get_if<Quiesced>(&*message)) take_quiesced(rank, *m);
  else if (auto* m = std::get_if<WorkerAddress>(&*message)) addresses_.emplace(rank, std::move(m->blob));
  else if (auto* m = std::get_if<Ready>(&*message)) take_ready(rank, *m);
  else if (auto* m = std::get_if<Spans>(&*message)) take_spans(rank, *m);
  else if (auto* m = std::get_if<Stopped>(&*message)) take_stopped(rank, *m, now_ns);
  else decide(from, *message, now_ns);
}

void Coordinator::distrust(PlaceId from, const Status& why, std::int64_t now_ns) {
  const Rank rank = rank_of(from);
  if (!options_.recovers || (rank >= 0 && !have_started()) || diverged_) return end(why, exit_worker);
  if (rank >= 0 && !session_->finished()) {
    home_.suspect.insert(from);  // also where it ends when it has another rank, or none
    return blame(rank, Fault::corrupt, why.message(), now_ns);
  }
  if (over_ || gone_.count(from) > 0 || stopped_.count(rank) > 0) return;
  log_warn(why.message() + ": it has no part in the job any more, and is killed");
  sink_.kill(from);
  if (rank >= 0) return void(stopped_.insert(rank));  // the results are known
  suspect_home(from, why, now_ns);
  give_up(from);
}

void Coordinator::suspect_home(PlaceId place, const Status& why, std::int64_t now_ns) {
  const bool was_trusted = home_.suspect.insert(place).second;
  const bool may_be_used = was_trusted && connected_ && home_.plan != plan_ &&
                           std::find(home_.places.begin(), home_.places.end(), place) != home_.places.end();
  if (may_be_used && recovers()) lose(-1, "", why, now_ns);
}

void Coordinator::down(PlaceId place, const ProcessEnd& ended, std::int64_t now_ns) {
  using Kind = ProcessEnd::Kind;
  const Rank rank = rank_of(place);
  if (over_ || gone_.count(place) > 0 || stopped_.count(rank) > 0) return;
  Kind kind = ended.kind;
  const auto why = blamed_.find(place);
  if (why != blamed_.end() && why->second.fault == Fault::corrupt && kind != Kind::lost) kind = Kind::suspect;
  if (kind == Kind::lost) home_.left.erase(place);  // and its memory with it
  if (rank < 0) {
    if (kind == Kind::suspect) suspect_home(place, ended.how, now_ns);
    if (why != blamed_.end()) blamed_.erase(why);
    give_up(place);
    log_warn(ended.how.message() + ": it had no part in the job, and is gone");
    return;
  }
  if (kind != Kind::lost) note_left(place, ended.left, kind == Kind::suspect);
  if (checkpoint_rejected_ && kind == Kind::refused) kind = Kind::worn;  // it could not restore it
  const bool worn = kind == Kind::worn;
  Status told = ended.how;
  if (why != blamed_.end()) {
    if (why->second.killed_ns >= 0)
      told = Status(ended.how.code(),
                    fmt::format("{}; {}{}", why->second.why,
                                kind == Kind::lost ? ended.how.message() : worker(rank) + " was killed for it",
                                why->second.report));
    if (why->second.fault == Fault::slow && kind == Kind::ordinary) kind = Kind::worn;
    blamed_.erase(why);
  } else if (suspicion_ && suspicion_->place == place && suspicion_->of_itself) {
    told = Status(ended.how.code(), ended.how.message() + ": " + suspicion_->status.message());
  }
  const Status cause = sink_.with_last_log_lines(place, told);
  if (options_.recovers && session_->finished()) {  // its results are known
    stopped_.insert(rank);
    return;
  }
  if (kind == Kind::lost && recovers() && options_.replaces && options_.wait_for_places_ns == 0) {
    lose_place(place, kind, cause, now_ns);  // it is an incident all the same
    return end(cause.in("the run ends, as a worker is lost for good: only with --replace never it goes on with fewer"),
               exit_worker);
  }
  // What a process cannot do at the start it cannot do at the next one either.
  if (!recovers() || (kind == Kind::refused && !have_started())) return end(cause, exit_worker);
  if (worn && phase_ == Phase::leaving && quiesced_.count(rank) == 0)
    return start_again(rank, false, now_ns);  // that is no loss
  lose_place(place, kind, cause, now_ns);
}

void Coordinator::poll_checkpoints() {
  if (over_) return;
  if (diverged_ && !session_->readers_left()) return end({}, exit_diverged);
  if (!checkpoints_) return;
  if (const Status s = checkpoints_->poll(); !s.ok()) end(pause_.unsaved(s), checkpoint_code());
}

void Coordinator::turn(std::int64_t now_ns) {
  told_.at(now_ns, fence_.generation().number);
  poll_checkpoints();
  if (over_) return;
  if (session_->finished()) forget_losses(now_ns);
  if (suspicion_ && now_ns >= suspicion_->until_ns) {
    const Suspicion s = *std::exchange(suspicion_, std::nullopt);
    const Status cause = sink_.with_last_log_lines(s.place, s.status);
    if (!recovers()) return end(cause, exit_worker);
    lose(rank_of(s.place), "", cause, now_ns);
  }
  if (loss_) return recover(now_ns);
  if (now_ns >= grace_ends_ns())
    return end_early(fmt::format("steps that had begun were not done {:.1f} s after the job was asked to end",
                                 static_cast<double>(options_.grace_ns) * 1e-9),
                     now_ns);
  enter_next_phase(now_ns);
  if (over_) return;
  if (change_ && phase_ == Phase::running && session_->held()) return begin_change(now_ns);
  if (all(stopped_)) told_.tell_all();
  if (!told_.contradiction().ok()) return end(told_.contradiction(), exit_worker);
  if (all(stopped_)) return end(pause_.status(), pause_.code());
  if (phase_ == Phase::leaving) {
    if (!leave_until_ns_) leave_until_ns_ = now_ns + leaving_may_take_ns();
    if (now_ns >= *leave_until_ns_) kill_who_stay(now_ns);
  }
  if (now_ns >= killed_end_at_ns()) {
    give_up_who_outlive_kills(now_ns);
    if (over_) return;
    if (loss_) return recover(now_ns);
  }
  if (now_ns >= silent_at_ns()) kill_who_are_silent(now_ns);
  if (now_ns >= last_heard_ns_ + cut_shows_after_ns()) kill_who_is_cut_off(now_ns);
  if (answer_until_ns_ && have_answered(now_ns)) kill_the_blamed(now_ns);
  if (explain_until_ns_ &&
      (now_ns >= *explain_until_ns_ || static_cast<Rank>(explanations_.size()) == plan_->workers()))
    return take_stall(now_ns);
  if (!explain_until_ns_ && !answer_until_ns_ && now_ns >= last_heard_ns_ + quiet_ns()) {
    explain_until_ns_ = now_ns + waits_.explain_ns;
    explain_quiet_ns_ = quiet_ns();
    for (const Rank r : stopped_) explanations_[r] = "  it has stopped\n";
    log_debug(fmt::format("no progress for {:.1f} s: the workers are asked what they wait for",
                          static_cast<double>(now_ns - last_heard_ns_) * 1e-9));
    send_all(ExplainAll{});
  }
}

std::int64_t Coordinator::wakes_ns() const {
  if (over_) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t stall =
      std::min({explain_until_ns_.value_or(answer_until_ns_.value_or(last_heard_ns_ + quiet_ns())), silent_at_ns(),
                grace_ends_ns(), killed_end_at_ns()});
  if (loss_) return last_heard_ns_;
  const std::int64_t leave = phase_ == Phase::leaving ? leave_until_ns_.value_or(last_heard_ns_) : stall;
  std::int64_t waited = stall;
  if (place_wait_began_ns_) {
    const bool may_return = last_heard_ns_ < *place_wait_began_ns_ + waits_.return_ns;  // as the last turn saw it
    waited = *place_wait_began_ns_ +
             (may_return ? std::min(waits_.return_ns, options_.wait_for_places_ns) : options_.wait_for_places_ns);
  }
  if (claim_wait_began_ns_) waited = std::min(waited, *claim_wait_began_ns_ + claim_may_take_ns());
  return std::min({stall, leave, suspicion_ ? suspicion_->until_ns : stall, killed_end_at_ns(), waited});
}

void Coordinator::resumed_after_stop(std::int64_t now_ns) {
  last_heard_ns_ = now_ns;  // it was not quiet: nothing is known of that time
  progressed(now_ns);
  leave_until_ns_.reset();
  for (Pulse& p : pulses_) p.heard_ns = std::max(p.heard_ns, now_ns);
  for (auto& [place, blame] : blamed_)
    if (blame.killed_ns >= 0) blame.killed_ns = now_ns;
}

void Coordinator::take_progress(Rank from, const Progress& progress, std::int64_t now_ns) {
  Pulse& pulse = pulses_[static_cast<std::size_t>(from)];
  pulse.busy = progress.busy;
  pulse.unheard = progress.unheard;
  if (std::exchange(pulse.acts, progress.acts) != progress.acts) {
    progressed(now_ns);
    acted(now_ns);
  }
  if (!progress.stuck.empty() && recovers())
    blame(from, Fault::other,
          fmt::format("{}, actor '{}': its act has not ended for {:.1f} s", worker(from), progress.stuck,
                      static_cast<double>(progress.stuck_ms) * 1e-3),
          now_ns);
}

void Coordinator::progressed(std::int64_t now_ns) {
  if (phase_ == Phase::running) longest_quiet_ns_ = std::max(longest_quiet_ns_, now_ns - last_heard_ns_);
  last_heard_ns_ = now_ns;
  explain_until_ns_.reset();
  explanations_.clear();
}

JobState Coordinator::state() const {
  JobState s;
  s.generation = fence_.generation().number;
  s.committed = session_->committed();
  s.steps = options_.session.steps;
  s.copied = session_->newest_copy();
  s.guards = guards_.on();
  if (const auto g = guarded()) s.guarded = g->version;
  const char* phases[] = {"leaves", "enters", "runs"};
  const std::string phase = phases[static_cast<int>(phase_)];
  s.phase = waits_for_places()         ? "waits for machines"
            : claim_wait_began_ns_     ? "waits for its store"
            : !begun_                  ? "begins"
            : phase_ != Phase::running ? "recovers"
            : session_->finished()     ? "ends"
            : change_                  ? "is about to change its shape"
                                       : "runs";
  s.shape = shape_;
  for (const Incident& i : result_.incidents) s.incidents += i.planned ? 0 : 1;
  if (incident_ && !incident_->planned) ++s.incidents;
  if (incident_) s.last_incident = incident_->cause;
  else if (!result_.incidents.empty()) s.last_incident = result_.incidents.back().cause;
  s.last_incident = s.last_incident.substr(0, s.last_incident.find('\n'));  // without the report of who waited
  if (phase_ == Phase::running) s.waits_for = session_->waits_for();
  for (const PlaceId place : all_) {
    const Rank rank = rank_of(place);
    JobState::Place p{static_cast<std::int32_t>(place), rank, -1, -1, "", rank >= 0 ? phase : "waits", false, -1};
    p.gone = gone_.count(place) > 0;
    if (rank >= 0) p.stage = plan_->stage_of(rank);
    if (rank >= 0) p.heard_ns = pulses_[static_cast<std::size_t>(rank)].heard_ns;
    if (rank >= 0 && watched_plan_ == plan_ && stragglers_->is_slow(rank) &&
        stragglers_->times(rank) >= Stragglers::over_at)  // below, it is about to be told of
      p.slow_times = stragglers_->times(rank);
    s.places.push_back(p);
  }
  return s;
}

// ---- messages --------------------------------------------------------------------------------------

void Coordinator::take_ready(Rank from, const Ready& ready) {
  const bool fresh = ready_.insert(from).second;
  if (incident_ && fresh) incident_->moved_bytes += ready.healed_bytes;
  if (!begun_) {
    PlaceResult& place = result_.places[from];
    place.restored_bytes = ready.restored_bytes;
    place.restore_s = ready.restore_s;
  }
}

void Coordinator::take_spans(Rank from, Spans& spans) {
  PlaceResult& place = result_.places[from];
  place.dropped_spans += spans.dropped;
  place.spans.insert(place.spans.end(), std::make_move_iterator(spans.spans.begin()),
                     std::make_move_iterator(spans.spans.end()));
}

void Coordinator::take_stopped(Rank from, const Stopped& stopped, std::int64_t now_ns) {
  if (!session_->finished())
    return distrust(place_of(from), Status(Code::internal, worker(from) + " has stopped before it was told to"),
                    now_ns);
  PlaceResult& place = result_.places[from];
  place.peak_bytes = stopped.peak_bytes;
  place.file_bytes = stopped.file_bytes;
  place.shared_bytes = stopped.shared_bytes;
  place.sent_bytes = stopped.sent_bytes;
  place.received_bytes = stopped.received_bytes;
  result_.missed_drills.insert(result_.missed_drills.end(), stopped.missed.begin(), stopped.missed.end());
  stopped_.insert(from);
}

void Coordinator::decide(PlaceId from, const FromWorker& message, std::int64_t now_ns) {
  // After the end, peers that close their connections are no failures.
  if (session_->finished() || (suspicion_ && !is_saved(message))) return;
  const auto* failed = std::get_if<WorkerFailed>(&message);
  if (!failed && phase_ != Phase::running)  // the session is that of the generation before
    return distrust(from, Status(Code::internal, worker(rank_of(from)) + " tells of a run that has not begun"), now_ns);
  if (!failed) acted(now_ns);
  const Status s = session_->handle(rank_of(from), message);
  if (const auto end = session_->ended_by_actors(); end && *end < options_.session.steps) {
    log_debug(fmt::format("the actors that end the run have nothing left: it ends with step {}", *end));
    options_.session.steps = *end;
    if (pause_.begun() && pause_.version() >= *end) pause_.ends_with_the_last_step();
    else if (checkpoints_ && !pause_.begun()) checkpoints_->end_with(*end);
  }
  if (const auto* closed = std::get_if<Closed>(&message); s.ok() && closed && closed->program == plan_->step_program())
    take_busy(rank_of(from), closed->busy_ns, now_ns);
  if (s.ok()) return;
  if (session_->diverged() && !diverged_) {
    // Versions before are not known to be bad: poll_checkpoints() waits for their saves and evaluations under way.
    diverged_ = s;
    log_debug(s.message() + "; the job ends when the programs that read versions before have closed");
  } else if (s.code() == Code::unavailable) {
    suspicion_ = {from, s, now_ns + waits_.culprit_ns, false};
  } else if (failed && failed->actor.empty() && recovers() && have_started() && s.code() != Code::damaged) {
    suspicion_ = {from, s, now_ns + waits_.culprit_ns, true};  // the process itself, which is about to end
  } else if (const Status cause = sink_.with_last_log_lines(from, s);
             failed && s.code() != Code::damaged && recovers() && have_started()) {
    lose(rank_of(from), failed->actor, cause, now_ns);
  } else if (failed && s.code() == Code::damaged && recovers() && have_started() && incident_ && checkpoints_ &&
             phase_ == Phase::entering && (checkpoint_rejected_ || checkpoints_->reject_newest(s))) {
    if (!std::exchange(checkpoint_rejected_, true)) lose(-1, "", cause, now_ns);  // an older one may be whole
  } else if (!failed && s.code() == Code::internal) {
    distrust(from, cause, now_ns);
  } else {
    end(cause, s.code() == Code::damaged ? exit_checkpoint : exit_worker);
  }
}

void Coordinator::take_busy(Rank from, std::int64_t busy_ns, std::int64_t now_ns) {
  if (plan_->workers() > options_.places_at_once) return;
  for (const Stragglers::Change& c : stragglers_->voted(from, busy_ns, now_ns)) {
    const std::string how = fmt::format("{} takes {:.1f} times as long to compute as its peers, or as it did at first",
                                        worker(c.rank), c.times);
    log_warn(how + (c.over ? ": it is slow no more" : ": the job is as slow as it is"));
    if (options_.on_straggler) options_.on_straggler({place_number(c.rank), c.times, session_->committed(), c.over});
  }
}

bool Coordinator::is_saved(const FromWorker& message) const {
  const auto* closed = std::get_if<Closed>(&message);
  return closed && closed->program == plan_->program("snapshot");
}

// ---- phases ----------------------------------------------------------------------------------------

void Coordinator::enter_next_phase(std::int64_t now_ns) {
  if (phase_ == Phase::leaving && all(quiesced_)) {
    if (lacks_places(now_ns)) return wait_for_places(now_ns);
    place_wait_began_ns_.reset();
    if (!claimed_) return wait_for_claim(now_ns);
    claim_wait_began_ns_.reset();
    enter_places(now_ns);
  }
  if (over_) return;
  if (phase_ == Phase::entering && !connected_ && std::ssize(addresses_) == plan_->workers()) connect_places(now_ns);
  if (over_) return;
  if (phase_ == Phase::entering && all(ready_)) run(now_ns);
  // A place that is ready holds its state, but says so in memory only once the run has begun there; its vote proves it
  // (CO-2 votes). Until then the state lies where it has lain.
  const bool moves = home_.plan != plan_ || !home_.bare.empty();
  if (phase_ == Phase::running && moves && session_->committed() > begins_with_) settle();
}

void Coordinator::connect_places(std::int64_t now_ns) {
  Connect connect{{}, -1, options_.restore};
  if (incident_) connect = choose_state(now_ns);
  if (over_) return;
  connected_ = true;
  connect.addresses = addresses_;
  connect.guard = guard_rule();
  if (guards_.on() && !connect.guard.on())
    log_info("guards: none are needed, as no machine alone has a part of the state");
  guards_.begin(connect.guard, begins_with_);
  log_debug("all workers have an address and connect");
  send_all(connect);
}

void Coordinator::run(std::int64_t now_ns) {
  log_debug(fmt::format("all workers are ready: version {} begins", session_->committed()));
  if (!std::exchange(begun_, true) && options_.on_ready) options_.on_ready();
  phase_ = Phase::running;
  if (watched_plan_ == plan_) stragglers_->begin_generation();
  else stragglers_.emplace(*plan_), watched_plan_ = plan_;
  if (home_.plan == plan_) settle();  // else with the first commit
  if (incident_) incident_->ready_ns = now_ns;
  if (options_.recovers) sink_.remember(session_->committed(), session_->sums());
  guards_.made(session_->committed(), session_->sums());
  if (Status s = session_->begin(); !s.ok()) return end(std::move(s), exit_worker);
  hold_for_change();
}

// ---- the end ---------------------------------------------------------------------------------------

void Coordinator::interrupt(const std::string& why, int code, std::int64_t now_ns) {
  const std::int64_t version = session_->earliest_end();
  const bool can_pause = checkpoints_ && begun_;
  if (pause_.asked() || !can_pause || diverged_) return end(Status(Code::interrupted, why), code);
  pause_.begin(why, code, version, options_.session.steps, now_ns);
  if (pause_.begun()) checkpoints_->end_with(version), session_->pause_at(version);
  if (options_.on_pause) options_.on_pause(why, version);
}

void Coordinator::end(Status status, int code) {
  if (over_) return;
  over_ = true;
  told_.tell_all();
  if (incident_) close_incident();
  if (diverged_) {
    if (!status.ok() && code != exit_diverged)
      log_warn("training has diverged, and the wait for what reads steps before ends early: " + status.message());
    status = *diverged_, code = exit_diverged;
  }
  result_.status = std::move(status);
  result_.exit_code = result_.status.ok() ? exit_ok : code;
}

void Coordinator::finish_checkpoints() {
  if (!checkpoints_) return;
  const Status s = checkpoints_->finish();
  const int code = checkpoint_code();
  if (s.ok() || (!result_.status.ok() && result_.exit_code != exit_interrupted && result_.exit_code != pause_.code()))
    return;
  // A job that a signal has paused says exit_interrupted where its last checkpoint is saved, or a second signal has
  // ended it before; never where a save has failed.
  if (result_.status.ok()) result_.status = s, result_.exit_code = code;
  else if (pause_.begun()) result_.status = pause_.unsaved(s), result_.exit_code = code;
}

JobResult Coordinator::take_result() {
  result_.params_hash = session_->params_hash();
  result_.parameters = session_->parameters();
  result_.committed_steps = session_->committed();
  result_.void_steps = told_.void_steps();
  result_.late_messages = fence_.dropped();
  return std::move(result_);
}

}  // namespace troupe::runtime
