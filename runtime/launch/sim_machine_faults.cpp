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
    case Kind::replaced: return lose_machine(machine, f.for_ns, f.kind == Kind::replaced);
    case Kind::agent_killed:
      if (!m.life) return false;
      end_agent(machine, false);
      comes(f.for_ns, [this, machine] { begin_agent(machine); });
      return true;
    case Kind::frozen:
      if (!m.life || loop_.now_ns() < m.paused_until_ns) return false;
      m.paused_until_ns = loop_.now_ns() + f.for_ns;
      for (const Rank r : m.processes->ends()) (void)pause(r, f.for_ns);
      for (const auto& p : processes_)
        if (p->machine == machine) p->stopped_until_ns = std::max(p->stopped_until_ns, m.paused_until_ns);
      return true;
    case Kind::cut_off:
    case Kind::cut_to:
    case Kind::cut_from:
      if (m.cut_to || m.cut_from) return false;
      m.cut_to = f.kind != Kind::cut_from;
      m.cut_from = f.kind != Kind::cut_to;
      at_end([this, machine] {
        machines_[machine].cut_to = machines_[machine].cut_from = false;
        release();
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
    case Kind::job_stopped:
    case Kind::interrupt:
    case Kind::store_away:
    case Kind::store_cut:
    case Kind::leader_cut_off:
    case Kind::leader_lost: return hits_leader(f);
  }
  return false;
}

bool MachineWorld::hits_leader(const SimMachineFault& f) {
  using Kind = SimMachineFault::Kind;
  const auto at_end = [&](std::function<void()> what) { loop_.at(loop_.now_ns() + f.for_ns, std::move(what)); };
  if (f.kind == Kind::store_away) {
    if (!store_ || std::exchange(store_away_, true)) return false;
    at_end([this] { store_away_ = false; });
    return true;
  }
  Process* const p = leader();
  if (!p || p->finishing) return false;
  const std::size_t machine = p->machine;
  switch (f.kind) {
    case Kind::job_lost:
      if (!p->running) return false;
      lose_process(*p, false);
      if (!store_) begins_again_ns_ = loop_.now_ns() + f.for_ns;
      return true;
    case Kind::job_stopped:
      if (!wakes(*p)) return false;
      p->stopped_until_ns = loop_.now_ns() + f.for_ns;
      return true;
    case Kind::interrupt:
      if (p->stage != Stage::runs) return false;
      p->running->coordinator().interrupt("interrupted", exit_interrupted, loop_.now_ns());
      return true;
    case Kind::store_cut:
      if (!store_ || std::exchange(p->store_cut, true)) return false;
      at_end([p] { p->store_cut = false; });
      return true;
    case Kind::leader_cut_off:
      if (machine == no_machine || machines_[machine].isolated) return false;
      isolate(machine, true);
      at_end([this, machine] { isolate(machine, false); });
      return true;
    case Kind::leader_lost: return machine != no_machine && lose_machine(machine, f.for_ns, false);
    default: return false;
  }
}

bool MachineWorld::lose_machine(std::size_t machine, std::int64_t for_ns, bool replaced) {
  bool lost = machines_[machine].life != nullptr;
  for (const auto& p : processes_)
    if (p->machine == machine && !p->gone) lose_process(*p, true), lost = true;
  if (!lost) return false;
  end_agent(machine, true);
  comes(for_ns, [this, machine, replaced] {
    if (replaced) add_machine(machines_[machine].places);
    else if (!machines_[machine].life) begin_agent(machine);
  });
  return true;
}

void MachineWorld::comes(std::int64_t in_ns, std::function<void()> begin) {
  ++coming_;
  loop_.at(loop_.now_ns() + in_ns, [this, begin = std::move(begin)] {
    --coming_;
    begin();
  });
}

void MachineWorld::isolate(std::size_t machine, bool isolated) {
  machines_[machine].isolated = isolated;
  for (std::size_t other = 0; other < machines_.size(); ++other)
    if (other != machine) relink(machine, other);
  if (!isolated) release();
}

void MachineWorld::relink(std::size_t a, std::size_t b) {
  if (!machines_[a].processes || !machines_[b].processes) return;
  for (const Rank r : machines_[a].processes->ends())
    for (const Rank s : machines_[b].processes->ends())
      if (are_apart(a, b)) cut(r, s);
      else heal(r, s);
}

}  // namespace troupe::runtime
