#include "tests/scenarios/machine_seed.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>

#include "runtime/launch/sim_place.h"

namespace troupe::scenarios {

using namespace runtime;
using MachineFault = SimMachineFault;
using Kind = SimMachineFault::Kind;

namespace {

constexpr std::int64_t one_second_ns = 1'000'000'000;
/// Events that a recovery takes, or more.
constexpr std::int64_t incident_events = 300;
/// Virtual time of a job without faults, and what a fault adds: a machine is lost after 2 s and waited for for 10, a
/// process that starts may be silent for 20, and an agent that is refused asks again.
constexpr std::int64_t calm_machines_ns = 40 * one_second_ns, machine_fault_ns = 90 * one_second_ns;
/// A spare that the end of an interrupted job has not reached leads it three times, and waits a minute each time.
constexpr std::int64_t led_in_vain_ns = 190 * one_second_ns;
/// An agent that was away for so long may have been given up.
constexpr std::int64_t long_away_ns = 8 * one_second_ns;

std::int64_t lasts_most_ns(Kind kind) {
  switch (kind) {
    case Kind::machine_lost:
    case Kind::replaced:
    case Kind::agent_killed:
    case Kind::leader_lost: return 8 * one_second_ns;
    case Kind::store_away:
    case Kind::store_cut:
    case Kind::leader_cut_off:
    case Kind::frozen:
    case Kind::cut_off:
    case Kind::cut_to:
    case Kind::cut_from:
    case Kind::job_stopped: return 15 * one_second_ns;
    case Kind::delayed: return 10 * one_second_ns;
    case Kind::job_lost: return 5 * one_second_ns;
    case Kind::pause: return SimFault::pause_most_ns;
    case Kind::apart: return 2 * one_second_ns;
    case Kind::kill:
    case Kind::crash:
    case Kind::hang:
    case Kind::blip:
    case Kind::joins:
    case Kind::interrupt: return 0;
  }
  return 0;
}

/// Memory may be lost by it, or not be waited for.
bool may_lose_memory(const SimMachineHit& h) {
  switch (h.kind) {
    case Kind::crash:
    case Kind::machine_lost:
    case Kind::replaced:
    case Kind::agent_killed:
    case Kind::leader_lost: return true;
    default: return h.until_ns - h.at_ns >= long_away_ns;
  }
}

bool equal_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

std::int64_t count_of(const MachinesRun& run, Kind kind) {
  return std::count_if(run.out.hits.begin(), run.out.hits.end(), [&](const auto& h) { return h.kind == kind; });
}

void check_lines(const CompiledScenario& c, const Told& told, Violations& violations) {
  const auto& whole = c.undisturbed().steps;
  for (std::size_t i = 0; i < told.steps.size(); ++i) {
    const StepResult& one = told.steps[i];
    if (one.step != static_cast<std::int64_t>(i) || i >= whole.size()) {
      violations.push_back(fmt::format("the line of step {} is where that of step {} is due", one.step, i));
      return;
    }
    if (!equal_bits(one.loss, whole[i].loss) || !equal_bits(one.grad_norm, whole[i].grad_norm) ||
        !equal_bits(one.lr, whole[i].lr))
      violations.push_back(fmt::format("step {} has loss {:.17g} and norm {:.17g}, and {:.17g} and {:.17g} undisturbed",
                                       i, one.loss, one.grad_norm, whole[i].loss, whole[i].grad_norm));
  }
  for (const auto& [version, values] : told.evaluations) {
    const auto it = c.undisturbed().evaluations.find(version);
    if (it == c.undisturbed().evaluations.end() ||
        !std::equal(values.begin(), values.end(), it->second.begin(), it->second.end(), equal_bits))
      violations.push_back(fmt::format("the evaluation of version {} is not that of the undisturbed job", version));
  }
}

/// Where memory survives: each part of the state lies on two machines, and one may go.
bool memory_survives(const Scenario& s, const MachinesRun& run) {
  const auto losses = std::count_if(run.out.hits.begin(), run.out.hits.end(), may_lose_memory);
  const bool twice = s.copy_every == 0 && s.zero == 0 &&
                     std::all_of(s.dp.begin(), s.dp.end(), [](auto dp) { return dp >= 2; }) &&
                     std::all_of(s.machines.begin(), s.machines.end(), [](auto places) { return places == 1; });
  // A shape that has not settled yet is lost with what is lost next (docs/decisions/0048).
  if (!s.replace && run.out.hits.size() > 1) return false;
  return losses == 0 || (losses == 1 && twice && std::ssize(run.out.hits) == 1);
}

void check_state(const CompiledScenario& c, const MachinesRun& run, Violations& violations) {
  const Scenario& s = c.scenario();
  const std::int64_t repeated_max = std::max<std::int64_t>(1, s.copy_every);
  const bool strict = memory_survives(s, run);
  std::uint32_t generation = 0;
  for (const Incident& one : run.out.incidents) {
    if (one.version < 0) continue;
    const auto wrong = [&](const std::string& what) {
      violations.push_back(fmt::format("incident ({}): {}", one.cause.substr(0, one.cause.find('\n')), what));
    };
    if (one.generation <= generation) wrong(fmt::format("generation {} follows {}", one.generation, generation));
    generation = one.generation;
    if (one.version > one.committed) wrong(fmt::format("version {} of {}", one.version, one.committed));
    if (!strict) continue;
    if (one.version < one.committed - repeated_max)
      wrong(fmt::format("it goes on from version {}, and {} were committed", one.version, one.committed));
    if (one.from != "memory" && one.committed > 1) wrong("it goes on from initial values, and memory was left");
  }
  for (const SimJobProcess& p : run.out.processes)
    if (p.first > p.lines_before || (strict && p.first < p.lines_before - repeated_max))
      violations.push_back(fmt::format("a process of the job goes on from version {}, and {} lines are written",
                                       p.first, p.lines_before));
}

}  // namespace

std::vector<MachineFault> draw_machine_faults(const Scenario& s, std::uint64_t seed, std::int64_t events) {
  constexpr std::uint64_t own = 9000;
  if (draw_below(seed, own, 16) == 0) return {};
  std::int64_t sum = 0;
  for (const std::int64_t w : s.machine_weights) sum += w;
  std::vector<MachineFault> faults;
  const std::int64_t count = 1 + draw_below(seed, own + 1, s.faults_most);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    const std::uint64_t what = own + 10 * (i + 1);
    std::int64_t at = draw_below(seed, what, sum);
    std::size_t kind = 0;
    while (at >= s.machine_weights[kind]) at -= s.machine_weights[kind++];
    MachineFault f;
    f.kind = static_cast<Kind>(kind);
    f.which = static_cast<std::uint32_t>(draw_below(seed, what + 1, 1000));
    f.peer = static_cast<std::uint32_t>(draw_below(seed, what + 2, 1000));
    // As many short ones as long ones.
    const std::int64_t most = draw_below(seed, what + 3, 2) == 0 ? lasts_most_ns(f.kind) : lasts_most_ns(f.kind) / 8;
    f.for_ns = most > 0 ? most / 10 + draw_below(seed, what + 4, most) * 9 / 10 : 0;
    const bool soon = i > 0 && draw_below(seed, what + 5, 3) > 0;
    f.at_event = soon ? faults.back().at_event + 1 + draw_below(seed, what + 6, incident_events)
                      : draw_below(seed, what + 6, std::max<std::int64_t>(events, 1));
    faults.push_back(f);
  }
  std::stable_sort(faults.begin(), faults.end(), [](const auto& a, const auto& b) { return a.at_event < b.at_event; });
  return faults;
}

