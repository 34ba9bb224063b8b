#include "runtime/launch/sim_cluster.h"

#include <algorithm>

#include "devices/base/check.h"
#include "runtime/launch/sim_job.h"

namespace troupe::runtime {

SimJob::SimJob(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
               SessionOptions session, const SimClusterOptions& options)
    : plan_(plan), ops_(ops), user_actors_(user_actors), options_(options), network_(loop_.clock(), network_options()),
      places_(plan.workers() + options.spares),
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

comm::SimNetworkOptions SimJob::network_options() {
  comm::SimNetworkOptions o;
  o.ranks = plan_.workers() + options_.spares;
  o.link = options_.link;
  o.seed = options_.seed;
  o.jitter_ns = options_.seed ? 300'000 : 0;
  o.on_delivery = [this](const comm::SimDelivery& d) {
    digest_.add_all(d.at_ns, d.from, d.to);
    digest_.add(std::as_bytes(std::span(&d.header, 1)));
    digest_.add(d.payload);
  };
  return o;
}

CoordinatorOptions SimJob::coordinator_options(SessionOptions session) {
  CoordinatorOptions o;
  session.on_step = [this, told = std::move(session.on_step)](const StepResult& r) {
    run_.steps.push_back(r);
    run_.told_ns.push_back(loop_.now_ns());
    if (told) told(r);
  };
  o.session = std::move(session);
  o.on_ready = [this] { run_.begun_ns = loop_.now_ns(); };
  o.stall_s = options_.stall_s;
  o.recovers = options_.recovers;
  o.restore = options_.restore;
  o.replan = options_.replan;
  o.replaces = !o.replan;
  o.guard_within = options_.guard_within;
  return o;
}

void SimJob::after(std::int64_t ns, Rank place, std::function<void()> f) {
  at_place(loop_.now_ns() + ns + random_ns(jitter_ns), place, [this, place, f = std::move(f)] {
    if (places_[place].state == SimPlace::State::runs) f();
  });
}

void SimJob::at_place(std::int64_t ns, Rank place, std::function<void()> f) {
  loop_.at(ns, [this, place, of = places_[place].process, f = std::move(f)]() mutable {
    if (places_[place].process != of) return;
    if (loop_.now_ns() < places_[place].paused_until_ns)
      return at_place(places_[place].paused_until_ns, place, std::move(f));
    f();
  });
}

void SimJob::send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) {
  const bool order = std::holds_alternative<BeginRun>(message) || std::holds_alternative<CommitStep>(message);
  const ControlFrame frame{of, encode(message)};
  for (const PlaceId place : to) {
    const auto r = static_cast<Rank>(place);
    if (order) places_[r].order = message;
    digest_.add_all(loop_.now_ns(), r, of.number);
    digest_.add(frame.message);
    at_place(arrival_ns(places_[r].to_ns), r, [this, r, frame] { arrive(r, frame); });
  }
}

void SimJob::hello(PlaceId place, JobGeneration of) {
  const auto& places = coordinator_.places();
  Hello hello;
  hello.rank = static_cast<Rank>(std::find(places.begin(), places.end(), place) - places.begin());
  shapes_.push_back({&coordinator_.plan(), places});
  places_[static_cast<std::size_t>(place)].told_shape = &shapes_.back();
  send(std::span(&place, 1), of, hello);
}

void SimJob::arrive(Rank r, const ControlFrame& frame) {
  SimPlace& place = places_[r];
  if (place.state != SimPlace::State::runs || place.cut_off) return digest_.add_all(loop_.now_ns(), r, 0);
  const JobGeneration own = place.fence.generation();
  const bool taken = place.fence.follows(frame.of);
  digest_.add_all(loop_.now_ns(), r, taken ? 2 : 1);
  if (!taken && options_.fenced) return;
  auto message = decode_to_worker(frame.message);
  ASSERT(message.ok(), message.status().message());
  if (own != JobGeneration{} && own != frame.of && options_.fenced)  // as in Control::next
    ASSERT(std::holds_alternative<Abort>(*message), r, own.number, frame.of.number);
  if (const auto* hello = std::get_if<Hello>(&*message)) {
    place.rank = hello->rank;
    place.shape = place.told_shape;
    if (options_.recovers && !std::exchange(place.beats, true)) beat(r);
    return;
  }
  if (std::holds_alternative<Abort>(*message)) {
    leave(r);
  } else if (std::holds_alternative<Enter>(*message)) {
    after(opening_ns, r, [this, r, of = place.fence.generation()] {
      if (places_[r].fence.generation() == of) open(r);  // else it leaves
    });
  } else if (std::holds_alternative<Connect>(*message)) {
    place.connected = true;
    after(making_ns, r, [this, r, of = place.fence.generation(), connect = std::get<Connect>(*message)] {
      if (places_[r].fence.generation() == of) make_worker(r, connect);
    });
  } else if (std::holds_alternative<Stop>(*message)) {
    place.worker->stop();
    after(ending_ns, r, [this, r, of = place.fence.generation()] {
      tell_coordinator(r, of, Stopped{});
      exit(r);
    });
  } else if (place.worker) {
    place.worker->handle(*std::move(message));
  } else if (place.connected) {
    place.early.push_back(*std::move(message));
  } else {
    ASSERT(std::holds_alternative<ExplainAll>(*message), r);
    tell_coordinator(r, place.fence.generation(), Explained{"waits for the addresses of its peers\n"});
  }
}

