#include "runtime/store/leadership.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/process/poll_set.h"

namespace troupe::runtime {

namespace {

using Steady = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now().time_since_epoch()).count();
}

constexpr std::int64_t look_ms = 1000;  // at a store that has no leases

}  // namespace

Leadership::Leadership(std::unique_ptr<Store> store, LeadershipOptions options)
    : store_(std::move(store)), patience_ms_(options.patience_ms), run_(options.run),
      news_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), steps_(std::move(options), store_->name()) {
  REQUIRE(news_fd_ >= 0, news_fd_);
}

void Leadership::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wakes_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Leadership::~Leadership() {
  stop();
  if (taken_ && steps_.withdraws()) {
    Status s = store_->withdraw();
    if (s.code() == Code::superseded && leads_still()) s = store_->withdraw();  // its lease had ended
    if (!s.ok() && steps_.lost().ok()) log_warn(s.in("the store still says that run '" + run_ + "' is led").message());
  }
  ::close(news_fd_);
}

bool Leadership::leads_still() {
  steps_.look();
  while (steps_.looks() && steps_.lost().ok()) (void)make(steps_.next());
  return steps_.lost().ok();
}

Status Leadership::take(const std::string& address, int interrupt_fd) {
  if (taken_) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(address_, address) != address && steps_.claimed().number > 0) steps_.moves(address_);
    wakes_.notify_all();
    return {};
  }
  address_ = address;
  steps_.begin(address);
  const auto until = Steady::now() + milliseconds(patience_ms_);
  bool tried = false;  // and has no answer: the store may say that this process leads
  const auto gives_up = [&](const Status& why) {
    if (tried && steps_.withdraws()) (void)store_->withdraw();
    return why;
  };
  for (bool told = false;;) {
    const auto read = store_->read();
    if (!read.ok() && tried && read.status().code() == Code::unavailable && Steady::now() < until) {
      std::unique_lock lock(mutex_);
      wakes_.wait_for(lock, milliseconds(LeadSteps::again_ms));
      continue;
    }
    if (!read.ok()) return gives_up(read.status());
    const auto& before = *read;
    TROUPE_ASSIGN(const bool takes, steps_.may_take(before, store_->tells_of_loss(), Steady::now() < until));
    if (takes) {
      tried = true;
      const auto taken = store_->advance(before ? before->revision : 0, steps_.claim_to_take(), true);
      if (taken.ok() && *taken) {
        steps_.taken(**taken);
        break;
      }
      if (Steady::now() < until && (taken.ok() || taken.status().code() == Code::unavailable)) continue;
      if (taken.ok()) return steps_.led_by("");
      return gives_up(taken.status());
    }
    if (!std::exchange(told, true))
      log_info(steps_.led_by(before->claim.address).message() + ": waits for the end of its lease");
    bool interrupted = false;
    PollSet signals;
    signals.add(interrupt_fd, POLLIN, [&](short happened) { interrupted = happened != 0; });
    if (signals.wait(0)) signals.serve();
    if (interrupted) return Status(Code::interrupted, "interrupted while the end of a lease was waited for");
    TROUPE_TRY(store_->wait_for_change(before->revision, 200));
  }
  log_info(fmt::format("this process leads run '{}', in {}", run_, store_->name()));
  taken_ = true;
  newest_generation_ = steps_.newest_generation();
  // Signals are for the thread of the job's loop.
  sigset_t all, own;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &own);
  thread_ = std::thread([this] { serve(); });
  ::pthread_sigmask(SIG_SETMASK, &own, nullptr);
  return {};
}

void Leadership::went_on() {
  const std::lock_guard lock(mutex_);
  steps_.went_on();
}

void Leadership::made_step() {
  if (std::exchange(made_step_, true)) return;
  {
    const std::lock_guard lock(mutex_);
    steps_.made_step();
  }
  wakes_.notify_all();
}

void Leadership::turns_within(std::int64_t most_ms) {
  turns_until_ns_ = most_ms > 0 ? now_ns() + most_ms * 1'000'000 : std::numeric_limits<std::int64_t>::max();
}

bool Leadership::hangs() {
  const bool hangs = now_ns() > turns_until_ns_;
  if (hangs && !told_hangs_)
    log_warn(fmt::format("the process that leads run '{}' hangs: it does not keep its lead", run_));
  return told_hangs_ = hangs;
}

