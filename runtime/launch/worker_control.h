// What a worker process says and hears: its end of the control link, and its heartbeat.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/link_watch.h"
#include "runtime/agents/control_link.h"
#include "runtime/elastic/generation_fence.h"
#include "runtime/worker/act_watch.h"

namespace troupe::runtime {

/// The worker's end of the control link. `send` is thread-safe; both calls end the process if the link breaks.
class Control {
 public:
  explicit Control(int fd) : link_(fd) {}
  void send(JobGeneration of, const FromWorker& message);
  /// The next message of this worker's generation (CL-1 one generation), or Abort, with which a newer one begins.
  ToWorker next();
  /// Whether a message of a newer generation has come: next() returns Abort sooner or later. Not at the same time as
  /// next().
  bool has_newer();
  /// REQUIRES: next() has returned.
  JobGeneration generation() const { return fence_.generation(); }
  /// While the caller holds it, no other thread ends the process for a broken link.
  std::unique_lock<std::mutex> keep_alive() { return std::unique_lock(ending_); }

 private:
  /// Ends the process; says why unless the parent, who would read it, is gone.
  [[noreturn]] void end(const Status& why);

  ControlLink link_;
  std::mutex mutex_, ending_;
  std::deque<ControlFrame> frames_;
  GenerationFence fence_;
};

/// Tells the coordinator every `beat_ms` that the process lives, and of its progress; soon of the first act of a
/// generation.
class Heartbeat {
 public:
  /// REQUIRES: beat_ms >= 1; control.next() has returned.
  Heartbeat(Control& control, std::int32_t beat_ms);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  /// The place is in this generation, and its worker, if there is one, has this progress.
  void enter(JobGeneration generation, std::shared_ptr<std::atomic<std::int64_t>> progress);
  /// The links of the generation's transport, which are pinged from now on; null: they are not any more, and no call of
  /// the transport is under way.
  void watch_links(std::shared_ptr<comm::LinkWatch> links);
  /// Sees the acts of all workers of the process.
  const std::shared_ptr<ActWatch>& watch() const { return watch_; }
  /// The run begins with this version.
  void begin(std::int64_t version);
  /// A step is committed: this version is made.
  void committed(std::int64_t version);

 private:
  void beat();

  Control& control_;
  const std::int32_t beat_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false, awaits_first_act_ = false;
  int commits_ = 0;                       // at the second one a whole step was seen, its update included
  std::int64_t version_ = 0, waits_ = 0;  // waits_: beats in which the job waited for the outside here
  JobGeneration generation_;
  std::shared_ptr<std::atomic<std::int64_t>> progress_;
  std::shared_ptr<comm::LinkWatch> links_;
  const std::shared_ptr<ActWatch> watch_ = std::make_shared<ActWatch>();
  std::thread thread_;  // last: it uses the members above
};

}  // namespace troupe::runtime
