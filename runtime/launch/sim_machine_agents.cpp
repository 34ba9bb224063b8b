#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"
#include "runtime/launch/sim_agent_processes.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

void MachineWorld::add_machine(std::int32_t places) {
  Machine& m = machines_.emplace_back();
  m.name = fmt::format("m{:02d}", machines_.size());
  m.places = places;
  begin_agent(machines_.size() - 1);
}

void MachineWorld::begin_agent(std::size_t number) {
  Machine& m = machines_[number];
  ++m.number;
  m.leaders.clear();
  m.stored.reset();
  m.unread = {};
  m.looked = m.job_over = false;
  m.follows = FollowedLeader(Status(Code::unavailable, "the store has not answered yet"));
  m.take_over = {};
  m.started = no_process;
  const Agent::MakeProcesses make = [this, number](ProcessObserver& observer) {
    auto processes = std::make_unique<AgentsProcesses>(*this, number, observer);
    machines_[number].processes = processes.get();
    return processes;
  };
  Joins who{m.name, m.places, sim_program, "", fmt::format("host {}", number), {}};
  const auto send = [this, number](const FromAgent& message) { return say(number, message); };
  m.life = std::make_unique<AgentLife>(AgentLifeOptions{who, "job", o_.job.machines.wait_s * 1000, 0, {}}, send,
                                       loop_.now_ns(), &make);
  const std::int64_t tick_ns = 200 * ms_ns;
  later(boots_ns + random_ns(boots_ns), number, [this, number] {
    if (store_) watch(number);  // which connects once it knows where
    else connect(number);
  });
  tick(number, std::min(tick_ns, o_.job.detect_budget_ms * ms_ns / 8));
}

void MachineWorld::tick(std::size_t number, std::int64_t every_ns) {
  later(every_ns, number, [this, number, every_ns] { tick(number, every_ns); });
}

void MachineWorld::later(std::int64_t ns, std::size_t machine, std::function<void()> f) {
  loop_.at(loop_.now_ns() + ns,
           [this, machine, number = machines_[machine].number, f = std::move(f)] { at_agent(machine, number, f); });
}

void MachineWorld::at_agent(std::size_t machine, int number, std::function<void()> f) {
  Machine& m = machines_[machine];
  if (m.number != number || !m.life) return;
  if (loop_.now_ns() < m.paused_until_ns) {
    loop_.at(m.paused_until_ns, [this, machine, number, f = std::move(f)] { at_agent(machine, number, f); });
    return;
  }
  f();
  if (!m.life || m.number != number) return;
  m.life->turn(loop_.now_ns());
  if (store_) follow(machine);
  if (m.wire && m.life->over()) part(machine);
}

void MachineWorld::connect(std::size_t machine) {
  Machine& m = machines_[machine];
  m.deadline_ns = m.life->connects(loop_.now_ns());
  if (store_) {
    m.follows.connects(address_for(m), loop_.now_ns());
    if (!m.follows.at().ok()) {
      m.life->cannot_connect(m.follows.at().status());
      return part(machine);
    }
  }
  attempt(machine);
}

void MachineWorld::attempt(std::size_t machine) {
  Machine& m = machines_[machine];
  if (loop_.now_ns() >= m.deadline_ns) {
    m.life->breaks(Status(Code::unavailable, "it has not answered"));
    return part(machine);
  }
  const Status leaves = store_ ? m.follows.leaves(address_for(m)) : Status();
  if (!leaves.ok()) {
    m.life->breaks(leaves);
    return part(machine);
  }
  const Process* p = store_ ? processes_[std::stoul(*m.follows.at())].get() : leader();
  const bool is_lost = p && p->gone && p->machine != no_machine && !machines_[p->machine].life;  // with its machine
  if (is_lost || (p ? is_cut(machine, *p, true) || is_cut(machine, *p, false) : m.cut_to || m.cut_from) ||
      (p && !p->gone && !wakes(*p)))
    return later(std::min(asks_again_ns, m.deadline_ns - loop_.now_ns()), machine,
                 [this, machine] { attempt(machine); });
  if (!p || !listens(*p)) {
    m.life->cannot_connect(Status(Code::unavailable, "job: Connection refused"));
    return part(machine);
  }
  m.wire = std::make_shared<SimWire>();
  m.wire->machine = machine;
  m.wire->life = m.number;
  m.wire->process = p->number;
  wires_.push_back(m.wire);
  later(3 * wire_ns + m.late_ns + random_ns(jitter_ns), machine, [this, machine, wire = m.wire] {
    if (machines_[machine].wire == wire) machines_[machine].life->opened(loop_.now_ns());
  });
}

