#include "runtime/launch/sim_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <functional>
#include <span>

#include "devices/base/check.h"
#include "devices/base/philox.h"
#include "runtime/launch/sim_place.h"

namespace troupe::runtime {

namespace {

struct TestingConfig : caf::actor_system_config {
  TestingConfig() { set("scheduler.policy", caf::atom("testing")); }
};

class SimJob final : private CoordinatorSink {
 public:
  SimJob(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors, SessionOptions session,
         const SimClusterOptions& options)
      : plan_(plan), ops_(ops), user_actors_(user_actors), options_(options),
        network_(loop_.clock(), network_options()), places_(plan.workers()),
        coordinator_(plan, coordinator_options(std::move(session)), options.snapshots, *this) {
    coordinator_.enter(options_.generation);
    for (const SimFault& f : options_.faults) {
      REQUIRE(f.place >= 0 && f.place < plan.workers(), f.place);
      REQUIRE(f.kind != SimFault::Kind::cut || (f.peer >= 0 && f.peer < plan.workers() && f.peer != f.place), f.peer);
    }
    std::stable_sort(options_.faults.begin(), options_.faults.end(),
                     [](const SimFault& a, const SimFault& b) { return a.at_event < b.at_event; });
  }

  SimOutcome run() {
    coordinator_.started(loop_.now_ns());
    for (const PlaceId place : coordinator_.places()) {
      Hello hello;
      hello.rank = static_cast<Rank>(place);
      send(std::span(&place, 1), options_.generation, hello);
    }
    while (!coordinator_.over()) turn();
    coordinator_.finish_checkpoints();
    run_.virtual_ns = loop_.now_ns();
    run_.params_hash = coordinator_.session().params_hash();
    run_.sums = coordinator_.session().sums();
    for (const SimPlace& p : places_) run_.late_orders += p.fence.dropped();
    JobResult result = coordinator_.take_result();
    digest_.add_all(loop_.now_ns(), result.exit_code, name_hash(result.status.message()));
    run_.digest = digest_.value();
    for (Rank r = 0; r < plan_.workers(); ++r)
      if (options_.at_end && places_[r].worker) options_.at_end(r, *places_[r].worker);
    close();
    return {std::move(result), std::move(run_)};
  }

 private:
  /// Between the coordinator and a worker: neither handles a message inside the other's call.
  static constexpr std::int64_t control_ns = 20'000;
  /// A place opens its transport, makes its worker, ends it.
  static constexpr std::int64_t opening_ns = 10'000, making_ns = 30'000, ending_ns = 10'000;
  static constexpr std::int64_t reaped_ns = 100'000;
  /// Each of these is longer by a random time, where the run has a seed; the last one in every fourth run for long.
  static constexpr std::int64_t jitter_ns = 200'000, reaped_jitter_ns = 3'000'000, long_reaped_jitter_ns = 600'000'000;

  comm::SimNetworkOptions network_options() {
    comm::SimNetworkOptions o;
    o.ranks = plan_.workers();
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

  CoordinatorOptions coordinator_options(SessionOptions session) {
    CoordinatorOptions o;
    session.on_step = [this, told = std::move(session.on_step)](const StepResult& r) {
      run_.steps.push_back(r);
      if (told) told(r);
    };
    o.session = std::move(session);
    o.stall_s = options_.stall_s;
    return o;
  }

  std::int64_t random_ns(std::int64_t most) {
    return options_.seed ? static_cast<std::int64_t>(philox(options_.seed, ++draws_, 2)[0]) % (most + 1) : 0;
  }
  /// Runs `f` after about `ns`, if the place's process still runs then.
  void after(std::int64_t ns, Rank place, std::function<void()> f) {
    loop_.at(loop_.now_ns() + ns + random_ns(jitter_ns), [this, place, f = std::move(f)] {
      if (places_[place].state == SimPlace::State::runs) f();
    });
  }

  // ---- control messages -----------------------------------------------------------------------------

  /// When a message that is sent now arrives, behind the one before it.
  std::int64_t arrival_ns(std::int64_t& last_ns) {
    return last_ns = std::max(last_ns, loop_.now_ns() + control_ns + random_ns(jitter_ns));
  }

  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) override {
    const bool order = std::holds_alternative<BeginRun>(message) || std::holds_alternative<CommitStep>(message);
    const ControlFrame frame{of, encode(message)};
    for (const PlaceId place : to) {
      const auto r = static_cast<Rank>(place);
      if (order) places_[r].order = message;
      digest_.add_all(loop_.now_ns(), r, of.number);
      digest_.add(frame.message);
      loop_.at(arrival_ns(places_[r].to_ns), [this, r, frame] { arrive(r, frame); });
    }
  }
  Status with_last_log_lines(PlaceId, const Status& status) override { return status; }

