#include "runtime/launch/job_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "devices/base/check.h"
#include "devices/base/clock.h"
#include "devices/base/overloaded.h"
#include "devices/base/plain_text.h"
#include "placement/machines.h"
#include "runtime/launch/kept_run.h"
#include "runtime/plan/plan_io.h"

namespace troupe::runtime {

namespace {

SharedBytes shared(const ToWorker& message) { return std::make_shared<const std::vector<std::byte>>(encode(message)); }

/// The first error, with the text of the second.
Status both(const Status& a, const Status& b) {
  return a.ok() ? b : b.ok() ? a : Status(a.code(), a.message() + "; " + b.message());
}

}  // namespace

JobPlaces::JobPlaces(const JobOptions& options, std::function<void(PlaceId, const std::string&)> log)
    : options_(options), log_(std::move(log)) {}

void JobPlaces::use_this_machine() {
  const std::size_t number = machines_.size();
  Machine& m = machines_.emplace_back();
  m.places = std::numeric_limits<std::int64_t>::max();
  m.own = std::make_unique<Agent>([this, number](FromAgent message) { told_.push_back({number, std::move(message)}); });
}

void JobPlaces::add_machine(AgentPort::Joined joined, bool late, const std::vector<PlaceId>& back) {
  Machine& m = machines_.emplace_back();
  m.name = joined.joins.machine;
  m.net_device = joined.joins.net_device;
  m.host = joined.joins.host;
  m.late = late;
  m.places = joined.joins.places;
  m.connection = std::move(joined.connection);
  const std::size_t number = machines_.size() - 1;
  m.connection->on_readable([this, number] { read(number); });
  for (const PlaceId id : back) {
    Place& place = at(id);
    place.machine = number;
    place.dismissed = false;
    place.has_room = true;
    place.not_started = {};
    ++m.started;
  }
  order(number, Welcome{machine_budget_ms(), back});
}

bool JobPlaces::can_be_back(PlaceId place, const std::string& machine) const {
  if (static_cast<std::size_t>(place) >= places_.size() || at(place).machine >= machines_.size()) return false;
  const Machine& m = machines_[at(place).machine];
  return !m.own && !m.connection && m.name == machine;
}

std::int32_t JobPlaces::machine_budget_ms() const {
  constexpr int unhurried_ms = 30'000;  // a job that does not go on has no reason to judge early
  return options_.recovers ? options_.detect_budget_ms : std::max(options_.detect_budget_ms, unhurried_ms);
}

std::int64_t JobPlaces::room(OnMachines which) const {
  std::int64_t room = 0;
  for (const Machine& m : machines_) {
    if (m.own) return std::numeric_limits<std::int64_t>::max();
    if (has_room(m, which)) room += m.places - m.started;
  }
  return room;
}

bool JobPlaces::has_machine(const std::string& name) const {
  return std::any_of(machines_.begin(), machines_.end(),
                     [&](const Machine& m) { return m.connection && m.name == name; });
}

std::vector<std::string> JobPlaces::idle_machines() const {
  std::vector<std::string> names;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    const auto lives_there = [m](const Place& p) { return p.machine == m && p.pid >= 0; };
    if (machines_[m].connection && std::none_of(places_.begin(), places_.end(), lives_there))
      names.push_back(machines_[m].name);
  }
  return names;
}

std::int64_t JobPlaces::machines_reached() {
  return std::count_if(machines_.begin(), machines_.end(), [](const Machine& m) { return m.own || m.connection; });
}

void JobPlaces::order(std::size_t machine, const ToAgent& what) {
  Machine& m = machines_[machine];
  if (m.own) return m.own->take(what);
  if (!m.connection) return;  // its places were lost with it
  if (const Status s = m.connection->post(encode(what)); !s.ok()) lose(machine, s);
}

template <class Make>
void JobPlaces::order_each(std::span<const PlaceId> places, Make make) {
  std::map<std::size_t, std::vector<PlaceId>> by_machine;
  for (const PlaceId place : places) by_machine[at(place).machine].push_back(place);
  for (const auto& [machine, there] : by_machine) order(machine, make(there));
}

