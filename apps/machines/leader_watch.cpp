#include "apps/machines/leader_watch.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "apps/machines/spawn.h"
#include "devices/base/check.h"
#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "runtime/agents/launcher.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::lm {

using namespace runtime;

namespace {

constexpr std::int64_t watch_ms = 1000;          // so long one wait for the store takes at most
constexpr std::chrono::milliseconds retry{500};  // of a store that does not answer

}  // namespace

LeaderWatch::LeaderWatch(std::unique_ptr<Store> store, LeaderWatchOptions options)
    : store_(std::move(store)), options_(std::move(options)), news_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  REQUIRE(news_fd_ >= 0, news_fd_);
  sigset_t all, own;  // signals are for the agent's thread
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &own);
  thread_ = std::thread([this] { watch(); });
  ::pthread_sigmask(SIG_SETMASK, &own, nullptr);
  std::unique_lock lock(mutex_);
  stops_.wait(lock, [&] { return looked_; });  // the store answers, or the read's deadline is over
}

LeaderWatch::~LeaderWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stops_.notify_all();
  if (child_ > 0 && !run_is_over_) ::kill(child_, SIGKILL);
  look_at_child(true);
  thread_.join();
  ::close(news_fd_);
}

void LeaderWatch::watch() {
  std::int64_t revision = 0;
  for (bool silent = false;;) {
    auto now = store_->read();
    {
      std::unique_lock lock(mutex_);
      if (stop_) return;
      looked_ = true;
      unread_ = now.status();
      if (now.ok() && stored_ != *now) {
        stored_ = *now;
        (void)::eventfd_write(news_fd_, 1);
      }
    }
    stops_.notify_all();
    if (!now.ok()) {
      if (!std::exchange(silent, true))
        log_warn(now.status().message() + ": whether run '" + options_.run + "' has another leader is not known");
      std::unique_lock lock(mutex_);
      if (stops_.wait_for(lock, retry, [&] { return stop_; })) return;
      continue;
    }
    if (std::exchange(silent, false)) log_info(store_->name() + " answers again");
    revision = *now ? (*now)->revision : 0;
    if (const Status s = store_->wait_for_change(revision, watch_ms); s.ok()) continue;
    std::unique_lock lock(mutex_);  // read() says what is wrong
    if (stops_.wait_for(lock, retry, [&] { return stop_; })) return;
  }
}

Expected<std::string> LeaderWatch::address() {
  const std::lock_guard lock(mutex_);
  if (!stored_) {
    if (!unread_.ok()) return unread_;
    return Status(Code::unavailable, fmt::format("no process leads run '{}' ({})", options_.run, store_->name()));
  }
  // An agent that is connected stays so until another one leads: a leader that the store does not hear of may go on.
  return stored_->claim.address;
}

void LeaderWatch::turn(bool hears) {
  eventfd_t count = 0;
  (void)::eventfd_read(news_fd_, &count);
  look_at_child(false);
  std::optional<StoredClaim> now;
  {
    const std::lock_guard lock(mutex_);
    if (unread_.ok()) now = stored_;
  }
  if (now && !std::exchange(checked_lease_, true)) check_lease(*now);
  const std::int64_t now_ns = SteadyClock().now_ns();
  given_up_ = Status();
  if (take_over_.gives_up(now, hears, child_ > 0, now_ns)) {
    given_up_ = Status(Code::exhausted,
                       fmt::format("run '{}' is given up: {} leaders in a row were lost before a step was done, the "
                                   "last one at {}. Started anew it would most likely fail again: look at what they "
                                   "have logged, and go on with troupe train --resume",
                                   options_.run, now->claim.without_step, now->claim.address));
    return;
  }
  if (options_.lead_at.empty() || child_ > 0 || !take_over_.is_due(now, hears, now_ns)) return;
  start(*now);
}

void LeaderWatch::check_lease(const StoredClaim& first) {
  constexpr std::int64_t to_take_over_s = 10;
  const auto run = parse_run_to_lead(first.claim.record, options_.key);
  if (store_->tells_of_loss() && run.ok() && options_.wait_s <= run->lease_s)
    log_warn(
        fmt::format("--wait {}: the run has --store-lease {}, so this agent ends before another machine can take "
                    "the place of a leader that is lost: expected {} at least",
                    options_.wait_s, run->lease_s, run->lease_s + to_take_over_s));
}

void LeaderWatch::look_at_child(bool wait) {
  int status = 0;
  if (child_ <= 0) return;
  pid_t ended = 0;
  do ended = ::waitpid(child_, &status, wait ? 0 : WNOHANG);
  while (ended < 0 && errno == EINTR);
  if (ended != child_) return;
  child_ = -1;
  const bool was_late = WIFEXITED(status) && WEXITSTATUS(status) == exit_superseded;
  log_info(was_late ? "another machine was faster, or leads the run by now"
                    : "the leader that was started here " + describe_exit(status));
}

void LeaderWatch::start(const StoredClaim& lost) {
  const auto give_up = [this](const std::string& why) {
    take_over_.give_up();
    log_warn(fmt::format("this machine cannot lead run '{}': {}", options_.run, why));
  };
  const auto run = parse_run_to_lead(lost.claim.record, options_.key);
  if (!run.ok()) return give_up(run.status().message());
  if (run->program != options_.program) return give_up("it runs another build of troupe");
  log_warn(fmt::format("the leader of run '{}' at {} is lost: this machine takes its place, at {}", options_.run,
                       lost.claim.address, options_.lead_at));
  std::vector<std::string> command{"/proc/self/exe"};
  command.insert(command.end(), run->words.begin(), run->words.end());
  command.insert(command.end(), {"--take-over", to_text(TakenOver{lost.revision, options_.lead_at, options_.token_file,
                                                                  options_.store, run->run, ::getpid()})});
  const auto child = spawn(std::move(command), {.folder = run->folder});
  if (!child.ok()) return give_up(child.status().message() + " in '" + run->folder + "'");
  child_ = *child;
}

}  // namespace troupe::lm
