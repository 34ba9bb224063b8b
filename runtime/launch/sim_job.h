// SimJob: one simulated job: the events that reach its coordinator and its places, and the processes of the places.
// Internal to sim_cluster.cpp (events) and sim_processes.cpp (processes).
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "devices/base/philox.h"
#include "runtime/launch/sim_cluster.h"
#include "runtime/launch/sim_place.h"

namespace troupe::runtime {

/// One thread, which the simulation lends to the actors.
struct TestingConfig : caf::actor_system_config {
  TestingConfig() { set("scheduler.policy", caf::atom("testing")); }
};

class SimJob final : private CoordinatorSink {
 public:
  SimJob(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors, SessionOptions session,
         const SimClusterOptions& options);

  SimOutcome run();

 private:
  /// Between the coordinator and a worker: neither handles a message inside the other's call.
  static constexpr std::int64_t control_ns = 20'000;
  /// A place opens its transport, makes its worker, ends it.
  static constexpr std::int64_t opening_ns = 10'000, making_ns = 30'000, leaving_ns = 20'000, ending_ns = 10'000;
  static constexpr std::int64_t starting_ns = 60'000;  // of a process
  static constexpr std::int64_t beat_ns = 250'000'000;
  /// In every third run places take so much longer to start and to leave, as on a machine that has other work.
  static constexpr std::int64_t slow_ns = 900'000'000;
  std::int64_t slow_random_ns() { return options_.seed % 3 == 0 ? random_ns(slow_ns) : 0; }
  /// For so long at most what reaches the coordinator may wait until it is taken, all of it in one turn: in every
  /// fourth run, and in another fourth for long, as where the job's process has other work.
  static constexpr std::int64_t batch_ns = 300'000, long_batch_ns = 40'000'000;
  static constexpr std::int64_t reaped_ns = 100'000;
  static constexpr std::int64_t failing_ns = 1'000'000;  // from its last words to the end of a process
  /// Each of these is longer by a random time, where the run has a seed; the last one in every fourth run for long.
  static constexpr std::int64_t jitter_ns = 200'000, reaped_jitter_ns = 3'000'000, long_reaped_jitter_ns = 600'000'000;

  comm::SimNetworkOptions network_options();

  CoordinatorOptions coordinator_options(SessionOptions session);

  std::int64_t random_ns(std::int64_t most) {
    return options_.seed ? static_cast<std::int64_t>(philox(options_.seed, ++draws_, 2)[0]) % (most + 1) : 0;
  }
  /// Runs `f` after about `ns`, if the place's process still runs then.
  void after(std::int64_t ns, Rank place, std::function<void()> f);
  /// Runs `f` at this time, or at the end of the pause that is on then, if the place has the same process.
  void at_place(std::int64_t ns, Rank place, std::function<void()> f);

  // ---- control messages -----------------------------------------------------------------------------

  /// When a control message that is sent now arrives: after the last one on the same link (`last_ns`).
  std::int64_t arrival_ns(std::int64_t& last_ns) {
    return last_ns = std::max(last_ns, loop_.now_ns() + control_ns + random_ns(jitter_ns));
  }

  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) override;
  Status with_last_log_lines(PlaceId, const Status& status) override { return status; }

  void hello(PlaceId place, JobGeneration of);
  void restart(PlaceId id, JobGeneration of, bool afresh) override;
  void kill(PlaceId place) override { kill(static_cast<Rank>(place), false); }
  void reshape(const Plan& plan, std::span<const PlaceId> places, JobGeneration of) override;
  std::string memory_of(PlaceId place) override { return std::to_string(static_cast<Rank>(place)); }
  std::int32_t machine_of(PlaceId place) override {
    return options_.machines.empty() ? 0 : options_.machines[static_cast<std::size_t>(place)];
  }
  void settled(std::span<const PlaceId> used) override;
  void dismiss(PlaceId place) override;

  /// At a place, as in its process (worker_process.cpp).
  void arrive(Rank r, const ControlFrame& frame);

  /// The place leaves its generation: what its worker still says is late.
  void leave(Rank r);

  /// Something has reached the coordinator, and is taken in this turn, or with what comes until a later one.
  void reach(std::function<void()> what);
  void tell_coordinator(Rank from, JobGeneration of, FromWorker message);

  /// `suspicion`: it says that a peer is lost.
  void carry(Rank from, ControlFrame frame, bool suspicion = false);

  // ---- places ---------------------------------------------------------------------------------------

  /// A process tells from time to time that it lives.
  void beat(Rank r);
  void open(Rank r);
  void make_worker(Rank r, const Connect& connect);
  /// The memory of a place for what it guards.
  Buffer* guards_of(SimPlace& place, const GuardRule& rule);
  /// Where the place finds what it lacks.
  void take_home(const SimPlace& place, const StateHome& home, WorkerEnv& env);

  void inject(std::size_t fault);
  /// Whether the fault has found something to disturb.
  bool hits(const SimFault& fault);
  bool fail(Rank r);
  bool blip(Rank a, Rank b);
  bool pause(Rank r);
  JobGeneration before() const { return {options_.generation.job, options_.generation.number - 1}; }

  void kill(Rank r, bool suspect);
  /// It has been told to stop, and its process ends of itself.
  void exit(Rank r);

  /// Keeps what a dead process had: events that are due later refer to it.
  void bury(SimPlace& place);

  /// What a place was writing as it died, or left its generation, is garbage, and what no generation hands on.
  void spoil(Rank r);
  /// What lies in the memory of the place, whose process writes nothing. It need not have heard the plan.
  WholeVersions left_in(Rank r) const;

  void cut(Rank a, Rank b);
  void heal(Rank a, Rank b);

  // ---- time -----------------------------------------------------------------------------------------

  /// Lets the actors run dry.
  void drain();

  /// One event of clock or network, or the time at which the coordinator wants to be called.
  void turn();
  void close();

  const Plan& plan_;  // with which the job begins
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
  std::deque<SimShape> shapes_;  // that places were told
  std::deque<Plan> homes_;       // of generations before, as their bytes say
  std::vector<SimPlace> places_;
  std::vector<SimProcess> dead_;
  Coordinator coordinator_;
  std::deque<std::function<void()>> reached_;  // not taken yet
  std::int64_t takes_ns_ = 0;                  // when it is
  bool told_down_ = false;                     // the coordinator knows of the end of a process
  std::uint64_t picks_ = 0, draws_ = 0;
  std::size_t fault_ = 0;  // the next of options_.faults
};

}  // namespace troupe::runtime