void JobPlaces::begin(std::vector<Hello> hellos) {
  hellos_ = std::move(hellos);
  const auto wanted = std::ssize(hellos_);
  std::vector<std::int32_t> seated(hellos_.size(), -1);  // by rank, of a job before: their machines are known
  if (options_.kept)
    for (const auto& [place, rank] : options_.kept->ranks)
      seated[static_cast<std::size_t>(rank)] = static_cast<std::int32_t>(at(place).machine);
  std::vector<std::int64_t> places;
  std::int64_t room = 0;
  for (const Machine& m : machines_) {
    places.push_back(has_room(m, OnMachines::any) ? std::min<std::int64_t>(m.places - m.started, wanted) : 0);
    room += places.back();
  }
  if (room < std::count(seated.begin(), seated.end(), -1)) return;  // it takes another shape
  const auto machine_of = fill_machines(places, wanted, options_.places_together, seated);
  std::size_t next = places_.size();  // places_of
  for (std::size_t rank = 0; rank < seated.size(); ++rank)
    if (seated[rank] < 0) seats_[next++] = machine_of[rank];
}

PlaceId JobPlaces::start(OnMachines which) {
  const std::size_t number = places_.size();
  Place& place = places_.emplace_back();
  place.hello = hellos_[number < hellos_.size() ? number : 0];
  if (number >= hellos_.size()) {
    place.hello.place = static_cast<std::int32_t>(number);
    place.hello.cores.clear();
    if (!options_.net_devices.empty()) place.hello.net_device.clear();  // it is of another place
    place.hello.injections.clear();
  }
  const PlaceId id{static_cast<std::int32_t>(number)};
  const auto& prefixes = options_.prefixes;
  auto machine = std::find_if(machines_.begin(), machines_.end(), [&](const Machine& m) { return has_room(m, which); });
  if (const auto found = seats_.find(number); which == OnMachines::any && found != seats_.end())
    if (const auto seat = machines_.begin() + found->second; has_room(*seat, which)) machine = seat;
  REQUIRE(machine != machines_.end(), number);
  ++machine->started;
  if (!machine->net_device.empty()) place.hello.net_device = machine->net_device;
  place.machine = static_cast<std::size_t>(machine - machines_.begin());
  order(id,
        StartPlace{id, number < prefixes.size() ? prefixes[number] : std::vector<std::string>(), options_.recovers});
  return id;
}

Expected<bool> JobPlaces::have_started(std::span<const PlaceId> places) const {
  bool all = true;
  for (const PlaceId place : places) {
    TROUPE_TRY(at(place).not_started);
    all &= at(place).started;
  }
  return all;
}

void JobPlaces::tell(const Plan& plan, std::span<const PlaceId> places, std::span<const PlaceId> some, JobGeneration of,
                     Memory memory) {
  const SharedBytes bytes = shared(PlanBytes{write_plan(plan)});
  const std::string run = options_.recovers ? digest_of_plan(plan, options_.identity) : "";
  const auto host_of = [this](PlaceId place) {
    const Machine& m = machines_[at(place).machine];
    return std::pair(m.host, m.host.empty() ? at(place).machine : 0);
  };
  std::map<std::pair<std::string, std::size_t>, std::int32_t> on_host;  // agents of one host share its /dev/shm
  for (const PlaceId place : places) ++on_host[host_of(place)];
  order_each(some, [&](const std::vector<PlaceId>& there) {
    TellPlan order{of, bytes, {}, memory != Memory::stays, run, widths_of(plan), memory == Memory::is_new};
    for (const PlaceId place : there) {
      at(place).hello.neighbours = on_host.at(host_of(place));
      order.hellos.emplace_back(place, at(place).hello);
    }
    return order;
  });
}

void JobPlaces::tell_plan(const Plan& plan, std::span<const PlaceId> places, JobGeneration of) {
  tell(plan, places, places, of, Memory::stays);
}

