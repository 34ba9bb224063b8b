// SimProcesses: the processes of a simulated cluster, each with a production worker over simulated clock, network and
// device: how they open, run a worker, leave a generation, die and are started anew. What tells them so is behind its
// virtual functions: the coordinator itself (sim_job.h), or agents (sim_machines.h). Internal to the simulation.
#pragma once

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
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

class SimProcesses {
 protected:
  /// `ends`: of the network, one for each process that may live at a time.
  SimProcesses(const kernels::OpSet& ops, const actors::UserActorSet& user_actors, const SimClusterOptions& options,
               Rank ends);
  virtual ~SimProcesses() = default;
  SimProcesses(const SimProcesses&) = delete;

  /// Between the coordinator, or an agent, and a worker: neither handles a message inside the other's call.
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

  // ---- who is around them ---------------------------------------------------------------------------

  /// What a process has said. `suspicion`: that a peer is lost.
  virtual void heard(Rank from, ControlFrame frame, bool suspicion) = 0;
  /// A process has been reaped, and all that it has said was heard.
  virtual void reaped(Rank r, ProcessEnd end, bool killed) = 0;
  /// The memory of this name, as the process opens it; null: there is none.
  virtual Buffer* memory_named(const std::string& name, Rank reader) = 0;
  /// What a place guards, which has this memory, or had it before reshape(); null: nothing.
  Buffer* guards_beside(const Buffer* memory) const;
  /// The memory of a place for what it guards.
  Buffer* guards_of(SimPlace& place, const GuardRule& rule);
  virtual void cannot_go_on(const Status& why) = 0;
  virtual std::int64_t committed() const = 0;
  /// The links of a process that is started are those of its machine.
  virtual void link(Rank r) = 0;

  // ---- times ----------------------------------------------------------------------------------------

  std::int64_t random_ns(std::int64_t most) {
    return options_.seed ? static_cast<std::int64_t>(philox(options_.seed, ++draws_, 2)[0]) % (most + 1) : 0;
  }
  /// Runs `f` after about `ns`, if the place's process still runs then.
  void after(std::int64_t ns, Rank place, std::function<void()> f);
  /// Runs `f` at this time, or at the end of the pause that is on then, if the place has the same process.
  void at_place(std::int64_t ns, Rank place, std::function<void()> f);
  /// When a control message that is sent now arrives: after the last one on the same link (`last_ns`).
  std::int64_t arrival_ns(std::int64_t& last_ns) {
    return last_ns = std::max(last_ns, loop_.now_ns() + control_ns + random_ns(jitter_ns));
  }

  // ---- control messages -----------------------------------------------------------------------------

  /// A message to a process.
  void send(Rank r, ControlFrame frame);
  /// At a place, as in its process (worker_process.cpp).
  void arrive(Rank r, const ControlFrame& frame);
  /// The plan of these bytes, which outlives all that refers to it.
  const Plan& plan_of(const std::vector<std::byte>& bytes);
  void tell(Rank from, JobGeneration of, FromWorker message);
  void carry(Rank from, ControlFrame frame, bool suspicion = false);
  /// Something has reached the coordinator, and is taken in this turn, or with what comes until a later one.
  void reach(std::function<void()> what);
  /// Takes what has reached it, if it is time. False: it has other work.
  bool take_reached();

  // ---- places ---------------------------------------------------------------------------------------

  /// The place leaves its generation: what its worker still says is late.
  void leave(Rank r);
  /// A process tells from time to time that it lives.
  void beat(Rank r);
  void open(Rank r);
  void make_worker(Rank r, const Connect& connect);
  /// Where the place finds what it lacks.
  void take_home(const SimPlace& place, const StateHome& home, WorkerEnv& env);
  /// A new process in a place that had one; it hears what is sent to it once it has started.
  void start_again(Rank r, bool afresh);
  /// A place gets new memory, and keeps what it had.
  void renew_memory(Rank r);
  bool fail(Rank r);
  bool blip(Rank a, Rank b);
  bool pause(Rank r, std::int64_t for_ns);
  bool hang(Rank r);
  void kill(Rank r, bool suspect);
  /// The process ends with its agent, or its machine, and is not reaped; `silently`: no peer learns of it.
  void end_at_once(Rank r, bool silently);
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

  // ---- the loop -------------------------------------------------------------------------------------

  /// Lets the actors run dry.
  void drain();
  /// One event of clock or network; none, where nothing is due before `wakes_ns`.
  void advance(std::int64_t wakes_ns);
  void close();

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
  std::map<std::vector<std::byte>, Plan> plans_;  // that were told, or in which state lies, by their bytes
  std::vector<SimPlace> places_;                  // by end of the network
  std::vector<SimProcess> dead_;
  std::vector<std::unique_ptr<Buffer>> dropped_;  // memory that processes which have ended may still refer to
  std::deque<std::function<void()>> reached_;     // not taken yet
  std::int64_t takes_ns_ = 0;                     // when it is
  std::uint64_t picks_ = 0, draws_ = 0;

 private:
  comm::SimNetworkOptions network_options(Rank ends);
};

}  // namespace troupe::runtime
