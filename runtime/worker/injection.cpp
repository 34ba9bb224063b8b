#include "runtime/worker/injection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <set>
#include <thread>

#include "devices/base/check.h"
#include "devices/base/clock.h"
#include "runtime/place/local_plan.h"

namespace troupe::runtime {

namespace {

using Action = Injection::Action;
using Phase = Injection::Phase;

constexpr std::array<const char*, 8> actions{"SIGKILL", "SIGSTOP", "SIGSEGV", "EXIT", "HANG", "DROP", "CUT", "SLOW"};
constexpr std::array<const char*, 3> phases{"before", "mid", "after"};

template <class Enum, std::size_t n>
bool find_word(const std::array<const char*, n>& words, std::string_view word, Enum& out) {
  const auto it = std::find(words.begin(), words.end(), word);
  if (it != words.end()) out = static_cast<Enum>(it - words.begin());
  return it != words.end();
}

template <class Number>
bool find_number(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

/// Of "worker3".
bool find_worker(std::string_view text, Rank& out) {
  return text.starts_with("worker") && find_number(text.substr(6), out) && out >= 0;
}

/// Cuts what stands behind the last `mark` off `text`; empty where there is none.
std::string_view cut_behind(std::string_view& text, char mark) {
  const auto at = text.rfind(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view behind = text.substr(at + 1);
  text = text.substr(0, at);
  return behind;
}

[[noreturn]] void wait_for_ever() {
  for (;;) ::pause();
}

/// Ends the process as a fault of this thread does, which may block the signal: a thread of the network's does.
[[noreturn]] void crash() {
  ::signal(SIGSEGV, SIG_DFL);
  sigset_t fault;
  sigemptyset(&fault);
  sigaddset(&fault, SIGSEGV);
  ::pthread_sigmask(SIG_UNBLOCK, &fault, nullptr);
  ::raise(SIGSEGV);
  wait_for_ever();
}

/// The stream's threads, in the middle of whose first loop something happens.
class MiddleOfLoop final : public Parallel {
 public:
  MiddleOfLoop(Parallel& inner, Injector& injector, const Injector::Due& due)
      : inner_(inner), injector_(injector), due_(due) {}
  int threads() const override { return inner_.threads(); }
  bool stopping() const override { return inner_.stopping(); }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    inner_.for_each(n, [&](std::int64_t i) {
      if (i == n / 2 && !reached_.exchange(true)) injector_.reach(due_, Phase::mid);
      body(i);
    });
  }
  bool reached() const { return reached_; }

 private:
  Parallel& inner_;
  Injector& injector_;
  const Injector::Due& due_;
  std::atomic<bool> reached_ = false;
};

class InjectedBody final : public actors::Body {
 public:
  InjectedBody(std::unique_ptr<actors::Body> body, std::vector<std::string> names, Injector& injector)
      : body_(std::move(body)), names_(std::move(names)), injector_(injector) {}
  Status run(const actors::ActContext& context, Parallel& parallel) override {
    const Injector::Due due = injector_.begin(names_);
    if (due.empty() && !injector_.slows()) return body_->run(context, parallel);
    const std::int64_t begin_ns = SteadyClock().now_ns();
    MiddleOfLoop middle(parallel, injector_, due);
    const Status s = body_->run(context, middle);
    if (!middle.reached()) injector_.reach(due, Phase::mid);  // it has no loop
    injector_.slow_down(begin_ns, parallel);
    injector_.reach(due, Phase::after);
    return s;
  }

 private:
  std::unique_ptr<actors::Body> body_;
  std::vector<std::string> names_;
  Injector& injector_;
};

class InjectedExecutor final : public actors::Executor {
 public:
  InjectedExecutor(std::shared_ptr<actors::Executor> inner, std::vector<std::string> names, Injector& injector)
      : inner_(std::move(inner)), names_(std::move(names)), injector_(injector) {}
  void submit(actors::ActContext c, std::function<void()> started, std::function<void(actors::ActDone)> done) override {
    const Injector::Due due = injector_.begin(names_);
    if (Injector::drops(due)) return;
    inner_->submit(std::move(c), std::move(started),
                   [&injector = injector_, due, done = std::move(done)](actors::ActDone d) {
                     injector.reach(due, Phase::after);
                     done(std::move(d));
                   });
    injector_.reach(due, Phase::mid);
  }

 private:
  std::shared_ptr<actors::Executor> inner_;
  std::vector<std::string> names_;
  Injector& injector_;
};

}  // namespace

Expected<Injection> parse_injection(std::string_view text) {
  const std::string whole(text);
  const auto refuse = [&](const std::string& why) {
    return invalid(
        fmt::format("'{}': {}; expected ACTION@ACT[:before|:mid|:after][#N]/workerR, such as "
                    "SIGKILL@update:mid#3/worker2; for CUT /workerR-workerP",
                    whole, why));
  };
  Injection out;
  std::string_view worker = cut_behind(text, '/');
  const bool two = worker.find("-worker") != std::string_view::npos;
  const std::string_view peer = two ? cut_behind(worker, '-') : std::string_view();
  const auto at = text.find('@');
  if (at == std::string_view::npos) return refuse("it names no act");
  if (!find_worker(worker, out.rank)) return refuse(fmt::format("'{}' is no worker", worker));
  if (two && !find_worker(peer, out.peer)) return refuse(fmt::format("'{}' is no worker", peer));
  if (text.find('#') != std::string_view::npos)
    if (const auto n = cut_behind(text, '#'); !find_number(n, out.nth) || out.nth < 1)
      return refuse(fmt::format("'{}' is no number of an act", n));
  if (!find_word(actions, text.substr(0, at), out.action))
    return refuse(fmt::format("'{}' is none of {}", text.substr(0, at), fmt::join(actions, ", ")));
  if ((out.action == Action::cut) != two) return refuse(two ? "two workers are for CUT only" : "CUT needs two workers");
  if (out.rank == out.peer) return refuse("the two workers are the same");
  text = text.substr(at + 1);
  if (const auto colon = text.rfind(':');
      colon != std::string_view::npos && find_word(phases, text.substr(colon + 1), out.phase))
    text = text.substr(0, colon);
  if (text.empty()) return refuse("it names no act");
  out.act = text;
  return out;
}

std::string to_string(const Injection& i) {
  return fmt::format("{}@{}:{}#{}/worker{}{}", actions[static_cast<std::size_t>(i.action)], i.act,
                     phases[static_cast<std::size_t>(i.phase)], i.nth, i.rank,
                     i.peer < 0 ? "" : fmt::format("-worker{}", i.peer));
}

std::vector<std::string> injected_names(const PlanActor& a) {
  using Kind = PlanActor::Kind;
  switch (a.kind) {
    case Kind::segment:
      return {a.pass == Pass::forward ? "forward" : a.pass == Pass::backward ? "backward" : "weights", a.name};
    case Kind::user: return {"actor", a.name};
    case Kind::exchange: return {"exchange", a.name};
    case Kind::norm: return {"norm", a.name};
    case Kind::update: return {"update", a.name};
    case Kind::digest: return {"digest", a.name};
    case Kind::snapshot: return {"snapshot", a.name};
    case Kind::writer: return {"write", a.name};
    case Kind::copy: return {"copy", a.name};
  }
  return {a.name};
}

Status check_injection(const Plan& plan, const Injection& i) {
  const auto refuse = [&](const std::string& why) { return invalid("the drill '" + to_string(i) + "': " + why); };
  if (std::max(i.rank, i.peer) >= plan.workers())
    return refuse(fmt::format("the job has workers 0 to {}", plan.workers() - 1));
  std::set<std::string> words{"enter", "commit"}, names;
  bool exchange = false;
  for (const PlanActor& a : plan.roles[static_cast<std::size_t>(plan.stage_of(i.rank))].actors) {
    const auto both = injected_names(a);
    words.insert(both[0]);
    names.insert(both[1]);
    if (a.gathers()) words.insert("gather");
    exchange |= a.kind == PlanActor::Kind::exchange && (both[0] == i.act || both[1] == i.act);
  }
  if (words.count(i.act) == 0 && names.count(i.act) == 0)
    return refuse(
        fmt::format("worker {} has no act '{}'; it has {}, and its actors by the names in plan.txt; a phase "
                    "behind a colon is before, mid or after; runs that save checkpoints have snapshot and "
                    "write, those with ZeRO 1 or 2 gather, those that recover from copies copy",
                    i.rank, i.act, fmt::join(words, ", ")));
  if (i.action == Action::drop && !exchange) return refuse("an exchange can be dropped, no other act");
  if (i.action != Action::cut) return {};
  if (i.act == "enter") return refuse("no link is open when a worker enters");
  TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, i.rank));
  const auto peers = peers_of(local);
  if (std::find(peers.begin(), peers.end(), i.peer) == peers.end())
    return refuse(fmt::format("worker {} exchanges no message with worker {}", i.rank, i.peer));
  return {};
}