void JobPlaces::remember(std::int64_t version, const SumState& sums) {
  SharedBytes state;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    if (!machines_[m].connection) continue;
    if (!state) state = std::make_shared<const std::vector<std::byte>>(encode_sums(sums));
    order(m, Remember{version, state});
  }
}

void JobPlaces::add_machine_with(AgentPort::Joined joined, const std::vector<PlaceId>& kept) {
  for (const PlaceId id : kept)
    while (places_.size() <= static_cast<std::size_t>(id)) {  // a number whose place no agent has kept has no machine
      Place& none = places_.emplace_back();
      none.machine = std::numeric_limits<std::size_t>::max();
      none.dismissed = true;
    }
  add_machine(std::move(joined), false, kept);
}

void JobPlaces::add_lost(std::span<const PlaceId> lost) {
  machines_.emplace_back();  // that is not reached
  for (const PlaceId id : lost) {
    REQUIRE(static_cast<std::size_t>(id) == places_.size(), static_cast<std::int32_t>(id), places_.size());
    Place& place = places_.emplace_back();
    place.machine = machines_.size() - 1;
    place.dismissed = true;
  }
}

void JobPlaces::seat(std::span<const PlaceId> places) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    Place& place = at(places[rank]);
    place.hello = hellos_[rank];
    place.hello.place = static_cast<std::int32_t>(places[rank]);
    if (const Machine& m = machines_[place.machine]; !m.net_device.empty()) place.hello.net_device = m.net_device;
  }
}

void JobPlaces::reshape(const Plan& plan, std::span<const PlaceId> places, JobGeneration of) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    Hello& hello = at(places[rank]).hello;
    hello.rank = static_cast<Rank>(rank);
    hello.injections.clear();  // the process has them
  }
  tell(plan, places, places, of, Memory::is_renewed);
}

void JobPlaces::fill(const Plan& plan, std::span<const PlaceId> places, std::span<const PlaceId> newcomers,
                     JobGeneration of) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (std::find(newcomers.begin(), newcomers.end(), places[rank]) == newcomers.end()) continue;
    Place& place = at(places[rank]);
    place.hello.rank = static_cast<Rank>(rank);
    place.hello.injections.clear();
    place.is_new = true;
  }
  tell(plan, places, newcomers, of, Memory::is_new);
}

void JobPlaces::send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) {
  // The same bytes to each place: a plan may be large, and a job may have many.
  const SharedBytes bytes = shared(message);
  order_each(to, [&](const std::vector<PlaceId>& there) { return ToPlaces{of, there, bytes}; });
}

void JobPlaces::settled(std::span<const PlaceId> used) {
  for (Place& place : places_) place.home.clear();
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    SettledPlaces order;
    for (const PlaceId place : used)
      if (at(place).machine == m) order.used.push_back(place);
    this->order(m, order);
  }
}

void JobPlaces::dismiss(PlaceId id) {
  Place& place = at(id);
  if (std::exchange(place.dismissed, true) || !place.not_started.ok()) return;
  if (place.started && place.pid < 0) give_room_back(place);  // its process has ended, or another one is being started
  order(id, DismissPlace{id});
}

void JobPlaces::give_room_back(Place& place) {
  if (std::exchange(place.has_room, false)) --machines_[place.machine].started;
}

std::string JobPlaces::memory_of(PlaceId place) {
  const Place& p = at(place);
  return p.home.empty() ? p.memory : p.home;
}

Status JobPlaces::with_last_log_lines(PlaceId of, const Status& status) {
  const auto& lines = at(of).last_lines;
  if (lines.empty()) return status;
  std::string text = status.message() + "; its last log lines:";
  for (const std::string& line : lines) text += "\n  " + line;
  return {status.code(), text};
}

void JobPlaces::watch(PollSet& set) {
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    const Machine& m = machines_[i];
    if (m.own) m.own->watch(set);
    else if (m.connection)
      set.add(m.connection->fd(), m.connection->events(), [this, i](short happened) {
        if (happened != 0) read(i);
      });
  }
}