void MachineWorld::part(std::size_t machine) {
  Machine& m = machines_[machine];
  if (Wire wire = std::exchange(m.wire, nullptr); wire && std::exchange(wire->agent_open, false))
    travel(wire, true, [this, wire] {
      wire->broken = true;
      reached(wire);
    });
  const auto ended = m.life->parted(loop_.now_ns());
  if (!ended) return later(AgentLife::retry_ns, machine, [this, machine] { connect(machine); });
  if (!ended->ok()) ++out_.agents_refused;
  digest_.add(name_hash(ended->message()));
  end_agent(machine, false);
}

void MachineWorld::end_agent(std::size_t machine, bool silently) {
  Machine& m = machines_[machine];
  if (!m.life) return;
  if (m.started != no_process && !m.job_over)
    if (Process& p = *processes_[m.started]; !p.gone) lose_process(p, silently);  // it ends with its agent
  m.processes->end_with_agent(silently);
  if (Wire wire = std::exchange(m.wire, nullptr); wire && std::exchange(wire->agent_open, false) && !silently)
    travel(wire, true, [this, wire] {
      wire->broken = true;
      reached(wire);
    });
  ++m.number;
  gone_agents_.push_back(std::move(m.life));  // it may be what has called
  m.processes = nullptr;
}

Status MachineWorld::say(std::size_t machine, FromAgent message) {
  Machine& m = machines_[machine];
  if (!m.wire) return {};
  if (auto* joins = std::get_if<Joins>(&message)) spoil_joins(*joins);
  auto bytes = encode(message);
  digest_.add_all(loop_.now_ns(), machine, 1);
  digest_.add(bytes);
  travel(m.wire, true, [this, wire = m.wire, bytes = std::move(bytes)]() mutable {
    if (!wire->job_open) return;
    wire->in.push_back(std::move(bytes));
    reached(wire);
  });
  return {};
}

void MachineWorld::spoil_joins(Joins& joins) {
  if (o_.flaw == SimMachinesFlaw::two_leaders && joins.kept.of.number > 1) --joins.kept.of.number;
  if (o_.flaw != SimMachinesFlaw::claims_newer) return;
  for (KeptPlace& k : joins.kept.places)
    if (k.left && !k.left->empty()) k.left->push_back(k.left->back() + 1);
  if (!joins.kept.states.empty())
    joins.kept.states.emplace_back(joins.kept.states.back().first + 1, joins.kept.states.back().second);
}

void MachineWorld::welcomed(std::size_t machine) {
  if (o_.flaw == SimMachinesFlaw::joins_twice && !twice_ && machine == 0) {
    twice_ = true;
    machines_.emplace_back();
    machines_.back().name = machines_[0].name + "b";
    machines_.back().places = machines_[0].places;
    twin_ = machines_.size() - 1;
    begin_agent(twin_);
  }
  if (machine == twin_ && machines_[0].wire && machines_[0].life->is_taken())
    violates("machine m01 has two agents that serve the job");
}

void MachineWorld::note_leader(std::size_t machine, std::size_t process, const ToAgent& order) {
  const auto of = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.of; }) return m.of.number;
        else return std::uint32_t{0};
      },
      order);
  if (of == 0) return;
  if (store_) {
    if (const auto* to_places = std::get_if<ToPlaces>(&order)) note_entered(process, *to_places);
    return;
  }
  auto& leaders = machines_[machine].leaders;
  const auto [it, fresh] = leaders.emplace(of, process);
  if (!fresh && it->second != process)
    violates(fmt::format("generation {} has two leaders, processes {} and {} of the job", of, it->second, process));
  if (leaders.rbegin()->first != of)
    violates(fmt::format("an order of generation {} comes after one of {}", of, leaders.rbegin()->first));
}

void MachineWorld::note_entered(std::size_t process, const ToPlaces& order) {
  const auto message = decode_to_worker(*order.message);
  ASSERT(message.ok(), message.status().message());
  if (!std::holds_alternative<Enter>(*message)) return;
  const std::uint32_t of = order.of.number;
  const auto [it, fresh] = entered_.emplace(of, process);
  if (!fresh && it->second != process)
    violates(fmt::format("generation {} has two leaders, processes {} and {} of the job", of, it->second, process));
  if (store_->given_to(of) != processes_[process]->lead->options().leader)
    violates(fmt::format("process {} enters generation {}, which the store has not given to it", process, of));
}

}  // namespace troupe::runtime
