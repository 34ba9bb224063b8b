// The Device seam: memory and streams. A stream runs tasks one at a time; each stream is fronted by
// an actor that decides nothing: order comes from slots, credits and the rule of ReadyQueue.
//
// On some devices (a GPU) the work of a task *issues* what the device does later, and the stream issues tasks before
// those before them have ended: the stream runs ahead. On all others the work itself computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/base/clock.h"
#include "devices/base/status.h"

namespace troupe {

/// Where a task stands among those that could run now. Lower `priority` first; see ReadyQueue.
struct TaskOrder {
  std::int32_t priority = 0;  ///< static, from the plan: backward before forward, evaluation last
  std::int64_t step = 0;
  std::int32_t microbatch = 0;
  std::uint32_t run = 0;   ///< tasks of one (program, direction) chain share it: see ReadyQueue
  std::int64_t turn = -1;  ///< a stream starts turns 0, 1, 2, .. in this order; -1: any time
};

/// Parallelism inside one task, lent by the stream. Results must not depend on `threads` (NU-0 kernels).
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual int threads() const = 0;
  /// Calls body(i) for i in [0, n), each once, on any of the stream's threads; returns when all are done.
  /// If the body throws, the rest may be left out and one of its exceptions comes out of here.
  virtual void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) = 0;
  /// The stream that runs the task is being quiesced: the task may return early, and its act then ends with an error.
  /// Once true, stays so until the task has ended. From any of the stream's threads; cheap enough for each op.
  virtual bool stopping() const { return false; }
  /// The native stream (cudaStream_t) on which the work issues what the device does; null where the work itself
  /// computes.
  virtual void* queue() { return nullptr; }
  /// Calls host_part once the device has done what the task has issued so far, in the order of these calls and before
  /// Task::on_done; at once where the work itself computes. Called from the work, by the thread that runs it. host_part
  /// runs on a thread of the device, must be short, and must not throw.
  virtual void after(std::function<void()> host_part) { host_part(); }
};

/// The end of one task's work on a device whose streams run ahead: tasks of its other streams wait for it there,
/// without a way through the host. Device::create_fence makes it, Task::reaches and Task::waits name it.
class Fence {
 public:
  virtual ~Fence() = default;
};

/// One thing to do on a stream.
struct Task {
  std::string name;  ///< for traces and reports
  TaskOrder order;
  double cost_s = 0;                    ///< predicted; what sim and paced devices take
  std::function<void()> on_start;       ///< called when the stream has chosen this task
  std::function<void(Parallel&)> work;  ///< the host function (may be empty)
  std::function<void(std::int64_t begin_ns, std::int64_t end_ns)> on_done;
  std::int64_t submitted_ns = 0;  ///< when it was submitted, by the stream's clock; set by streams that need it
  /// Reached when the work is done on the device. A fence is that of one task; null: none.
  std::shared_ptr<Fence> reaches = nullptr;
  /// The device begins the work when these are reached: fences of the same device, each of a task whose on_start has
  /// been called before this one is submitted.
  std::vector<std::shared_ptr<Fence>> waits = {};
};

/// Runs one task at a time. `submit` is thread-safe; callbacks run on a thread of the stream or its device (or in the
/// simulation's loop) and must be short: they post messages, and may run actors (decision 0021). A stream
/// calls `on_start` of a task before its work; a task that is submitted after that call runs later, whatever its order.
/// on_done comes in the order of the tasks, and begin and end never lie before the end of the task before.
///
/// Where the work itself computes, on_start comes after on_done of the previous task. A stream that runs ahead calls it
/// when it has fixed the place of the task and is about to issue its work, which may be before on_done of the previous
/// task, or at the same time from another thread; on_done comes when the device has done the work.
///
/// A stream of a device that can do no work any more (Device::on_dead) forgets its tasks and calls nothing back.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual const std::string& name() const = 0;
  virtual void submit(Task task) = 0;
  /// Forgets tasks that have not started, and those submitted meanwhile; returns when none is running: a running task
  /// may learn of it (Parallel::stopping). The stream stays usable: turns go on with the first that has not started, so
  /// a forgotten turn is to be submitted again. Idempotent. REQUIRES that no callback of this stream calls it. What the
  /// device does may use memory that the caller is about to reuse: a device that cannot be proved idle within its
  /// budget ends the process by a named error.
  virtual void quiesce() = 0;
};

/// Where memory lies, and thereby which code may read and write it.
enum class Space : std::uint8_t {
  host,    ///< the host; a device that is not the host copies from and to it slowly
  pinned,  ///< the host and the device; copies are fast and do not make the host wait
  device,  ///< work of the device only: a host that looks at it ends its process
};

/// Memory that a device owns; freed with it. Neither copied nor moved.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual Space space() const { return Space::host; }
  virtual std::byte* data() = 0;
  virtual std::size_t size() const = 0;
  /// Takes its pages from the system now, rather than one by one when they are first used. Keeps its contents; other
  /// threads may use the memory meanwhile.
  virtual void populate() {}
};

class Device {
 public:
  virtual ~Device() = default;
  /// 4 KiB-aligned memory of the device, zeroed. Error: `exhausted` with the number of bytes.
  virtual Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) = 0;
  /// The same in host memory that this device copies to and from fast: pinned where it is not the host itself.
  virtual Expected<std::unique_ptr<Buffer>> allocate_pinned(std::size_t bytes) { return allocate(bytes); }
  /// Lets the device read and write host memory of the caller's, as far as it is not the host itself, while what this
  /// returns exists. Error: the device's.
  virtual Expected<std::shared_ptr<void>> pin(std::byte* data, std::size_t bytes) {
    static_cast<void>(data), static_cast<void>(bytes);
    return std::shared_ptr<void>();
  }
  /// A new stream with `threads` threads for each task.
  virtual std::unique_ptr<Stream> create_stream(const std::string& name, int threads) = 0;
  /// A fence for one task (Task::reaches). Null where no stream runs ahead: on_done of that task orders others there.
  virtual std::shared_ptr<Fence> create_fence() { return nullptr; }
  /// `f` is called once, from a thread of the device, when the device can do no work any more; at once where it is so
  /// already. The status names the device, the error, and the task that each stream has issued last. Devices that
  /// cannot tell never call it. REQUIRES that `f` neither quiesces nor destroys anything of the device.
  virtual void on_dead(std::function<void(Status)> f) { static_cast<void>(f); }
};

}  // namespace troupe
