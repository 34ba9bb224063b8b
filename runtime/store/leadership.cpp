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

constexpr milliseconds retry{500};      // of a store that does not answer
constexpr std::int64_t look_ms = 1000;  // at a store that has no leases

}  // namespace

Leadership::Leadership(std::unique_ptr<Store> store, LeadershipOptions options)
    : store_(std::move(store)), options_(std::move(options)), news_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
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
  const bool may_withdraw = taken_ && lost_.ok() && (options_.of_revision == 0 || claimed_.number > 0);
  if (may_withdraw) {
    Status s = store_->withdraw();
    if (!s.ok()) {  // its lease may have ended
      const auto leads = leads_again();
      if (leads.ok()) s = *leads ? store_->withdraw() : Status();
    }
    if (!s.ok()) log_warn(s.in("the store still says that run '" + options_.run + "' is led").message());
  }
  ::close(news_fd_);
}

Status Leadership::led_by(const std::string& address) const {
  return Status(Code::superseded, fmt::format("run '{}' is led by {} ({})", options_.run,
                                              address.empty() ? "another process" : address, store_->name()));
}

Status Leadership::take(const std::string& address, int interrupt_fd) {
  if (taken_) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(address_, address) != address && claimed_.number > 0 && !asked_) asked_ = claimed_;
    wakes_.notify_all();
    return {};
  }
  address_ = address;
  claim_ = {{}, options_.leader, address, options_.record};
  const auto until = Steady::now() + milliseconds(options_.patience_ms);
  for (bool told = false;;) {
    TROUPE_ASSIGN(const auto before, store_->read());
    const bool own = before && before->claim.leader == options_.leader;  // stored without an answer
    const bool tells = store_->tells_of_loss();
    const bool lives = before && !own && (tells ? before->leader_lives : !options_.goes_on);
    const bool of_another = options_.of_revision != 0 && !own && (!before || before->revision != options_.of_revision);
    if (of_another && !before) return Status(Code::superseded, fmt::format("run '{}' has ended", options_.run));
    if (of_another || (lives && tells && Steady::now() >= until)) return led_by(before->claim.address);
    if (lives && !tells)
      return Status(Code::superseded,
                    led_by(before->claim.address).message() +
                        ", as far as a folder tells: if that process is gone, go on with --resume, or "
                        "remove what the folder has of the run");
    if (!lives) {
      if (before) claim_.generation = before->claim.generation;
      if (before && options_.of_revision != 0) claim_.without_step = before->claim.without_step;
      newest_generation_ = claim_.generation.number;
      const auto taken = store_->advance(before ? before->revision : 0, claim_, true);
      if (taken.ok() && *taken) {
        revision_ = **taken;
        break;
      }
      if (Steady::now() < until && (taken.ok() || taken.status().code() == Code::unavailable)) continue;
      if (taken.ok()) return led_by("");
      (void)store_->withdraw();  // it may have been stored
      return taken.status();
    }
    if (!std::exchange(told, true))
      log_info(led_by(before->claim.address).message() + ": waits for the end of its lease");
    bool interrupted = false;
    PollSet signals;
    signals.add(interrupt_fd, POLLIN, [&](short happened) { interrupted = happened != 0; });
    if (signals.wait(0)) signals.serve();
    if (interrupted) return Status(Code::interrupted, "interrupted while the end of a lease was waited for");
    TROUPE_TRY(store_->wait_for_change(before->revision, 200));
  }
  log_info(fmt::format("this process leads run '{}', in {}", options_.run, store_->name()));
  taken_ = true;
  // Signals are for the thread of the job's loop.
  sigset_t all, own;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &own);
  thread_ = std::thread([this] { serve(); });
  ::pthread_sigmask(SIG_SETMASK, &own, nullptr);
  return {};
}

void Leadership::made_step() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(made_step_, true)) return;
  }
  wakes_.notify_all();
}

void Leadership::turns_within(std::int64_t most_ms) {
  turns_until_ns_ = most_ms > 0 ? now_ns() + most_ms * 1'000'000 : std::numeric_limits<std::int64_t>::max();
}

bool Leadership::hangs() {
  const bool hangs = now_ns() > turns_until_ns_;
  if (hangs && !told_hangs_)
    log_warn(fmt::format("the process that leads run '{}' hangs: it does not keep its lead", options_.run));
  return told_hangs_ = hangs;
}

void Leadership::claim(JobGeneration generation) {
  REQUIRE(taken_ && newest_generation_ < generation.number, newest_generation_, generation.number);
  {
    const std::lock_guard lock(mutex_);
    asked_ = generation;
  }
  wakes_.notify_all();
}