void SimJob::tell_coordinator(Rank from, JobGeneration of, FromWorker message) {
  SimPlace& place = places_[from];
  if (place.state != SimPlace::State::runs || place.cut_off) return;
  if (const auto* closed = std::get_if<Closed>(&message); closed && closed->program == place.shape->plan->step_program)
    place.vote = *closed;
  const auto* failed = std::get_if<WorkerFailed>(&message);
  carry(from, {of, encode(message)}, failed && failed->status.code() == Code::unavailable);
}

void SimJob::carry(Rank from, ControlFrame frame, bool suspicion) {
  digest_.add_all(loop_.now_ns(), from, frame.of.number);
  digest_.add(frame.message);
  places_[from].from_ns = std::max(places_[from].from_ns, places_[from].paused_until_ns);
  loop_.at(arrival_ns(places_[from].from_ns),
           [this, from, of = places_[from].process, suspicion, frame = std::move(frame)]() mutable {
             ASSERT(places_[from].process == of, from);  // the end of a process is told after all that it has said
             digest_.add_all(loop_.now_ns(), from, places_[from].cut_off);
             if (places_[from].cut_off) return;
             reach([this, from, suspicion, frame = std::move(frame)]() mutable {
               run_.suspected |= suspicion && !told_down_ && !coordinator_.over() && !coordinator_.session().finished();
               if (++run_.messages == options_.stop_after)
                 coordinator_.end(Status(Code::unavailable, "the simulated machines stop"), exit_worker);
               if (!options_.fenced) frame.of = coordinator_.generation();
               coordinator_.heard(PlaceId{from}, frame, loop_.now_ns());
             });
           });
}

void SimJob::reach(std::function<void()> what) {
  const std::int64_t most_ns = options_.seed % 4 == 1 ? batch_ns : options_.seed % 4 == 3 ? long_batch_ns : 0;
  if (reached_.empty()) takes_ns_ = loop_.now_ns() + (most_ns > 0 ? random_ns(most_ns) : 0);
  reached_.push_back(std::move(what));
}

void SimJob::cut(Rank a, Rank b) {
  network_.cut(a, b);
  network_.cut(b, a);
}

void SimJob::heal(Rank a, Rank b) {
  network_.heal(a, b);
  network_.heal(b, a);
}

void SimJob::drain() {
  while (scheduler_.has_job()) {
    if (options_.seed) {
      auto& jobs = scheduler_.jobs;
      std::swap(jobs.front(), jobs[philox(options_.seed, ++picks_, 1)[0] % jobs.size()]);
    }
    scheduler_.run_once();
  }
}

void SimJob::turn() {
  drain();
  while (fault_ < options_.faults.size() && options_.faults[fault_].at_event <= run_.events) inject(fault_++);
  drain();
  const auto local = loop_.next_due_ns(), net = network_.next_due_ns();
  const std::int64_t wakes = reached_.empty() ? coordinator_.wakes_ns() : takes_ns_;
  ++run_.events;
  if (net && (!local || *net <= *local) && *net <= wakes) {
    loop_.advance_to(std::max(*net, loop_.now_ns()));
    network_.run_one(loop_.now_ns());
  } else if (local && *local <= wakes) {
    loop_.run_one();
  } else {
    loop_.advance_to(wakes);
  }
  if (!reached_.empty() && loop_.now_ns() < takes_ns_) return;  // the coordinator has other work
  for (const auto& what : std::exchange(reached_, {})) what();
  coordinator_.turn(loop_.now_ns());
}

void SimJob::close() {
  for (auto& p : places_)
    if (p.worker) p.worker->stop();
  drain();
  const auto each = [this](auto f) {
    for (SimProcess& p : places_) f(p);
    for (SimProcess& p : dead_) f(p);
  };
  each([](SimProcess& p) { p.worker.reset(); });
  each([](SimProcess& p) { p.device.reset(); });
  each([](SimProcess& p) { p.transport.reset(); });
  drain();
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
