// SimDevice: a device in virtual time. A stream is a queue of (duration, host function) on a SimLoop.
//
//   SD-1  (exact times) times are exact: a task that starts at t ends at t + its cost, rounded once to nanoseconds;
//   SD-2  (end of instant) a stream chooses at the end of an instant: tasks submitted at one time compete by the rule
//         of ReadyQueue, whatever the order of the calls; submit() itself never starts anything;
//   SD-3  (work last) work runs at the task's end, right before on_done, on one thread: no task can see a result early;
//   SD-4  (dead device) a hung or dead device starts nothing, completes nothing, calls nothing back;
//   SD-5  (paused device) what a paused device would start or complete, it does at the end of the pause, in its order.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "devices/device.h"
#include "devices/sim/sim_loop.h"

namespace troupe {

class SimStream;

/// Owned by the simulation's one thread, as all its streams; the loop outlives both.
/// quiesce() cannot wait for virtual time to pass: it ends a running task at once (work and on_done,
/// with the present as its end). On a hung or dead device the running task stays as it is.
class SimDevice final : public Device {
 public:
  /// `memory_bytes`: what allocate refuses to exceed, in total of the buffers alive.
  explicit SimDevice(SimLoop& loop, std::size_t memory_bytes = std::numeric_limits<std::size_t>::max());
  ~SimDevice() override;

  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> create_stream(const std::string& name, int threads) override;

  /// Streams that compute, or copy what is computed ("compute", "snapshot"), issue their work on `queue`
  /// (Parallel::queue) from now on, as those of a GPU do: what it issues is done when the task ends.
  void issue_on(void* queue) { queue_ = queue; }
  /// `f` is called by die().
  void on_dead(std::function<void(Status)> f) override;
  /// No task starts or completes any more; nothing reports it (SD-4).
  void hang();
  /// No task starts or completes before this time (SD-5). Of two pauses the longer one counts.
  void pause_until(std::int64_t ns);
  /// As hang(), but the function of on_dead is called and allocate fails with `cause`. REQUIRES an error. A second
  /// call does nothing.
  void die(Status cause);

 private:
  friend class SimStream;
  SimLoop& loop_;
  std::shared_ptr<std::size_t> free_bytes_;  ///< shared with buffers: they may outlive the device
  struct Halt {
    bool stuck = false;
    std::int64_t until_ns = 0;
  };
  std::shared_ptr<Halt> halt_;  ///< shared with streams, for the same reason
  Status cause_;
  std::function<void(Status)> on_dead_;
  void* queue_ = nullptr;
};

}  // namespace troupe