  /// At a place, as in its process (worker_process.cpp).
  void arrive(Rank r, const ControlFrame& frame) {
    SimPlace& place = places_[r];
    if (place.state != SimPlace::State::runs || place.cut_off) return digest_.add_all(loop_.now_ns(), r, 0);
    const bool taken = place.fence.follows(frame.of);
    digest_.add_all(loop_.now_ns(), r, taken ? 2 : 1);
    if (!taken && options_.fenced) return;
    auto message = decode_to_worker(frame.message);
    ASSERT(message.ok(), message.status().message());
    if (std::holds_alternative<Hello>(*message)) {
      after(opening_ns, r, [this, r] { open(r); });
    } else if (std::holds_alternative<Connect>(*message)) {
      place.connected = true;
      after(making_ns, r, [this, r] { make_worker(r); });
    } else if (std::holds_alternative<Stop>(*message)) {
      place.worker->stop();
      after(ending_ns, r, [this, r] { tell_coordinator(r, Stopped{}); });
    } else if (place.worker) {
      place.worker->handle(*std::move(message));
    } else if (place.connected) {
      place.early.push_back(*std::move(message));
    } else {
      ASSERT(std::holds_alternative<ExplainAll>(*message), r);
      tell_coordinator(r, Explained{"waits for the addresses of its peers\n"});
    }
  }

  void tell_coordinator(Rank from, FromWorker message) {
    SimPlace& place = places_[from];
    if (place.state != SimPlace::State::runs || place.cut_off) return;
    if (const auto* closed = std::get_if<Closed>(&message); closed && closed->program == plan_.step_program)
      place.vote = *closed;
    const auto* failed = std::get_if<WorkerFailed>(&message);
    carry(from, {options_.generation, encode(message)}, failed && failed->status.code() == Code::unavailable);
  }

  /// `suspicion`: it says that a peer is lost.
  void carry(Rank from, ControlFrame frame, bool suspicion = false) {
    digest_.add_all(loop_.now_ns(), from, frame.of.number);
    digest_.add(frame.message);
    loop_.at(arrival_ns(places_[from].from_ns), [this, from, suspicion, frame = std::move(frame)]() mutable {
      digest_.add_all(loop_.now_ns(), from, places_[from].cut_off);
      if (places_[from].cut_off) return;
      run_.suspected |= suspicion && !told_down_ && !coordinator_.over() && !coordinator_.session().finished();
      if (++run_.messages == options_.stop_after)
        coordinator_.end(Status(Code::unavailable, "the simulated machines stop"), exit_worker);
      if (!options_.fenced) frame.of = options_.generation;
      coordinator_.heard(PlaceId{from}, frame, loop_.now_ns());
    });
  }

  // ---- places ---------------------------------------------------------------------------------------

  void open(Rank r) {
    SimPlace& place = places_[r];
    place.transport = network_.open(r, options_.generation.job, options_.generation.number);
    tell_coordinator(r, WorkerAddress{"simulated"});
  }

  void make_worker(Rank r) {
    SimPlace& place = places_[r];
    place.acts = std::make_unique<ActsOf>(digest_, r);
    place.device = std::make_unique<SimDevice>(loop_);
    WorkerEnv env;
    env.system = &system_;
    env.clock = &loop_.clock();
    env.device = place.device.get();
    env.transport = place.transport.get();
    env.trace = place.acts.get();
    env.ops = &ops_;
    env.user_actors = &user_actors_;
    env.generation = options_.generation;
    env.run_kernels = options_.run_kernels;
    env.storage = options_.storage;
    env.save = options_.save;
    env.restore = options_.restore;
    env.send = [this, r](FromWorker message) { tell_coordinator(r, std::move(message)); };
    auto worker = Worker::create(plan_, r, std::move(env));
    if (!worker.ok()) return coordinator_.end(worker.status().in(fmt::format("worker {}", r)), exit_worker);
    place.worker = *std::move(worker);
    place.worker->start();
    for (ToWorker& message : place.early) place.worker->handle(std::move(message));
    place.early.clear();
  }