void Leadership::claim(JobGeneration generation) {
  REQUIRE(taken_ && newest_generation_ < generation.number, newest_generation_, generation.number);
  {
    const std::lock_guard lock(mutex_);
    steps_.ask(generation, address_);
  }
  wakes_.notify_all();
}

JobGeneration Leadership::claimed() {
  eventfd_t count = 0;
  (void)::eventfd_read(news_fd_, &count);
  const std::lock_guard lock(mutex_);
  return steps_.claimed();
}

Status Leadership::lost() {
  const std::lock_guard lock(mutex_);
  return steps_.lost();
}

bool Leadership::surely_leads() const { return now_ns() < sure_until_ns_; }

Status Leadership::look_now() {
  std::unique_lock lock(mutex_);
  if (taken_ && steps_.lost().ok() && !stop_) {
    steps_.look();
    wakes_.notify_all();
    looked_.wait(lock, [&] { return !steps_.looks() || !steps_.lost().ok(); });
  }
  return steps_.lost();
}

Status Leadership::make_sure() {
  const auto until = Steady::now() + milliseconds(patience_ms_);
  for (;;) {
    TROUPE_TRY(look_now());
    std::unique_lock lock(mutex_);
    if (!taken_ || stop_ || steps_.is_sure()) return {};
    if (Steady::now() >= until)
      return Status(Code::unavailable,
                    fmt::format("{} does not say whether this process leads run '{}' still", store_->name(), run_));
    looked_.wait_for(lock, milliseconds(LeadSteps::again_ms));
  }
}

void Leadership::tell() const { (void)::eventfd_write(news_fd_, 1); }

void Leadership::note(const Status& answer) {
  if (answer.ok() && std::exchange(silent_, false)) log_info(store_->name() + " answers again");
  if (!answer.ok() && !std::exchange(silent_, true))
    log_warn(answer.message() + ": the run trains on, and waits for its store before it goes on after a loss");
}

std::int64_t Leadership::make(const LeadSteps::Call& call) {
  const std::int64_t asked_ns = now_ns();
  const auto take = [&](const Status& answer, auto f) {
    note(answer);
    const std::lock_guard lock(mutex_);
    const std::int64_t rest_ms = f();
    const bool renews = call.kind == LeadSteps::Call::Kind::keep_lead || call.takes_lead;
    if (renews && answer.ok() && steps_.lost().ok() && !steps_.doubts())
      sure_until_ns_ = asked_ns + 2 * every_ms() * 1'000'000;  // a lease is longer
    return rest_ms;
  };
  switch (call.kind) {
    case LeadSteps::Call::Kind::none: break;
    case LeadSteps::Call::Kind::read: {
      const auto now = store_->read();
      return take(now.status(), [&] { return steps_.read(call, now); });
    }
    case LeadSteps::Call::Kind::advance: {
      const auto stored = store_->advance(call.expected, call.next, call.takes_lead);
      return take(stored.status(), [&] { return steps_.advanced(call, stored); });
    }
    case LeadSteps::Call::Kind::keep_lead: {
      const auto kept = store_->keep_lead();
      return take(kept.status(), [&] { return steps_.kept(kept); });
    }
  }
  return 0;
}

std::int64_t Leadership::every_ms() const { return store_->keep_every_ms() > 0 ? store_->keep_every_ms() : look_ms; }

void Leadership::serve() {
  const milliseconds every(every_ms());
  auto keep_at = Steady::now() + every;
  std::unique_lock lock(mutex_);
  while (!stop_ && steps_.lost().ok()) {
    wakes_.wait_until(lock, keep_at, [&] { return stop_ || steps_.has_call(); });
    if (stop_) return;
    if (Steady::now() >= keep_at) {
      if (!hangs()) steps_.keep();
      keep_at = Steady::now() + every;
    }
    const LeadSteps::Call call = steps_.next();
    const JobGeneration before = steps_.claimed();
    lock.unlock();
    const auto rest = Steady::now() + milliseconds(make(call));
    lock.lock();
    if (steps_.claimed() != before || !steps_.lost().ok()) tell();
    looked_.notify_all();
    wakes_.wait_until(lock, rest, [&] { return stop_ || steps_.looks(); });
  }
}

}  // namespace troupe::runtime
