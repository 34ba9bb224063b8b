#include "runtime/launch/gather_machines.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <set>

#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "runtime/agents/agent_process.h"

namespace troupe::runtime {

namespace {

/// Ok, or what is in the way for now.
Status has_place_for(const Joins& joins, const std::vector<AgentPort::Joined>& others, bool full) {
  for (const AgentPort::Joined& other : others)
    if (other.joins.machine == joins.machine) return name_is_taken(joins.machine);
  return full ? Status(Code::unavailable, "the job has all its machines") : Status{};
}

}  // namespace

Status check_program(const Joins& joins, const std::string& program) {
  if (joins.program == program) return {};
  return invalid("machine " + joins.machine +
                 " runs another executable than the job: install the same build on all machines");
}

void refuse(AgentPort::Joined& joined, const Status& why) {
  log_warn(fmt::format("{} is refused: {}", joined.peer, why.message()));
  (void)joined.connection->post(encode(ToAgent(Refused{why.message(), false}))).ok();
}

Status name_is_taken(const std::string& machine) {
  return Status(Code::unavailable, "there is a machine " + machine + " already (--name)");
}

void refuse_for_now(AgentPort::Joined& joined, const Status& why, std::set<std::string>& told) {
  if (told.insert(joined.joins.machine + ": " + why.message()).second)
    log_warn(fmt::format("{} is refused for now: {}", joined.peer, why.message()));
  (void)joined.connection->post(encode(ToAgent(Refused{why.message(), true}))).ok();
}

Expected<std::shared_ptr<GatheredMachines>> open_and_gather(const JobMachines& machines, int interrupt_fd, bool all) {
  auto gathered = std::make_shared<GatheredMachines>();
  TROUPE_ASSIGN(const TokenKey token, machines.key());
  TROUPE_ASSIGN(gathered->port, AgentPort::open(machines.listen, token));
  if (machines.on_listen) TROUPE_TRY(machines.on_listen(gathered->port->address()));
  log_info(
      fmt::format("waits for the agents of {} at {}", counted(machines.count, "machine"), gathered->port->address()));
  TROUPE_ASSIGN(gathered->program, program_fingerprint());
  TROUPE_ASSIGN(gathered->joined,
                gather_machines(*gathered->port, machines, gathered->program, interrupt_fd, SteadyClock(), all));
  return gathered->joined.empty() ? nullptr : gathered;
}

Expected<std::vector<AgentPort::Joined>> gather_machines(AgentPort& port, const JobMachines& machines,
                                                         const std::string& program, int interrupt_fd,
                                                         const Clock& clock, bool all) {
  const std::int64_t until_ns = clock.now_ns() + machines.wait_s * std::int64_t{1'000'000'000};
  constexpr std::int64_t window_ns = 1'000'000'000;
  std::vector<AgentPort::Joined> joined;
  std::set<std::string> told;
  std::int64_t last_ns = 0;
  const auto is_full = [&] { return std::ssize(joined) >= machines.count; };
  while (!is_full() || (all && clock.now_ns() < last_ns + window_ns)) {
    PollSet set;
    port.watch(set);
    bool interrupted = false;
    set.add(interrupt_fd, POLLIN, [&interrupted](short happened) { interrupted = happened != 0; });
    std::set<std::string> gone;  // by machine
    for (const AgentPort::Joined& one : joined)
      set.add(one.connection->fd(), one.connection->events(), [&](short happened) {
        std::deque<std::vector<std::byte>> early;
        if (happened != 0 && !one.connection->serve(early).ok()) gone.insert(one.joins.machine);
      });
    if (set.wait(200)) set.serve();
    std::erase_if(joined, [&](const auto& one) { return gone.count(one.joins.machine) > 0; });
    port.turn(clock.now_ns());
    for (AgentPort::Joined& one : port.take_joined()) {
      if (const Status s = check_program(one.joins, program); !s.ok()) {
        refuse(one, s);
      } else if (const Status s = has_place_for(one.joins, joined, is_full() && !all); !s.ok()) {
        refuse_for_now(one, s, told);
      } else {
        joined.push_back(std::move(one));
        last_ns = clock.now_ns();
      }
    }
    if (interrupted) return std::vector<AgentPort::Joined>();
    if (machines.give_up) TROUPE_TRY(machines.give_up());
    if (clock.now_ns() >= until_ns)
      return Status(Code::unavailable, fmt::format("{} of {} machines have joined within {} s (troupe agent --join)",
                                                   joined.size(), machines.count, machines.wait_s));
  }
  std::sort(joined.begin(), joined.end(),
            [](const auto& a, const auto& b) { return a.joins.machine < b.joins.machine; });
  return joined;
}

}  // namespace troupe::runtime