  void inject(const SimFault& fault) {
    SimPlace& place = places_[fault.place];
    if (run_.fault_ns < 0) run_.fault_ns = loop_.now_ns();
    digest_.add_all(loop_.now_ns(), fault.place, static_cast<int>(fault.kind), fault.peer);
    switch (fault.kind) {
      case SimFault::Kind::kill: return kill(fault.place);
      case SimFault::Kind::hang:
        if (place.state == SimPlace::State::gone) return;
        place.state = SimPlace::State::hangs;
        if (place.device) place.device->hang();
        for (Rank peer = 0; peer < plan_.workers(); ++peer) cut(fault.place, peer);
        return;
      case SimFault::Kind::cut: return cut(fault.place, fault.peer);
      case SimFault::Kind::cut_off: place.cut_off = true; return;
      case SimFault::Kind::stale_vote: {
        if (!place.vote) return;
        Closed vote = *place.vote;
        vote.step = coordinator_.committed();
        for (Report& r : vote.reports) {
          r.step = vote.step;
          if (r.kind == Report::Kind::loss && !r.values.empty()) r.values[0] += 1;
        }
        return carry(fault.place, {before(), encode(FromWorker(std::move(vote)))});
      }
      case SimFault::Kind::stale_order:
        if (place.order) send(std::span(&coordinator_.places()[fault.place], 1), before(), *place.order);
        return;
      case SimFault::Kind::interrupt: return coordinator_.interrupt("interrupted", exit_interrupted, loop_.now_ns());
    }
  }
  JobGeneration before() const { return {options_.generation.job, options_.generation.number - 1}; }

  void kill(Rank r) {
    SimPlace& place = places_[r];
    if (place.state == SimPlace::State::gone) return;
    place.state = SimPlace::State::gone;
    if (place.device) place.device->hang();
    network_.kill(r);
    const std::int64_t reaped = loop_.now_ns() + reaped_ns +
                                random_ns(options_.seed % 4 == 0 ? long_reaped_jitter_ns : reaped_jitter_ns);
    loop_.at(std::max(place.from_ns, reaped), [this, r] {  // after everything that it has said
      digest_.add_all(loop_.now_ns(), r);
      told_down_ = true;
      coordinator_.down(PlaceId{r}, Status(Code::unavailable, fmt::format("worker {} was killed", r)));
    });
  }

  void cut(Rank a, Rank b) {
    network_.cut(a, b);
    network_.cut(b, a);
  }

  // ---- time -----------------------------------------------------------------------------------------

  /// Lets the actors run dry.
  void drain() {
    while (scheduler_.has_job()) {
      if (options_.seed) {
        auto& jobs = scheduler_.jobs;
        std::swap(jobs.front(), jobs[philox(options_.seed, ++picks_, 1)[0] % jobs.size()]);
      }
      scheduler_.run_once();
    }
  }

  /// One event of clock or network, or the time at which the coordinator wants to be called.
  void turn() {
    drain();
    while (fault_ < options_.faults.size() && options_.faults[fault_].at_event <= run_.events)
      inject(options_.faults[fault_++]);
    drain();
    const auto local = loop_.next_due_ns(), net = network_.next_due_ns();
    const std::int64_t wakes = coordinator_.wakes_ns();
    ++run_.events;
    if (net && (!local || *net <= *local) && *net <= wakes) {
      loop_.advance_to(std::max(*net, loop_.now_ns()));
      network_.run_one(loop_.now_ns());
    } else if (local && *local <= wakes) {
      loop_.run_one();
    } else {
      loop_.advance_to(wakes);
    }
    coordinator_.turn(loop_.now_ns());
  }

  void close() {
    for (auto& p : places_)
      if (p.worker) p.worker->stop();
    drain();
    for (auto& p : places_) p.worker.reset();
    for (auto& p : places_) p.device.reset();
    for (auto& p : places_) p.transport.reset();
    drain();
  }

  const Plan& plan_;
  const kernels::OpSet& ops_;
  const actors::UserActorSet& user_actors_;
  SimClusterOptions options_;
  SimLoop loop_;
  RollingHash digest_;
  SimRun run_;
  comm::SimNetwork network_;
  TestingConfig config_;
  caf::actor_system system_{config_};
  caf::scheduler::test_coordinator& scheduler_ = dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  std::vector<SimPlace> places_;
  Coordinator coordinator_;
  bool told_down_ = false;  // the coordinator knows of the end of a process
  std::uint64_t picks_ = 0, draws_ = 0;
  std::size_t fault_ = 0;  // the next of options_.faults
};

}  // namespace

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
