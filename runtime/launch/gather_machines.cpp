#include "runtime/launch/gather_machines.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "devices/base/log.h"
#include "devices/base/text_table.h"
#include "runtime/agents/agent_process.h"
#include "runtime/store/leadership.h"

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

Status check_numbers(const Joins& joins, const Joins& first) {
  if (joins.numbers.empty() || first.numbers.empty() || joins.numbers == first.numbers) return {};
  return invalid("machine " + joins.machine + " makes other bits of the same values than machine " + first.machine +
                 " (one of their processors may have a fault): bits would depend on which of them computes what; with "
                 "--mixed-hardware the run takes it all the same");
}

void refuse(AgentPort::Joined& joined, const Status& why) {
  log_warn(fmt::format("{} is refused: {}", joined.peer, why.message()));
  (void)joined.connection->post(encode(ToAgent(Refused{why.message(), false}))).ok();
}

void turn_away(std::span<const AgentPort::Joined> joined, const Status& why) {
  for (const AgentPort::Joined& one : joined)
    (void)one.connection->post(encode(ToAgent(Refused{"the job does not begin: " + why.message(), true}))).ok();
}

Status name_is_taken(const std::string& machine) {
  return Status(Code::unavailable, "there is a machine " + machine + " already (--name)");
}

void refuse_for_now(AgentPort::Joined& joined, const Status& why, std::set<std::string>& told) {
  if (told.insert(joined.joins.machine + ": " + why.message()).second)
    log_warn(fmt::format("{} is refused for now: {}", joined.peer, why.message()));
  (void)joined.connection->post(encode(ToAgent(Refused{why.message(), true}))).ok();
}

Expected<std::shared_ptr<GatheredMachines>> open_and_gather(const JobMachines& machines, int interrupt_fd,
                                                            const LookAtKept& look_at_kept) {
  auto gathered = std::make_shared<GatheredMachines>();
  TROUPE_ASSIGN(const TokenKey token, machines.key());
  TROUPE_ASSIGN(gathered->port, AgentPort::open(machines.listen, token));
  if (machines.lead) {
    const Status taken = machines.lead->take(gathered->port->address(), interrupt_fd);
    if (taken.code() == Code::interrupted) return std::shared_ptr<GatheredMachines>();
    TROUPE_TRY(taken);
  }
  if (machines.on_listen) TROUPE_TRY(machines.on_listen(gathered->port->address()));
  log_info(
      fmt::format("waits for the agents of {} at {}", counted(machines.count, "machine"), gathered->port->address()));
  TROUPE_ASSIGN(gathered->program, program_fingerprint());
  TROUPE_ASSIGN(gathered->joined, gather_machines(*gathered->port, machines, gathered->program, interrupt_fd,
                                                  SteadyClock(), look_at_kept));
  return gathered->joined.empty() ? nullptr : gathered;
}

void Gathering::take(JoinedAgent one, std::int64_t now_ns) {
  if (const Status s = check_program(one.joins, program_); !s.ok()) return refuse(one, s);
  if (!machines_.mixed_hardware && !joined_.empty())
    if (const Status s = check_numbers(one.joins, joined_.front().joins); !s.ok()) return refuse(one, s);
  if (const Status s = has_place_for(one.joins, joined_, is_full() && !goes_on()); !s.ok())
    return refuse_for_now(one, s, told_);
  joined_.push_back(std::move(one));
  kept_.reset();
  last_ns_ = now_ns;
}

void Gathering::lost(const std::string& machine) {
  std::erase_if(joined_, [&](const JoinedAgent& one) { return one.joins.machine == machine; });
  kept_.reset();
}

bool Gathering::are_enough(std::int64_t now_ns) {
  constexpr std::int64_t window_ns = 1'000'000'000, return_ns = CoordinatorWaits::return_least_ns;
  const bool is_quiet = now_ns >= last_ns_ + return_ns;  // none has joined for so long
  if (joined_.empty() || !(is_full() || is_quiet)) return false;
  if (!kept_) kept_ = look_at_kept_(joined_);
  if (!kept_->has_state) return is_full() && is_quiet;
  return kept_->has_room && (is_full() ? now_ns >= last_ns_ + window_ns : kept_->of_other_shape);
}

Expected<bool> Gathering::done(std::int64_t now_ns) {
  if (goes_on() ? are_enough(now_ns) : is_full()) return true;
  const int fewer = machines_.count_to_go_on;
  const bool may_go_on = goes_on() && fewer > 0 && std::ssize(joined_) >= fewer;
  if (may_go_on && now_ns >= last_ns_ + CoordinatorWaits::return_least_ns) return true;
  constexpr std::int64_t second_ns = 1'000'000'000;
  if (now_ns < begun_ns_ + machines_.wait_s * second_ns) return false;
  if (may_go_on || is_full()) return true;
  return Status(Code::unavailable, fmt::format("{} of {} machines have joined within {} s ({})", joined_.size(),
                                               machines_.count, machines_.wait_s, machines_.joins_by));
}

std::string Gathering::answer(const std::string& request, std::int64_t now_ns) const {
  std::string names;
  for (const JoinedAgent& one : joined_) names += (names.empty() ? ": " : ", ") + one.joins.machine;
  const std::int64_t left_s = std::max<std::int64_t>(0, machines_.wait_s - (now_ns - begun_ns_) / 1'000'000'000);
  return fmt::format("{}the job has not begun: {} of {} machines have joined{}; it waits {} more s for the others",
                     request == "ps" ? "" : "troupe: ", joined_.size(), machines_.count, names, left_s);
}

std::vector<JoinedAgent> Gathering::take_joined() {
  std::sort(joined_.begin(), joined_.end(),
            [](const auto& a, const auto& b) { return a.joins.machine < b.joins.machine; });
  return std::exchange(joined_, {});
}

Expected<std::vector<AgentPort::Joined>> gather_machines(AgentPort& port, const JobMachines& machines,
                                                         const std::string& program, int interrupt_fd,
                                                         const Clock& clock, const LookAtKept& look_at_kept) {
  Gathering gathering(machines, program, look_at_kept, clock.now_ns());
  for (;;) {
    const auto done = gathering.done(clock.now_ns());
    if (!done.ok()) turn_away(gathering.joined(), done.status());
    TROUPE_TRY(done.status());
    if (*done) return gathering.take_joined();
    PollSet set;
    port.watch(set);
    bool interrupted = false;
    set.add(interrupt_fd, POLLIN, [&interrupted](short happened) { interrupted = happened != 0; });
    std::set<std::string> gone;  // by machine
    for (const AgentPort::Joined& one : gathering.joined())
      set.add(one.connection->fd(), one.connection->events(), [&](short happened) {
        std::deque<std::vector<std::byte>> early;
        if (happened != 0 && !one.connection->serve(early).ok()) gone.insert(one.joins.machine);
      });
    if (set.wait(200)) set.serve();
    for (const std::string& machine : gone) gathering.lost(machine);
    port.turn(clock.now_ns());
    for (AgentPort::Joined& one : port.take_joined()) gathering.take(std::move(one), clock.now_ns());
    port.serve_requests([&](const std::string& request) { return gathering.answer(request, clock.now_ns()); });
    if (interrupted) return std::vector<AgentPort::Joined>();
    const Status gave_up = machines.give_up ? machines.give_up() : Status{};
    if (!gave_up.ok()) turn_away(gathering.joined(), gave_up);
    TROUPE_TRY(gave_up);
  }
}

}  // namespace troupe::runtime