Ending check_machines(const CompiledScenario& c, const MachinesRun& run, Violations& violations) {
  const JobResult& job = run.out.job;
  const auto hits = std::ssize(run.out.hits);
  violations.insert(violations.end(), run.out.violations.begin(), run.out.violations.end());
  check_lines(c, run.told, violations);
  for (const Told& before : run.told_before) check_lines(c, before, violations);
  check_state(c, run, violations);
  const bool store_lost =
      count_of(run, Kind::store_away) + count_of(run, Kind::store_cut) + count_of(run, Kind::leader_cut_off) > 0;
  const std::int64_t in_vain_ns = store_lost && count_of(run, Kind::interrupt) > 0 ? led_in_vain_ns : 0;
  if (run.out.run.virtual_ns > calm_machines_ns + hits * machine_fault_ns + in_vain_ns)
    violations.push_back(fmt::format("the job took {:.1f} s of virtual time, with {} faults",
                                     static_cast<double>(run.out.run.virtual_ns) * 1e-9, hits));
  if (run.out.kept_nothing) {
    const bool had_lines = std::any_of(run.out.processes.begin(), run.out.processes.end(),
                                       [](const SimJobProcess& p) { return p.lines_before > 1; });
    if (memory_survives(c.scenario(), run) && had_lines)
      violations.push_back("the job began again, and agents had kept nothing, though no memory was lost");
    return Ending::state_lost;
  }
  if (job.status.ok()) {
    if (std::ssize(run.told.steps) != c.scenario().steps || job.committed_steps != c.scenario().steps)
      violations.push_back(fmt::format("the job has ended well after {} of {} steps, with {} lines",
                                       job.committed_steps, c.scenario().steps, run.told.steps.size()));
    if (run.out.run.params_hash != c.undisturbed().params_hash)
      violations.push_back(
          fmt::format("params_hash is {}, and {} undisturbed", run.out.run.params_hash, c.undisturbed().params_hash));
    return Ending::finished;
  }
  if (job.exit_code == exit_interrupted && count_of(run, Kind::interrupt) > 0) return Ending::interrupted;
  if (job.exit_code == exit_do_not_requeue && (hits > incidents_in_a_row_max || count_of(run, Kind::apart) > 0))
    return Ending::gave_up;
  // Asked to end, it has told its agents so, and could not tell the store: another agent tries to lead it in vain.
  if (job.exit_code == exit_worker && count_of(run, Kind::interrupt) > 0 && c.scenario().lease_ms > 0 &&
      run.out.processes.size() > 1 && job.status.message().find("machines have joined within") != std::string::npos)
    return Ending::interrupted;
  const bool begun = run.out.processes.size() > 1 || run.out.processes[0].first_generation > 0;
  if (job.exit_code == exit_worker && !begun && store_lost && job.status.message() == "the store does not answer")
    return Ending::not_begun;  // it could not take the lead
  if (job.exit_code == exit_worker && !begun && c.scenario().lease_ms > 0 && hits > 0 &&
      job.status.message().find("and its machines have") != std::string::npos)
    return Ending::not_begun;  // one that had joined was lost before the job began
  if (job.exit_code == exit_worker && !begun && run.out.processes[0].lost &&
      job.status.message() == "no process leads the run")
    return Ending::not_begun;  // its only process was lost before the store had its claim
  if (job.exit_code == exit_worker && run.told.steps.empty() && hits > 0 &&
      job.status.message().starts_with("a machine was lost before the job began"))
    return Ending::not_begun;
  if (job.exit_code == exit_worker && !memory_survives(c.scenario(), run) &&
      job.status.message().find("with which the job began in memory, not all is left") != std::string::npos)
    return Ending::state_lost;
  violations.push_back(fmt::format("the job has ended with exit code {}: {}", job.exit_code, job.status.message()));
  return Ending::wrong;
}

