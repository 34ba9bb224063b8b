#include "runtime/agents/launched_processes.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "devices/base/log.h"
#include "devices/host_memory.h"

namespace troupe::runtime {

namespace {

std::string worker_name(PlaceId place) { return fmt::format("worker {}", static_cast<std::int32_t>(place)); }

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

}  // namespace

Expected<std::int64_t> LaunchedProcesses::start(PlaceId place, const std::vector<std::string>& prefix,
                                                bool keeps_memory) {
  const std::size_t before = launcher_.workers().size();
  const Status started = launcher_.start(prefix, keeps_memory);
  if (launcher_.workers().size() > before) {  // it may run though it is not watched: finish() ends it
    places_[place] = {before, prefix, false, !started.ok()};
    log_debug(fmt::format("{} is process {}", worker_name(place), process(place).pid));
  }
  TROUPE_TRY(started);
  return std::int64_t{process(place).pid};
}

Expected<std::int64_t> LaunchedProcesses::restart(PlaceId id, bool afresh) {
  Place& place = places_.at(id);
  place.broken = place.told = false;
  WorkerProcess& w = process(id);
  TROUPE_TRY(launcher_.restart(w, place.prefix, afresh, [&](const std::string& text) { observer_.logged(id, text); }));
  log_debug(fmt::format("{} is process {} now", worker_name(id), w.pid));
  return std::int64_t{w.pid};
}

Status LaunchedProcesses::post(PlaceId to, JobGeneration of, SharedBytes message) {
  WorkerProcess& w = process(to);
  // read_link() notices a broken link; the exit of the process says why.
  const Status s = w.link ? w.link->post(of, std::move(message)) : Status{};
  return s.code() == Code::unavailable ? Status{} : s;
}

void LaunchedProcesses::kill(PlaceId place) { process(place).signal(SIGKILL); }

void LaunchedProcesses::dismiss(PlaceId place) {
  process(place).link.reset();
  places_.at(place).broken = true;
}

std::optional<ProcessEnd::Kind> LaunchedProcesses::how_it_ended(PlaceId place) {
  const WorkerProcess& w = process(place);
  return w.exited ? std::optional(kind_of(w.wait_status)) : std::nullopt;
}

std::string LaunchedProcesses::memory_name(PlaceId place) {
  const WorkerProcess& w = process(place);
  return w.memory_fd < 0 ? "" : kept_memory_name(w.memory_fd);
}

void LaunchedProcesses::look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) {
  const WorkerProcess& w = process(place);
  if (w.memory_fd < 0) return;
  const auto area = map_to_read(kept_memory_name(w.memory_fd));
  if (area.ok()) look({(*area)->data(), (*area)->size()});
  else log_debug(fmt::format("{}: {}", worker_name(place), area.status().message()));
}

Status LaunchedProcesses::end_all(int grace_ms, int killed_ms) {
  for (auto& [id, place] : places_) place.broken = place.told = true;
  return launcher_.end_processes(grace_ms, {}, killed_ms);
}

Status LaunchedProcesses::finish(int grace_ms, int killed_ms) {
  const auto line = [&](Rank worker, const std::string& text) {
    const auto place = std::find_if(places_.begin(), places_.end(),
                                    [&](const auto& p) { return p.second.worker == static_cast<std::size_t>(worker); });
    if (place != places_.end()) observer_.logged(place->first, text);
  };
  return launcher_.finish(grace_ms, line, killed_ms);
}

void LaunchedProcesses::watch(PollSet& set) {
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

void LaunchedProcesses::read_log(PlaceId place) {
  launcher_.read_log(process(place), [&](const std::string& line) { observer_.logged(place, line); });
}

void LaunchedProcesses::read_link(PlaceId place) {
  read_log(place);  // what it has put out before comes first
  std::deque<ControlFrame> frames;
  const Status s = process(place).link->receive(frames);
  for (ControlFrame& frame : frames) observer_.heard(place, std::move(frame));
  if (s.ok()) return;
  if (s.code() != Code::unavailable) observer_.garbled(place, s.in(worker_name(place)));
  places_.at(place).broken = true;  // its process is about to end, or has been told to
  log_debug(worker_name(place) + ": " + s.message());
}

void LaunchedProcesses::tell_ends() {
  for (auto& [id, place] : places_) {
    const WorkerProcess& w = process(id);
    if (!w.exited || !place.broken || std::exchange(place.told, true)) continue;
    read_log(id);
    observer_.ended(
        id, {kind_of(w.wait_status), Status(Code::unavailable, fmt::format("{} (pid {}) {}", worker_name(id), w.pid,
                                                                           describe_exit(w.wait_status)))});
  }
}

}  // namespace troupe::runtime
