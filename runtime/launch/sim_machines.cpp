#include "runtime/launch/sim_machines.h"

#include <algorithm>

#include "runtime/launch/sim_agent_processes.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

MachineWorld::MachineWorld(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
                           const SimMachinesOptions& options)
    : SimProcesses(ops, user_actors, cluster_of(options), ends_most), plan_(plan), o_(options) {
  std::stable_sort(o_.faults.begin(), o_.faults.end(),
                   [](const auto& a, const auto& b) { return a.at_event < b.at_event; });
  if (o_.lease_ms > 0) store_.emplace(o_.lease_ms * ms_ns, o_.flaw != SimMachinesFlaw::compares_not);
  for (const std::int32_t places : o_.machines) add_machine(places);
  begin_process(store_ ? 0 : no_machine);
}

MachineWorld::~MachineWorld() = default;

SimMachinesOutcome MachineWorld::run() {
  while (!over_) turn();
  if (store_ && !store_->violation().empty()) violates(store_->violation());
  out_.run = std::move(run_);
  out_.run.virtual_ns = loop_.now_ns();
  digest_.add_all(loop_.now_ns(), out_.job.exit_code, name_hash(out_.job.status.message()));
  out_.run.digest = digest_.value();
  close();
  return std::move(out_);
}

SimClusterOptions MachineWorld::cluster_of(const SimMachinesOptions& o) {
  SimClusterOptions c;
  c.seed = o.seed;
  c.recovers = true;
  return c;
}

void MachineWorld::turn() {
  drain();
  while (fault_ < o_.faults.size() && o_.faults[fault_].at_event <= run_.events) inject(o_.faults[fault_++]);
  drain();
  if (over_) return;
  if (cannot_be_led()) return;
  advance(wakes_ns());
  if (!take_reached()) return;
  if (loop_.now_ns() >= o_.virtual_most_ns) {
    violates("the job does not end");
    over_ = true;
  }
  for (std::size_t n = 0; n < processes_.size() && !over_; ++n)
    if (wakes(*processes_[n])) turn_process(*processes_[n]);
  if (over_ || store_ || !processes_.back()->gone || loop_.now_ns() < begins_again_ns_) return;
  begins_again_ns_ = never_ns;
  begin_process();
}

bool MachineWorld::cannot_be_led() {
  const bool ends = store_ && coming_ == 0 &&
                    std::all_of(processes_.begin(), processes_.end(), [](const auto& p) { return p->gone; }) &&
                    std::none_of(machines_.begin(), machines_.end(),
                                 [](const Machine& m) { return m.life != nullptr; });
  if (ends && out_.job.status.ok()) {  // every process of it was lost: its agents have waited for it in vain
    out_.job.status = Status(Code::unavailable, led_by_none);
    out_.job.exit_code = exit_worker;
  }
  over_ = over_ || ends;
  return ends;
}

std::int64_t MachineWorld::wakes_ns() const {
  std::int64_t first_ns = begins_again_ns_;
  const std::int64_t poll_ns = std::min<std::int64_t>(200 * ms_ns, o_.job.detect_budget_ms * ms_ns / 8);
  for (const auto& p : processes_) {
    if (p->gone) continue;
    std::int64_t at = p->turned_ns + poll_ns;
    if (p->stage == Stage::runs && !p->finishing) at = std::min(at, p->running->coordinator().wakes_ns());
    first_ns = std::min(first_ns, std::max({at, loop_.now_ns(), p->stopped_until_ns}));
  }
  return first_ns;
}

// ---- SimProcesses ------------------------------------------------------------------------------------

void MachineWorld::heard(Rank from, ControlFrame frame, bool) {
  const auto [machine, number] = owner_[static_cast<std::size_t>(from)];
  at_agent(machine, number, [this, machine = machine, from, frame = std::move(frame)]() mutable {
    machines_[machine].processes->heard(from, std::move(frame));
  });
}

void MachineWorld::reaped(Rank r, ProcessEnd end, bool) {
  const auto [machine, number] = owner_[static_cast<std::size_t>(r)];
  at_agent(machine, number,
           [this, machine = machine, r, end = std::move(end)] { machines_[machine].processes->reaped(r, end); });
}

Buffer* MachineWorld::memory_named(const std::string& name, Rank reader) {
  const Machine& m = machines_[owner_[static_cast<std::size_t>(reader)].first];
  return m.processes ? m.processes->memory_named(name) : nullptr;
}

std::int64_t MachineWorld::committed() const {
  const Process* p = leader();
  return p && p->running ? p->running->coordinator().committed() : 0;
}

void MachineWorld::link(Rank r) {
  const std::size_t own = owner_[static_cast<std::size_t>(r)].first;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    if (!machines_[m].processes) continue;
    for (const Rank peer : machines_[m].processes->ends()) {
      if (peer == r) continue;
      if (are_apart(own, m)) cut(r, peer);
      else heal(r, peer);
    }
  }
}

SimMachinesOutcome simulate_machines(const Plan& plan, const kernels::OpSet& ops,
                                     const actors::UserActorSet& user_actors, const SimMachinesOptions& options) {
  return MachineWorld(plan, ops, user_actors, options).run();
}

}  // namespace troupe::runtime
