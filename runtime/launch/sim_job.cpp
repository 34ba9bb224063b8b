#include "runtime/launch/sim_job.h"

#include <algorithm>

#include "devices/base/check.h"

namespace troupe::runtime {

SimJob::SimJob(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
               SessionOptions session, const SimClusterOptions& options)
    : SimProcesses(ops, user_actors, options, plan.workers() + options.spares), plan_(plan),
      coordinator_(plan, coordinator_options(std::move(session)), options.snapshots, *this) {
  coordinator_.enter(options_.generation);
  const auto places = static_cast<Rank>(places_.size());
  for (Rank spare = plan.workers(); spare < places; ++spare) coordinator_.add_place(PlaceId{spare}, 0);
  REQUIRE(options_.machines.empty() || std::ssize(options_.machines) == places, options_.machines.size(), places);
  for (const SimFault& f : options_.faults) {
    const Rank end = f.kind == SimFault::Kind::change ? static_cast<Rank>(options_.changes.size()) : places;
    REQUIRE(f.place >= 0 && f.place < end, f.place);
    REQUIRE(!SimFault::is_of_two(f.kind) || (f.peer >= 0 && f.peer < places && f.peer != f.place), f.peer);
  }
  std::stable_sort(options_.faults.begin(), options_.faults.end(),
                   [](const SimFault& a, const SimFault& b) { return a.at_event < b.at_event; });
}

SimOutcome SimJob::run() {
  for (const PlaceId place : coordinator_.places()) hello(place, coordinator_.generation());
  coordinator_.started(loop_.now_ns());
  while (!coordinator_.over()) turn();
  coordinator_.finish_checkpoints();
  run_.virtual_ns = loop_.now_ns();
  run_.params_hash = coordinator_.session().params_hash();
  run_.sums = coordinator_.session().sums();
  for (const SimPlace& p : places_) run_.late_orders += p.fence.dropped();
  for (const SimProcess& p : dead_) run_.late_orders += p.fence.dropped();
  JobResult result = coordinator_.take_result();
  digest_.add_all(loop_.now_ns(), result.exit_code, name_hash(result.status.message()));
  run_.digest = digest_.value();
  for (const SimPlace& p : places_)
    if (options_.at_end && p.worker) options_.at_end(p.rank, *p.worker);
  close();
  return {std::move(result), std::move(run_)};
}

CoordinatorOptions SimJob::coordinator_options(SessionOptions session) {
  CoordinatorOptions o;
  session.on_step = [this, told = std::move(session.on_step)](const StepResult& r) {
    run_.steps.push_back(r);
    run_.steps.back().reports.clear();
    run_.told_ns.push_back(loop_.now_ns());
    if (told) told(r);
  };
  o.session = std::move(session);
  o.on_ready = [this] {
    run_.begun_ns = loop_.now_ns();
    if (options_.on_ready) options_.on_ready();
  };
  o.stall_s = options_.stall_s;
  o.recovers = options_.recovers;
  o.restore = options_.restore;
  o.replan = options_.replan;
  o.replaces = !o.replan;
  o.guard_within = options_.guard_within;
  o.guard_window_most = options_.guard_window_most;
  return o;
}

void SimJob::send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) {
  const bool order = std::holds_alternative<BeginRun>(message) || std::holds_alternative<CommitStep>(message);
  const ControlFrame frame{of, encode(message)};
  for (const PlaceId place : to) {
    const auto r = static_cast<Rank>(place);
    if (order) places_[r].order = message;
    SimProcesses::send(r, frame);
  }
}

void SimJob::hello(PlaceId place, JobGeneration of) {
  Hello hello;
  hello.rank = coordinator_.rank_of(place);
  SimPlace& told = places_[static_cast<std::size_t>(place)];
  told.told_plan = &coordinator_.plan();
  told.told_rank = hello.rank;
  send(std::span(&place, 1), of, hello);
}

void SimJob::heard(Rank from, ControlFrame frame, bool suspicion) {
  reach([this, from, suspicion, frame = std::move(frame)]() mutable {
    run_.suspected |= suspicion && !told_down_ && !coordinator_.over() && !coordinator_.session().finished();
    if (++run_.messages == options_.stop_after)
      coordinator_.end(Status(Code::unavailable, "the simulated machines stop"), exit_worker);
    if (!options_.fenced) frame.of = coordinator_.generation();
    coordinator_.heard(PlaceId{from}, frame, loop_.now_ns());
  });
}

void SimJob::reaped(Rank r, ProcessEnd end, bool killed) {
  reach([this, r, killed, end = std::move(end)] {
    told_down_ |= killed;
    coordinator_.down(PlaceId{r}, end, loop_.now_ns());
  });
}

Buffer* SimJob::memory_named(const std::string& name, Rank) {
  const SimPlace& other = places_[static_cast<Rank>(std::stoi(name))];
  return other.home ? other.home.get() : other.memory.get();
}

