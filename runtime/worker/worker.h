// Worker: one place of a running plan. Builds memory, streams and actors from its rank, then follows the session's
// messages. Clock, device, network and storage come in through WorkerEnv, so production and simulation run this class.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/user_actor.h"
#include "comm/transport.h"
#include "devices/base/storage.h"
#include "devices/device.h"
#include "kernels/device_ops.h"
#include "runtime/place/guard_rule.h"
#include "runtime/place/local_plan.h"
#include "runtime/session/control.h"
#include "runtime/worker/kept_state.h"
#include "runtime/worker/remains.h"

namespace caf {
class actor_system;
}

namespace troupe::runtime {

class ActWatch;
class Injector;

/// REQUIRES: all that it points to outlives the worker.
struct WorkerEnv {
  caf::actor_system* system = nullptr;
  const Clock* clock = nullptr;
  Device* device = nullptr;
  /// Of a device with memory of its own: what it does with long vectors there, and the host's device, which has the
  /// streams of exchanges, files and user-defined actors. Null: `device` is the host's.
  const kernels::DeviceOps* device_ops = nullptr;
  Device* host = nullptr;
  /// Tests: parameters that lie on the device are overwritten with NaN on the host when they have been copied there.
  bool spoil_host = false;
  comm::Transport* transport = nullptr;
  const kernels::OpSet* ops = nullptr;
  const actors::UserActorSet* user_actors = nullptr;
  TraceSink* trace = nullptr;  ///< may be null
  int threads = 1;
  JobGeneration generation;  ///< of its messages; its number is in the names of the checkpoints that it writes
  /// Grows while the worker makes progress, from Worker::create on: counts pieces of parameters that get their initial
  /// values, ops that its actors have begun, acts that they have finished, pieces of a checkpoint that have been read
  /// or have arrived. Not null.
  std::shared_ptr<std::atomic<std::int64_t>> progress = std::make_shared<std::atomic<std::int64_t>>(0);
  std::shared_ptr<ActWatch> watch;  ///< sees the acts on streams; may be null
  bool run_kernels = true;          ///< false: paced measurements, only time passes
  Storage* storage = nullptr;       ///< may be null where nothing is saved or restored
  CheckpointTarget save;            ///< for plans that have snapshots
  /// Memory that the place has kept (kept_state.h), as large as the plan's pool; null: the worker allocates its own.
  Buffer* pool = nullptr;
  /// Memory that the place has kept for copies, of a plan that keeps them (LocalPlan::copies_bytes); null: the worker
  /// allocates its own.
  Buffer* copies = nullptr;
  /// What the places guard for each other, of a plan that keeps versions, and the memory of this place for it
  /// (GuardLayout::bytes), which it has kept; null: the worker allocates its own.
  GuardRule guard;
  Buffer* guards = nullptr;
  /// The version to begin with, which lies whole in `pool`, or else in `home`; nullopt: what `restore` says. Of a plan
  /// with copies always in `home`.
  std::optional<std::int64_t> adopt;
  /// What the places of the job have left; no areas: nothing. Its memory stays until the worker has said Ready.
  Remains home;
  std::string restore;           ///< folder of the checkpoint to begin from; empty: initial values
  Injector* injector = nullptr;  ///< of drills; null: none
  /// Asked while the worker takes its state from `home`: whether the place leaves the generation, so that
  /// Worker::create may return an error instead. May be empty.
  std::function<bool()> leaves;
  /// The transport tells the worker of dead peers from now on: whatever else sends over it may. May be empty.
  std::function<void()> may_send;
  /// To the session. Called by actors, by the thread that calls Worker::start, and by the stream's or the transport's
  /// thread on which restoring ends: by several at the same time. Must not block for long.
  std::function<void(FromWorker)> send;
};

class Worker {
 public:
  /// Allocates, initialises parameters, spawns actors. Error: memory, an op or actor kind that this program does not
  /// have, a user actor that cannot be made, checkpoints without a folder. REQUIRES: `plan` has passed check_structure.
  static Expected<std::unique_ptr<Worker>> create(const Plan& plan, Rank rank, WorkerEnv env);
  /// Stops, waits once more for the tasks that the streams run, and frees memory. REQUIRES: the actors have exited, or
  /// `create` has failed.
  ~Worker();
  /// Restores from env.restore, or takes from env.home what other machines have, together with all other places, if
  /// there is something to restore or to take; then says Ready, or WorkerFailed, to the session, unless the worker is
  /// stopped before. Once, before anything else.
  void start();
  /// Takes a message of the session. Thread-safe. PlanBytes, Hello and Connect have no effect: the process handles
  /// them.
  void handle(ToWorker message);
  /// Ends what the worker does, in an order in which nothing that still runs finds what it uses stopped:
  ///   1. restoring is stopped: it reads nothing more, so that exchanges that still end submit no task to the disk
  ///      stream; the transport is shut: what still sends or receives does nothing (TR-4 shutdown), and none of its
  ///      callbacks submits a task;
  ///   2. each stream but comm ends its running task and forgets the others;
  ///   3. the comm stream ends likewise: until then tasks of the other streams have begun exchanges, which run there;
  ///   4. the actors are told to exit.
  /// An actor that still has a message may submit one more task, which uses the worker's memory. So the memory may be
  /// freed, or handed on, once the actors have exited and this object is destroyed, which repeats 2 and 3. Idempotent.
  void stop();
  const LocalPlan& local() const;
  /// What this place holds, where the plan keeps versions or copies. Thread-safe: but a version
  /// that is not the newest may be overwritten meanwhile.
  std::vector<HeldVersion> held() const;

 private:
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::runtime