SeedRun run_machine_seed(CompiledScenario& c, std::uint64_t seed, Planted planted) {
  MachinesRun run;
  run.faults = draw_machine_faults(c.scenario(), seed, c.events());
  SimMachinesOptions o = c.machines();
  o.seed = seed;
  o.faults = run.faults;
  o.flaw = flaw_of(planted);
  std::deque<Told> files;  // of each process of the job: the one before may still write its own
  o.lines = [&files] { return files.empty() ? 0 : std::ssize(files.back().steps); };
  o.session = [&](std::int64_t first) {
    Told& told = files.emplace_back(files.empty() ? Told() : files.back());
    if (first < std::ssize(told.steps)) told.steps.resize(static_cast<std::size_t>(first));
    std::erase_if(told.evaluations, [&](const auto& e) { return e.first >= first; });
    return session_of(c.scenario(), first, told);
  };
  run.out = simulate_machines(c.plan(), c.ops(), c.user_actors(), o);
  if (!files.empty()) run.told = std::move(files.back()), files.pop_back();
  run.told_before = {files.begin(), files.end()};

  SeedRun result;
  const Ending ending = check_machines(c, run, result.violations);
  RollingHash digest;
  digest.add_all(run.out.run.digest, run.out.run.events, run.out.job.exit_code);
  digest.add(std::as_bytes(std::span(run.out.job.status.message())));
  result.digest = digest.value();
  Counts& n = result.counts;
  n.runs = 1;
  n.events = run.out.run.events;
  n.slowest_virtual_ns = run.out.run.virtual_ns;
  ++n.endings[static_cast<std::size_t>(ending)];
  for (const MachineFault& f : run.faults) ++n.machine_faults[static_cast<std::size_t>(f.kind)];
  for (const SimMachineHit& h : run.out.hits) ++n.machine_hits[static_cast<std::size_t>(h.kind)];
  for (const SimJobProcess& p : run.out.processes) {
    n.processes_lost += p.lost;
    n.processes_superseded += p.replaced;
  }
  for (const Incident& i : run.out.incidents) {
    ++n.incidents;
    n.planned += i.planned;
    n.reshaped += !i.shape.empty();
    if (i.version < 0) continue;
    ++(i.from == "memory" ? n.from_memory : n.from_initial);
    n.repeated_steps += i.committed - i.version;
  }
  std::string& story = result.story;
  story = fmt::format("'{}', on {} machines\n", c.scenario().name, c.scenario().machines.size());
  for (const MachineFault& f : run.faults)
    story += fmt::format("  fault: {} of {} and {} at event {}, for {:.3f} s\n", name_of(f.kind), f.which, f.peer,
                         f.at_event, static_cast<double>(f.for_ns) * 1e-9);
  for (const SimMachineHit& h : run.out.hits)
    story += fmt::format("  hit: {} at {:.6f} s\n", name_of(h.kind), static_cast<double>(h.at_ns) * 1e-9);
  for (const SimJobProcess& p : run.out.processes)
    story += fmt::format("  process from version {}, with {} lines, generations {} to {}{}{}{}\n", p.first,
                         p.lines_before, p.first_generation, p.last_generation, p.lost ? ", lost" : "",
                         p.replaced ? ", replaced while it lived" : "",
                         p.exit_code >= 0 ? fmt::format(", exit code {}", p.exit_code) : "");
  for (const Incident& i : run.out.incidents)
    story += fmt::format("  incident: {}\n    generation {}, from version {} of {} ({}){}\n", i.cause, i.generation,
                         i.version, i.committed, i.from.empty() ? "initial values" : i.from,
                         i.shape.empty() ? "" : ", as " + i.shape);
  story += fmt::format("  {}: exit code {}, {} lines, {} events, {:.3f} s\n  {}\n", name_of(ending),
                       run.out.job.exit_code, run.told.steps.size(), run.out.run.events,
                       static_cast<double>(run.out.run.virtual_ns) * 1e-9, run.out.job.status.message());
  return result;
}

}  // namespace troupe::scenarios