Injector::Injector(std::vector<Injection> injections)
    : injections_(std::move(injections)), begun_(injections_.size()) {}

Injector::Due Injector::begin(const std::vector<std::string>& names) {
  Due due;
  for (std::size_t i = 0; i < injections_.size(); ++i)
    if (std::find(names.begin(), names.end(), injections_[i].act) != names.end() && ++begun_[i] == injections_[i].nth)
      due.push_back(&injections_[i]);
  reach(due, Phase::before);
  return due;
}

void Injector::reach(const Due& due, Phase phase) {
  for (const Injection* i : due)
    if (i->phase == phase) execute(*i);
}

void Injector::execute(const Injection& i) {
  switch (i.action) {
    case Action::kill: ::kill(::getpid(), SIGKILL); wait_for_ever();
    case Action::stop: ::kill(::getpid(), SIGSTOP); return;  // once it is continued
    case Action::crash: crash();
    case Action::exit: ::_exit(1);
    case Action::hang: wait_for_ever();
    case Action::drop: return;
    case Action::slow: slows_ = true; return;
    case Action::cut:
      if (std::lock_guard lock(mutex_); cut_) cut_(i.peer);
      return;
  }
}

bool Injector::cuts() const {
  return std::any_of(injections_.begin(), injections_.end(), [](const auto& i) { return i.action == Action::cut; });
}

