#include <algorithm>

#include "runtime/launch/sim_agent_processes.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

void MachineWorld::inject(const SimMachineFault& fault) {
  if (run_.fault_ns < 0) run_.fault_ns = loop_.now_ns();
  digest_.add_all(loop_.now_ns(), static_cast<int>(fault.kind), fault.which, fault.peer);
  if (hits(fault)) out_.hits.push_back({fault.kind, loop_.now_ns(), loop_.now_ns() + fault.for_ns});
}

std::vector<Rank> MachineWorld::living() const {
  std::vector<Rank> out;
  for (std::size_t r = 0; r < owner_.size(); ++r) {
    const Machine& m = machines_[owner_[r].first];
    if (m.number == owner_[r].second && places_[r].lives()) out.push_back(static_cast<Rank>(r));
  }
  return out;
}

bool MachineWorld::hits(const SimMachineFault& f) {
  using Kind = SimMachineFault::Kind;
  const std::size_t machine = f.which % machines_.size();
  const std::size_t other = (machine + 1 + f.peer % std::max<std::size_t>(machines_.size() - 1, 1)) % machines_.size();
  Machine& m = machines_[machine];
  const auto place = [&](std::uint32_t which) -> std::optional<Rank> {
    const auto all = living();
    return all.empty() ? std::nullopt : std::optional(all[which % all.size()]);
  };
  const auto at_end = [&](std::function<void()> what) { loop_.at(loop_.now_ns() + f.for_ns, std::move(what)); };
  switch (f.kind) {
    case Kind::kill:
    case Kind::crash:
      if (const auto r = place(f.which)) return SimProcesses::kill(*r, f.kind == Kind::crash), true;
      return false;
    case Kind::hang:
      if (const auto r = place(f.which)) return hang(*r);
      return false;
    case Kind::pause:
      if (const auto r = place(f.which)) return pause(*r, f.for_ns);
      return false;
    case Kind::blip: {
      const auto a = place(f.which), b = place(f.peer);
      return a && b && *a != *b && blip(*a, *b);
    }
    case Kind::machine_lost:
    case Kind::replaced:
      if (!m.life) return false;
      end_agent(machine, true);
      at_end([this, machine, kind = f.kind] {
        if (kind == Kind::machine_lost) begin_agent(machine);
        else add_machine(machines_[machine].places);
      });
      return true;
    case Kind::agent_killed:
      if (!m.life) return false;
      end_agent(machine, false);
      at_end([this, machine] { begin_agent(machine); });
      return true;
    case Kind::frozen:
      if (!m.life || loop_.now_ns() < m.paused_until_ns) return false;
      m.paused_until_ns = loop_.now_ns() + f.for_ns;
      for (const Rank r : m.processes->ends()) (void)pause(r, f.for_ns);
      return true;
    case Kind::cut_off:
    case Kind::cut_to:
    case Kind::cut_from:
      if (m.cut_to || m.cut_from) return false;
      m.cut_to = f.kind != Kind::cut_from;
      m.cut_from = f.kind != Kind::cut_to;
      at_end([this, machine] {
        machines_[machine].cut_to = machines_[machine].cut_from = false;
        release(machine);
      });
      return true;
    case Kind::delayed:
      m.late_ns = random_ns(SimMachineFault::late_most_ns);
      at_end([this, machine] { machines_[machine].late_ns = 0; });
      return true;
    case Kind::apart:
      if (machine == other || !m.apart.insert(other).second) return false;
      machines_[other].apart.insert(machine);
      relink(machine, other);
      at_end([this, machine, other] {
        machines_[machine].apart.erase(other);
        machines_[other].apart.erase(machine);
        relink(machine, other);
      });
      return true;
    case Kind::joins: return add_machine(o_.machines.front()), true;
    case Kind::job_lost:
      if (!process_ || process_->finishing || !process_->running) return false;
      return lose_process(f.for_ns), true;
    case Kind::job_stopped:
      if (!process_ || loop_.now_ns() < process_->stopped_until_ns) return false;
      process_->stopped_until_ns = loop_.now_ns() + f.for_ns;
      return true;
    case Kind::interrupt:
      if (!process_ || !process_->running || process_->finishing) return false;
      process_->running->coordinator().interrupt("interrupted", exit_interrupted, loop_.now_ns());
      return true;
  }
  return false;
}

void MachineWorld::relink(std::size_t a, std::size_t b) {
  if (!machines_[a].processes || !machines_[b].processes) return;
  for (const Rank r : machines_[a].processes->ends())
    for (const Rank s : machines_[b].processes->ends())
      if (machines_[a].apart.count(b) > 0) cut(r, s);
      else heal(r, s);
}

}  // namespace troupe::runtime