void JobPlaces::turn(std::int64_t now_ns) {
  turned_ns_ = now_ns;
  const std::int64_t budget_ns = machine_budget_ms() * std::int64_t{1'000'000};
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    Machine& m = machines_[i];
    if (m.own) m.own->tell_ends();
    if (!m.connection) continue;
    if (std::exchange(m.heard, false) || m.heard_ns < 0) m.heard_ns = now_ns;
    if (now_ns - m.sent_ns >= budget_ns / 8) {
      m.sent_ns = now_ns;
      order(i, Beat{});
    }
    if (m.connection && now_ns - m.heard_ns > budget_ns)
      lose(i, Status(Code::unavailable, fmt::format("its agent has said nothing for {:.1f} s",
                                                    static_cast<double>(now_ns - m.heard_ns) * 1e-9)));
  }
}

void JobPlaces::set_aside(PlaceId place) {
  const std::size_t machine = at(place).machine;
  if (!machines_[machine].own && machines_[machine].connection)
    set_aside(machine, Status(Code::unavailable, "it is set aside"));
}

void JobPlaces::set_aside(std::size_t machine, const Status& why) {
  const Machine& m = machines_[machine];
  constexpr std::int64_t s = 1'000'000'000, first_ns = s, most_ns = 30 * s;
  const std::int64_t now_ns = turned_ns_;
  Aside& aside = aside_[m.name];
  const bool anew = now_ns - aside.since_ns > 2 * aside.wait_ns + 2 * most_ns;
  aside = {now_ns, anew ? first_ns : std::clamp(2 * aside.wait_ns, first_ns, most_ns)};
  lose(machine, why);
}

std::int64_t JobPlaces::is_aside_until_ns(const std::string& name, bool waits) const {
  const auto aside = aside_.find(name);
  constexpr std::int64_t most_ns = 2'000'000'000;
  if (aside == aside_.end()) return 0;
  return aside->second.since_ns + (waits ? std::min(aside->second.wait_ns, most_ns) : aside->second.wait_ns);
}

void JobPlaces::resumed_after_stop(std::int64_t now_ns) {
  for (Machine& m : machines_) m.heard_ns = now_ns;
}

void JobPlaces::read(std::size_t machine) {
  Machine& m = machines_[machine];
  if (!m.connection) return;
  std::deque<std::vector<std::byte>> messages;
  const Status s = m.connection->serve(messages);
  m.heard = true;
  for (const auto& bytes : messages) {
    auto message = decode_from_agent(bytes);
    if (!message.ok()) return lose(machine, message.status());
    const auto is_here = [&](const auto& said) {
      if constexpr (requires { said.place; }) {
        const auto n = static_cast<std::size_t>(said.place);
        return n < places_.size() && places_[n].machine == machine;
      } else {
        return true;
      }
    };
    if (!std::visit(is_here, *message))
      return lose(machine, Status(Code::invalid, "it speaks for a worker that it does not have"));
    if (const auto* finished = std::get_if<Finished>(&*message)) m.finished = finished->left;
    else told_.push_back({machine, *std::move(message)});
  }
  if (!s.ok()) lose(machine, s);
}

void JobPlaces::lose(std::size_t machine, const Status& why) {
  Machine& m = machines_[machine];
  m.connection.reset();
  for (std::size_t n = 0; n < places_.size(); ++n)
    if (places_[n].machine == machine)
      told_.push_back(
          {machine, PlaceEnded{PlaceId{static_cast<std::int32_t>(n)},
                               {ProcessEnd::Kind::lost,
                                Status(Code::unavailable,
                                       fmt::format("worker {} was lost with machine {}: {}", n, m.name, why.message())),
                                std::vector<std::int64_t>()}}});
}

Status JobPlaces::begin_to_finish(int grace_ms, int killed_ms) {
  Status left;
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    if (machines_[i].own) left = both(left, machines_[i].own->finish(grace_ms, killed_ms));
    else order(i, Finish{grace_ms, killed_ms});
  }
  return left;
}