JobGeneration Leadership::claimed() {
  eventfd_t count = 0;
  (void)::eventfd_read(news_fd_, &count);
  const std::lock_guard lock(mutex_);
  return claimed_;
}

Status Leadership::lost() {
  const std::lock_guard lock(mutex_);
  return lost_;
}

Status Leadership::look_now() {
  std::unique_lock lock(mutex_);
  if (taken_ && lost_.ok() && !stop_) {
    look_ = true;
    wakes_.notify_all();
    looked_.wait(lock, [&] { return !look_ || !lost_.ok(); });
  }
  return lost_;
}

void Leadership::look_if_asked() {
  {
    const std::lock_guard lock(mutex_);
    if (!look_) return;
  }
  (void)leads_again();
  {
    const std::lock_guard lock(mutex_);
    look_ = false;
  }
  looked_.notify_all();
}

void Leadership::tell() const { (void)::eventfd_write(news_fd_, 1); }

void Leadership::lose(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    lost_ = why;
  }
  looked_.notify_all();
  tell();
}

void Leadership::note(const Status& answer) {
  if (answer.ok() && std::exchange(silent_, false)) log_info(store_->name() + " answers again");
  if (answer.ok()) return;
  if (!std::exchange(silent_, true))
    log_warn(answer.message() + ": the run trains on, and waits for its store before it goes on after a loss");
  std::unique_lock lock(mutex_);
  wakes_.wait_for(lock, retry, [&] { return stop_ || look_; });
}

Expected<bool> Leadership::leads_again() {
  TROUPE_ASSIGN(const auto now, store_->read());
  if (now && now->claim.leader != options_.leader) {
    lose(led_by(now->claim.address));
    return false;
  }
  if (now) claim_ = now->claim, revision_ = now->revision;  // it may have stored that without an answer
  if (now && now->leader_lives) return true;
  TROUPE_ASSIGN(const auto taken, store_->advance(now ? revision_ : 0, claim_, true));
  if (!taken) return true;  // another process was faster: the next call says so
  log_warn(
      fmt::format("the lease of this process had ended, and no other one has taken the lead of run '{}': it leads on",
                  options_.run));
  revision_ = *taken;
  return true;
}

bool Leadership::store(const Claim& next) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return false;
    }
    look_if_asked();
    if (claim_ == next) return true;  // without an answer
    const auto stored = store_->advance(revision_, next, false);
    note(stored.status());
    if (!stored.ok()) continue;
    if (*stored) {
      claim_ = next, revision_ = **stored;
      return true;
    }
    const auto again = leads_again();
    note(again.status());
    if (again.ok() && !*again) return false;
    std::unique_lock lock(mutex_);
    wakes_.wait_for(lock, retry / 10, [&] { return stop_; });
  }
}

std::optional<Claim> Leadership::next_claim(const std::optional<JobGeneration>& asked) {
  Claim next = claim_;
  const std::lock_guard lock(mutex_);
  if (asked) {
    next.generation = *asked;
    next.address = address_;
    next.without_step += std::exchange(counts_, true) ? 0 : 1;
  }
  if (made_step_) next.without_step = 0;
  return next == claim_ ? std::nullopt : std::optional(std::move(next));
}

void Leadership::serve() {
  const milliseconds every(store_->keep_every_ms() > 0 ? store_->keep_every_ms() : look_ms);
  auto keep_at = Steady::now() + every;
  for (;;) {
    std::optional<JobGeneration> asked;
    {
      std::unique_lock lock(mutex_);
      wakes_.wait_until(lock, keep_at,
                        [&] { return stop_ || asked_ || look_ || (made_step_ && claim_.without_step > 0); });
      if (stop_ || !lost_.ok()) return;
      asked = std::exchange(asked_, std::nullopt);
    }
    look_if_asked();
    if (const auto next = next_claim(asked); next && !store(*next)) return;
    if (asked) {
      {
        const std::lock_guard lock(mutex_);
        claimed_ = *asked;
      }
      tell();
    }
    if (Steady::now() < keep_at) continue;
    const bool keeps = !hangs();
    const auto kept = keeps ? store_->keep_lead() : Expected<bool>(true);
    note(kept.status());
    if (kept.ok() && !*kept) {
      const auto again = leads_again();
      note(again.status());
      if (again.ok() && !*again) return;
    }
    keep_at = Steady::now() + every;
  }
}

}  // namespace troupe::runtime
