#include "runtime/agents/agent.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/base/overloaded.h"
#include "devices/host_memory.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/kept_state.h"

namespace troupe::runtime {

namespace {

std::string name_of(PlaceId place) { return fmt::format("worker {}", static_cast<std::int32_t>(place)); }

ProcessEnd::Kind kind_of(std::optional<int> status) {
  using Kind = ProcessEnd::Kind;
  if (!status) return Kind::suspect;
  constexpr auto errors = std::to_array<int>({SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT});
  if (WIFSIGNALED(*status) && std::find(errors.begin(), errors.end(), WTERMSIG(*status)) != errors.end())
    return Kind::suspect;
  if (!WIFEXITED(*status)) return Kind::ordinary;
  constexpr int cannot_execute = 126, not_found = 127;  // of a prefix
  switch (WEXITSTATUS(*status)) {
    case exit_worn: return Kind::worn;
    case exit_worker:
    case cannot_execute:
    case not_found: return Kind::refused;
    default: return Kind::ordinary;
  }
}

std::string memory_name(const WorkerProcess& w) { return w.memory_fd < 0 ? "" : kept_memory_name(w.memory_fd); }

}  // namespace

bool Agent::has(PlaceId place) {
  if (places_.count(place) > 0) return true;
  tell_(AgentFailed{Status(Code::internal, "the job names " + name_of(place) + ", which is not on this machine")});
  return false;
}

void Agent::take(const ToAgent& order) {
  std::visit(Overloaded{
                 [](const Welcome&) {},  // the process of the agent takes these
                 [](const Refused&) {},
                 [](const Beat&) {},
                 [](const Answer&) {},
                 [this](const Remember& o) {
                   states_.emplace_back(o.version, o.state);
                   if (states_.size() > states_kept) states_.pop_front();
                 },
                 [this](const Finish& o) { tell_(Finished{finish(o.grace_ms, o.killed_ms)}); },
                 [this](const StartPlace& o) { start(o); },
                 [this](const TellPlan& o) { tell_plan(o); },
                 [this](const RestartPlace& o) { restart(o); },
                 [this](const ToPlaces& o) {
                   of_ = o.of;
                   for (const PlaceId place : o.places)
                     if (has(place)) post(place, o.of, o.message);
                 },
                 [this](const KillPlace& o) {
                   if (has(o.place)) process(o.place).signal(SIGKILL);
                 },
                 [this](const DismissPlace& o) {
                   if (places_.count(o.place) == 0) return;  // it could not be started, as the job is about to hear
                   log_debug(name_of(o.place) + " has no part in the job any more, and ends");
                   process(o.place).link.reset();
                   places_.at(o.place).broken = true;
                 },
                 [this](const SettledPlaces& o) {
                   for (const auto& [id, place] : places_)
                     Launcher::forget_memory(process(id), std::find(o.used.begin(), o.used.end(), id) != o.used.end());
                 },
             },
             order);
}

void Agent::start(const StartPlace& order) {
  const std::size_t before = launcher_.workers().size();
  const Status started = launcher_.start(order.prefix, order.keeps_memory);
  if (launcher_.workers().size() > before) {  // it may run though it is not watched: finish() ends it
    places_[order.place] = {before, order.prefix, nullptr, {}, false, !started.ok()};
    log_debug(fmt::format("{} is process {}", name_of(order.place), process(order.place).pid));
  }
  if (!started.ok()) return tell_(PlaceEnded{order.place, {ProcessEnd::Kind::refused, started}});
  tell_(PlaceStarted{order.place, process(order.place).pid, memory_name(process(order.place))});
}

void Agent::tell_plan(const TellPlan& order) {
  if (of_.job != order.of.job) states_.clear();
  of_ = order.of;
  run_ = order.run;
  for (const auto& [id, hello] : order.hellos) {
    if (!has(id)) return;
    Place& place = places_.at(id);
    place.plan = order.plan;
    place.hello = hello;
    if (order.renews_memory) {
      WorkerProcess& w = process(id);
      if (const Status s = Launcher::renew_memory(w); !s.ok()) return tell_(AgentFailed{s});
      place.hello.memory = memory_name(w);
      tell_(MemoryRenewed{id, place.hello.memory});
    }
  }
  for (const auto& [id, hello] : order.hellos) send_plan(id, order.of);
}

void Agent::send_plan(PlaceId id, JobGeneration of) {
  const Place& place = places_.at(id);
  post(id, of, place.plan);
  post(id, of, std::make_shared<const std::vector<std::byte>>(encode(ToWorker(place.hello))));
}

void Agent::restart(const RestartPlace& order) {
  if (!has(order.place)) return;
  of_ = order.of;
  Place& place = places_.at(order.place);
  place.broken = place.told = false;
  if (order.afresh) place.garbled = false;
  WorkerProcess& w = process(order.place);
  const auto line = [&](const std::string& text) { tell_(PlaceLogged{order.place, text}); };
  if (const Status s = launcher_.restart(w, place.prefix, order.afresh, line); !s.ok())
    return tell_(AgentFailed{s.in(name_of(order.place) + " cannot be started again")});
  log_debug(fmt::format("{} is process {} now", name_of(order.place), w.pid));
  tell_(PlaceStarted{order.place, w.pid, memory_name(w)});
  place.hello.injections.clear();  // they have hit the place's first process
  place.hello.memory.clear();      // it has been given it
  send_plan(order.place, order.of);
}

void Agent::post(PlaceId to, JobGeneration of, SharedBytes message) {
  WorkerProcess& w = process(to);
  // read_link() notices a broken link; the exit of the process says why.
  const Status s = w.link ? w.link->post(of, std::move(message)) : Status{};
  if (!s.ok() && s.code() != Code::unavailable) tell_(AgentFailed{s.in(name_of(to))});
}

void Agent::watch(PollSet& set) {
  for (auto& [id, place] : places_) {
    WorkerProcess& w = process(id);
    // A process that does not read must not delay the others.
    const short more = w.link && w.link->unsent() ? POLLOUT : 0;
    if (w.link && !place.broken)
      set.add(w.link->fd(), static_cast<short>(POLLIN | more), [this, id = id](short happened) {
        const auto& link = process(id).link;
        if (!link) return;  // dismissed in this turn
        if ((happened & POLLOUT) != 0) (void)link->flush().ok();
        if ((happened & ~POLLOUT) != 0) read_link(id);
        else if (process(id).exited) places_.at(id).broken = true;  // since before; its child holds the link
      });
    set.add(w.log_fd, POLLIN, [this, id = id](short happened) {
      if (happened != 0) read_log(id);
    });
    if (w.held) launcher_.reap(w);  // once a turn: its pidfd stays readable
    else if (!w.exited)
      set.add(w.pidfd, POLLIN, [this, id = id](short happened) {
        if (happened != 0) process(id).held = !launcher_.reap(process(id));
      });
  }
}

void Agent::read_log(PlaceId place) {
  launcher_.read_log(process(place), [&](const std::string& line) { tell_(PlaceLogged{place, line}); });
}

void Agent::read_link(PlaceId place) {
  read_log(place);  // what it has put out before comes first
  std::deque<ControlFrame> frames;
  const Status s = process(place).link->receive(frames);
  for (ControlFrame& frame : frames) tell_(FromPlace{place, std::move(frame)});
  if (s.ok()) return;
  if (s.code() != Code::unavailable) {
    places_.at(place).garbled = true;
    tell_(Garbled{place, s.in(name_of(place))});
  }
  places_.at(place).broken = true;  // its process is about to end, or has been told to
  log_debug(name_of(place) + ": " + s.message());
}

void Agent::tell_ends() {
  for (auto& [id, place] : places_) {
    const WorkerProcess& w = process(id);
    if (!w.exited || !place.broken || std::exchange(place.told, true)) continue;
    read_log(id);
    tell_(PlaceEnded{
        id,
        {kind_of(w.wait_status),
         Status(Code::unavailable, fmt::format("{} (pid {}) {}", name_of(id), w.pid, describe_exit(w.wait_status))),
         left_by(id)}});
  }
}

WholeVersions Agent::left_by(PlaceId id) {
  const Place& place = places_.at(id);
  const WholeVersions none = std::vector<std::int64_t>();
  const WorkerProcess& w = process(id);
  if (w.memory_fd < 0 || !place.plan) return none;
  const auto told = decode_to_worker(*place.plan);
  const auto plan = told.ok() ? read_plan(std::get<PlanBytes>(*told).bytes) : Expected<Plan>(told.status());
  ASSERT(plan.ok(), plan.status().message());
  const auto local = local_plan(*plan, place.hello.rank);
  ASSERT(local.ok(), local.status().message());
  const auto area = map_to_read(kept_memory_name(w.memory_fd));
  if (area.ok() && static_cast<std::int64_t>((*area)->size()) >= local->kept_bytes())
    return whole_versions(*plan, *local, (*area)->data());
  log_debug(fmt::format("{}: {}", name_of(id), area.status().message()));
  return none;
}

Kept Agent::keep(int grace_ms, int killed_ms) {
  const Status ended = launcher_.end_processes(grace_ms, {}, killed_ms);
  if (!ended.ok()) log_warn(ended.message());
  Kept kept{of_, {}, {}, {states_.begin(), states_.end()}};
  const Place* first = nullptr;  // all have the plan that it has, or take no part
  for (auto& [id, place] : places_) {
    const WorkerProcess& w = process(id);
    place.broken = place.told = true;
    const bool usable = w.exited && w.memory_fd >= 0 && place.plan && !place.garbled &&
                        kind_of(w.wait_status) != ProcessEnd::Kind::suspect && (!first || *first->plan == *place.plan);
    if (!usable) {
      Launcher::forget_memory(process(id), false);
      continue;
    }
    first = &place;
    kept.places.push_back({id, left_by(id), place.hello.rank});
  }
  if (first) kept.plan = digest_of(*first->plan, run_);
  return kept;
}

void Agent::forget_kept(std::span<const PlaceId> but_for) {
  std::erase_if(places_, [&](const auto& p) {
    const bool forgets = std::find(but_for.begin(), but_for.end(), p.first) == but_for.end();
    if (forgets) Launcher::forget_memory(process(p.first), false);
    return forgets;
  });
}

Status Agent::finish(int grace_ms, int killed_ms) {
  const auto line = [&](Rank worker, const std::string& text) {
    const auto place = std::find_if(places_.begin(), places_.end(),
                                    [&](const auto& p) { return p.second.worker == static_cast<std::size_t>(worker); });
    if (place != places_.end()) tell_(PlaceLogged{place->first, text});  // else of a job before
  };
  return launcher_.finish(grace_ms, line, killed_ms);
}

}  // namespace troupe::runtime