void JobPlaces::let_go(const Status& why) {
  for (Machine& m : machines_) {
    if (m.connection && !why.ok())
      (void)m.connection->post(encode(ToAgent(Refused{"the job does not begin: " + why.message(), true}))).ok();
    m.connection.reset();
  }
}

bool JobPlaces::has_finished() const {
  return std::none_of(machines_.begin(), machines_.end(), [](const Machine& m) { return m.connection && !m.finished; });
}

Status JobPlaces::left_behind() const {
  Status left;
  for (const Machine& m : machines_) {
    if (m.finished) left = both(left, *m.finished);
    else if (m.connection)
      left = both(left, Status(Code::unavailable, "machine " + m.name + " does not say that its workers ended"));
  }
  return left;
}

Status JobPlaces::finish(int grace_ms, int killed_ms) {
  const SteadyClock clock;
  const Status left = begin_to_finish(grace_ms, killed_ms);
  constexpr std::int64_t ms = 1'000'000, more_ms = 5'000;
  const std::int64_t until_ns = clock.now_ns() + (std::int64_t{grace_ms} + killed_ms + more_ms) * ms;
  while (!has_finished() && clock.now_ns() < until_ns) {
    PollSet set;
    watch(set);
    if (set.wait(200)) set.serve();
  }
  return both(left, left_behind());
}

void JobPlaces::bring_to(Coordinator& coordinator, std::int64_t now_ns) {
  while (!told_.empty()) {
    const Told told = std::move(told_.front());
    told_.pop_front();
    take(told, coordinator, now_ns);
  }
}

void JobPlaces::take(const PlaceStarted& started, Coordinator& coordinator, std::int64_t now_ns) {
  Place& place = at(started.place);
  place.pid = started.pid;
  place.memory = started.memory;
  place.is_new = false;
  place.last_lines.clear();
  if (!std::exchange(place.started, true) && coordinator.rank_of(started.place) < 0)
    coordinator.add_place(started.place, now_ns);
}

void JobPlaces::failed(std::size_t machine, const Status& why, Coordinator& coordinator) {
  const Machine& m = machines_[machine];
  constexpr int fails_most = 3;  // of one machine, before the job has begun: it would fail again
  const bool may_go_on = coordinator.has_begun() || (options_.kept && ++failed_[m.name] < fails_most);
  if (m.own || !may_go_on) return coordinator.end(m.own ? why : why.in("machine " + m.name), exit_worker);
  if (m.connection) set_aside(machine, why);  // it may fail again at once
}

void JobPlaces::take(const Told& told, Coordinator& coordinator, std::int64_t now_ns) {
  std::visit(Overloaded{
                 [&](const PlaceStarted& m) { take(m, coordinator, now_ns); },
                 [&](const MemoryRenewed& m) {
                   Place& place = at(m.place);
                   if (!std::exchange(place.is_new, false) && place.home.empty()) place.home = place.memory;
                   place.memory = m.memory;
                 },
                 [&](const FromPlace& m) { coordinator.heard(m.place, m.frame, now_ns); },
                 [&](const Garbled& m) {
                   if (!coordinator.over()) coordinator.distrust(m.place, m.why, now_ns);
                 },
                 [&](const PlaceLogged& m) {
                   auto& lines = at(m.place).last_lines;
                   lines.push_back(plain_line(m.line));
                   if (lines.size() > log_lines_kept) lines.pop_front();
                   log_(m.place, m.line);
                 },
                 [&](const PlaceEnded& m) {
                   Place& place = at(m.place);
                   place.pid = -1;
                   const bool never = !place.started && place.not_started.ok();
                   if (never) place.not_started = m.end.how;
                   if (place.dismissed || never) give_room_back(place);
                   if (place.started || coordinator.rank_of(m.place) >= 0) coordinator.down(m.place, m.end, now_ns);
                 },
                 [&](const AgentFailed& m) { failed(told.machine, m.why, coordinator); }, [](const Joins&) {},
                 [](const Asks&) {},                          // AgentPort takes these
                 [](const Beat&) {}, [](const Finished&) {},  // read() takes it
             },
             told.what);
}

}  // namespace troupe::runtime