void SimJob::link(Rank r) {
  for (Rank peer = 0; peer < static_cast<Rank>(places_.size()); ++peer) heal(r, peer);
}

void SimJob::restart(PlaceId id, JobGeneration of, bool afresh) {
  const Rank r = static_cast<Rank>(id);
  ASSERT(places_[r].state == SimPlace::State::gone, r);
  ++run_.restarts;
  start_again(r, afresh);
  hello(id, of);
}

void SimJob::reshape(const Plan&, std::span<const PlaceId> places, JobGeneration of) {
  for (const PlaceId id : places) {
    renew_memory(static_cast<Rank>(id));
    hello(id, of);
  }
}

void SimJob::fill(const Plan&, std::span<const PlaceId>, std::span<const PlaceId> newcomers, JobGeneration of) {
  for (const PlaceId id : newcomers) {
    const Rank r = static_cast<Rank>(id);
    ASSERT(!places_[r].home, r);  // all have settled
    renew_memory(r);
    dropped_.push_back(std::move(places_[r].home));
    places_[r].home_guards.reset();
    hello(id, of);
  }
}

void SimJob::dismiss(PlaceId id) {
  if (places_[static_cast<Rank>(id)].state != SimPlace::State::runs) return;
  ++run_.dismissed;
  kill(id);
}

void SimJob::settled(std::span<const PlaceId>) {
  for (SimPlace& place : places_) place.home.reset(), place.home_guards.reset();
}

void SimJob::inject(std::size_t number) {
  const SimFault& fault = options_.faults[number];
  if (run_.fault_ns < 0) run_.fault_ns = loop_.now_ns();
  digest_.add_all(loop_.now_ns(), fault.place, static_cast<int>(fault.kind), fault.peer);
  if (hits(fault)) run_.hits.push_back({number, loop_.now_ns()});
}

bool SimJob::hits(const SimFault& fault) {
  SimPlace& place = places_[fault.kind == SimFault::Kind::change ? 0 : fault.place];
  const bool lives = place.lives();
  const bool both_live = lives && places_[fault.peer].lives();
  switch (fault.kind) {
    case SimFault::Kind::kill: return SimProcesses::kill(fault.place, false), lives;
    case SimFault::Kind::crash: return SimProcesses::kill(fault.place, true), lives;
    case SimFault::Kind::hang: return hang(fault.place);
    case SimFault::Kind::cut: return cut(fault.place, fault.peer), both_live;
    case SimFault::Kind::cut_one_way: return network_.cut(fault.place, fault.peer), both_live;
    case SimFault::Kind::cut_off: return !std::exchange(place.cut_off, true) && lives;
    case SimFault::Kind::fails: return fail(fault.place);
    case SimFault::Kind::blip: return both_live && blip(fault.place, fault.peer);
    case SimFault::Kind::pause:
      return pause(fault.place,
                   SimFault::pause_least_ns + random_ns(SimFault::pause_most_ns - SimFault::pause_least_ns));
    case SimFault::Kind::stale_vote: {
      if (!place.vote || !lives) return false;  // its end is told after all that it has said
      Closed vote = *place.vote;
      vote.step = coordinator_.committed();
      for (Report& r : vote.reports) {
        r.step = vote.step;
        if (r.kind == Report::Kind::loss && !r.values.empty()) r.values[0] += 1;
      }
      carry(fault.place, {before(), encode(FromWorker(std::move(vote)))});
      return true;
    }
    case SimFault::Kind::stale_order: {
      if (!place.order || !lives) return false;
      const PlaceId id{fault.place};
      const ToWorker order = *place.order;
      send(std::span(&id, 1), before(), order);
      return true;
    }
    case SimFault::Kind::change: {
      const bool taken = coordinator_.change(options_.changes[fault.place], "asked to change", loop_.now_ns()).ok();
      run_.changes += taken ? 1 : 0;
      return taken;
    }
    case SimFault::Kind::interrupt:
      coordinator_.interrupt("interrupted", exit_interrupted, loop_.now_ns());
      return true;
  }
  return false;
}

void SimJob::turn() {
  drain();
  while (fault_ < options_.faults.size() && options_.faults[fault_].at_event <= run_.events) inject(fault_++);
  drain();
  advance(coordinator_.wakes_ns());
  if (!take_reached()) return;
  coordinator_.turn(loop_.now_ns());
}

SimOutcome simulate_job(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                        SessionOptions session, const SimClusterOptions& options) {
  return SimJob(plan, ops, user_actors, std::move(session), options).run();
}

Expected<SimRun> run_simulated(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                               SessionOptions session, const SimClusterOptions& options) {
  SimOutcome out = simulate_job(plan, ops, user_actors, std::move(session), options);
  TROUPE_TRY(out.job.status);
  return std::move(out.run);
}

}  // namespace troupe::runtime