void Injector::on_cut(std::function<void(Rank peer)> cut) {
  std::lock_guard lock(mutex_);
  cut_ = std::move(cut);
}

void Injector::slow_down(std::int64_t begin_ns, const Parallel& parallel) const {
  if (!slows_) return;
  const SteadyClock clock;
  const std::int64_t end_ns = begin_ns + slow_times * (clock.now_ns() - begin_ns);
  constexpr std::int64_t piece_ns = 2'000'000;
  for (std::int64_t now_ns = clock.now_ns(); now_ns < end_ns && !parallel.stopping(); now_ns = clock.now_ns())
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(piece_ns, end_ns - now_ns)));
}

bool Injector::drops(const Due& due) {
  return std::any_of(due.begin(), due.end(), [](const Injection* i) { return i->action == Action::drop; });
}

void Injector::pass(const std::string& name) {
  const Due due = begin({name});
  reach(due, Phase::mid);
  reach(due, Phase::after);
}

std::vector<std::string> Injector::missed() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < injections_.size(); ++i)
    if (begun_[i] < injections_[i].nth) out.push_back(to_string(injections_[i]));
  return out;
}

std::unique_ptr<actors::Body> injected(std::unique_ptr<actors::Body> body, std::vector<std::string> names,
                                       Injector& injector) {
  return std::make_unique<InjectedBody>(std::move(body), std::move(names), injector);
}

std::shared_ptr<actors::Executor> injected(std::shared_ptr<actors::Executor> executor, std::vector<std::string> names,
                                           Injector& injector) {
  return std::make_shared<InjectedExecutor>(std::move(executor), std::move(names), injector);
}

}  // namespace troupe::runtime
