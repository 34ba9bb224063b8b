#include "runtime/launch/worker_control.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::runtime {

void Control::send(JobGeneration of, const FromWorker& message) {
  const auto bytes = encode(message);  // a large one takes its time, and heartbeats go on
  std::lock_guard lock(mutex_);
  if (const Status s = link_.send(of, bytes); !s.ok()) end(s);
}

ToWorker Control::next() {
  for (;;) {
    while (frames_.empty())
      if (const Status s = link_.receive(frames_); !s.ok()) end(s);
    const ControlFrame frame = std::move(frames_.front());
    frames_.pop_front();
    const JobGeneration own = fence_.generation();
    if (!fence_.follows(frame.of)) continue;
    auto message = decode_to_worker(frame.message);
    if (!message.ok()) end(message.status());
    if (own != JobGeneration{} && own != frame.of && !std::holds_alternative<Abort>(*message))
      end(Status(Code::internal, fmt::format("generation {} has begun, and this worker is of generation {}",
                                             frame.of.number, own.number)));
    return *std::move(message);
  }
}

bool Control::has_newer() {
  while (link_.is_readable())
    if (const Status s = link_.receive(frames_); !s.ok()) end(s);
  return std::any_of(frames_.begin(), frames_.end(), [this](const ControlFrame& f) {
    return f.of.job == generation().job && f.of.number > generation().number;
  });
}

void Control::end(const Status& why) {
  ending_.lock();
  if (why.code() != Code::unavailable) log_error(why.message());
  ::_exit(exit_worker);
}

Heartbeat::Heartbeat(Control& control, std::int32_t beat_ms)
    : control_(control), beat_ms_(beat_ms), generation_(control.generation()) {
  // A signal of the process is the main thread's (DeathWaits).
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { beat(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Heartbeat::enter(JobGeneration generation, std::shared_ptr<std::atomic<std::int64_t>> progress) {
  std::lock_guard lock(mutex_);
  generation_ = generation;
  progress_ = std::move(progress);
  awaits_first_act_ = false;
  watch_->clear();
}

void Heartbeat::watch_links(std::shared_ptr<comm::LinkWatch> links) {
  std::lock_guard lock(mutex_);
  links_ = std::move(links);
}

void Heartbeat::begin(std::int64_t version) {
  {
    std::lock_guard lock(mutex_);
    version_ = version;
    awaits_first_act_ = true;
  }
  changed_.notify_one();
}

void Heartbeat::committed(std::int64_t version) {
  std::lock_guard lock(mutex_);
  version_ = version;
  ++commits_;
}

void Heartbeat::beat() {
  constexpr std::chrono::milliseconds soon{5};
  const std::int64_t beat_ns = std::int64_t{beat_ms_} * 1'000'000;
  const SteadyClock clock;
  std::int64_t last = 0, told_ns = clock.now_ns();
  std::unique_lock lock(mutex_);
  while (!over_) {
    const bool awaits = awaits_first_act_;
    const bool changed = changed_.wait_for(lock, awaits ? soon : std::chrono::milliseconds(beat_ms_),
                                           [&] { return over_ || awaits_first_act_ != awaits; });
    Progress told{progress_ ? progress_->load() : last, false, {}, 0, {}};
    const bool grown = std::exchange(last, told.acts) != told.acts;
    const std::int64_t now_ns = clock.now_ns();
    // What was done before the run began is no act of it.
    if (now_ns - told_ns < beat_ns && (changed || !awaits || !grown)) continue;
    if (grown && !changed) awaits_first_act_ = false;
    told_ns = now_ns;
    const auto seen = watch_->look(told.acts, now_ns, beat_ns, commits_ >= 2);
    // All steps before that of the act are over: nothing else of the job has anything to do.
    if (seen.waits_in_step == version_) ++waits_;
    told.acts += waits_;
    told.busy = seen.busy;
    told.stuck = seen.stuck;
    told.stuck_ms = seen.stuck_ns / 1'000'000;
    if (links_) {
      links_->beat(beat_ns);
      told.unheard = links_->unheard(unheard_beats * beat_ns);
    }
    control_.send(generation_, told);
  }
}

}  // namespace troupe::runtime
