#include "tests/scenarios/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_reader.h"
#include "devices/parallel.h"

namespace troupe::scenarios {

using runtime::Incident;
using runtime::StepResult;

namespace {

/// Virtual time in which a job without faults ends, and what a fault may add: a silent place is found in 2 s, a process
/// that starts may be silent for 20 s (CR-5 silence), and a job without progress is left alone for a while.
constexpr std::int64_t calm_ns = 20'000'000'000, fault_ns = 60'000'000'000;

bool same(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

std::int64_t count(const Start& start, bool (*of)(FaultKind)) {
  return std::count_if(start.faults.begin(), start.faults.end(), [of](const Fault& f) { return of(f.kind); });
}

bool any(const Start& start, bool (*of)(FaultKind)) { return count(start, of) > 0; }

}  // namespace

const char* name_of(Ending ending) {
  constexpr const char* names[] = {"finished", "machine stopped", "interrupted",   "gave up",
                                   "disk",     "not begun",       "no place left", "wrong"};
  return names[static_cast<std::size_t>(ending)];
}

Ending check_ending(const CompiledScenario& c, const Start& start, Violations& violations) {
  const auto& job = start.out.job;
  const auto limit_ns = calm_ns + fault_ns * std::ssize(start.faults);
  const auto told = std::ssize(start.told.steps);
  const bool begun = !job.incidents.empty() || told > 0 || job.status.ok();
  if (begun && start.out.run.virtual_ns > limit_ns)
    violations.push_back(fmt::format("the job took {:.1f} s of virtual time, and may take {:.0f} s",
                                     static_cast<double>(start.out.run.virtual_ns) * 1e-9,
                                     static_cast<double>(limit_ns) * 1e-9));
  if (start.machine_stopped) return Ending::machine_stopped;
  // Where memory was suspect, the job may go on from before a step that was told.
  const bool repeats = any(start, [](FaultKind k) { return k == FaultKind::crash; });
  if (job.committed_steps > start.first + told || (job.committed_steps < start.first + told && !repeats))
    violations.push_back(fmt::format("the job has committed {} steps, and told of those from {} to {}",
                                     job.committed_steps, start.first, start.first + told));
  if (job.status.ok()) {
    if (job.exit_code != runtime::exit_ok)
      violations.push_back(fmt::format("the job has ended well with exit code {}", job.exit_code));
    if (job.committed_steps != c.scenario().steps)
      violations.push_back(
          fmt::format("the job has ended well after {} of {} steps", job.committed_steps, c.scenario().steps));
    if (start.out.run.params_hash != c.undisturbed().params_hash)
      violations.push_back(
          fmt::format("params_hash is {}, and {} undisturbed", start.out.run.params_hash, c.undisturbed().params_hash));
    if (c.scenario().checkpoint_every > 0 && start.first < c.scenario().steps && start.saved != c.scenario().steps &&
        !any(start, is_of_disk))
      violations.push_back(fmt::format("the job has ended well, and its newest checkpoint is of step {}", start.saved));
    return Ending::finished;
  }
  switch (job.exit_code) {
    case runtime::exit_interrupted:
      if (!any(start, [](FaultKind k) { return k == FaultKind::interrupt; })) break;
      if (job.status.message().find(" after step ") != std::string::npos) {
        const auto paused = fmt::format("interrupted after step {} of {}", job.committed_steps, c.scenario().steps);
        if (job.status.message() != paused)
          violations.push_back(fmt::format("the job says '{}', and was {}", job.status.message(), paused));
        if (job.committed_steps > start.first && start.saved != job.committed_steps)
          violations.push_back(
              fmt::format("the job was {}, and its newest checkpoint is of step {}", paused, start.saved));
      }
      return Ending::interrupted;
    case runtime::exit_checkpoint:
      if (any(start, [](FaultKind k) { return k == FaultKind::disk_full || k == FaultKind::disk_error; }))
        return Ending::disk;
      break;
    case runtime::exit_do_not_requeue:
      if (count(start, is_loss) > runtime::incidents_in_a_row_max) return Ending::gave_up;
      break;
    case runtime::exit_worker:
    case runtime::exit_stalled:
      if (!begun && any(start, [](FaultKind k) { return is_loss(k) || k == FaultKind::disk_error; }))
        return Ending::not_begun;
      // A planned change to fewer places dismisses the others.
      if (!c.scenario().replace && job.status.message().find("no shape of this job runs on") != std::string::npos &&
          std::any_of(job.incidents.begin(), job.incidents.end(), [](const Incident& i) { return i.planned; }))
        return Ending::no_place_left;
      break;
    default: break;
  }
  violations.push_back(fmt::format("the job has ended with exit code {}: {}", job.exit_code, job.status.message()));
  return Ending::wrong;
}

void check_told(const CompiledScenario& c, const Start& start, Ending ending, Violations& violations) {
  const auto& whole = c.undisturbed();
  for (std::size_t i = 0; i < start.told.steps.size(); ++i) {
    const StepResult& one = start.told.steps[i];
    const auto step = start.first + static_cast<std::int64_t>(i);
    if (one.step != step) {
      violations.push_back(fmt::format("step {} is told where step {} is due", one.step, step));
      break;
    }
    if (step >= c.scenario().steps) {
      violations.push_back(fmt::format("step {} is told of a job of {} steps", step, c.scenario().steps));
      break;
    }
    const StepResult& other = whole.steps[static_cast<std::size_t>(step)];
    if (!same(one.loss, other.loss) || !same(one.grad_norm, other.grad_norm) || !same(one.lr, other.lr) ||
        one.void_step != other.void_step)
      violations.push_back(fmt::format("step {} has loss {:.17g} and norm {:.17g}, and {:.17g} and {:.17g} undisturbed",
                                       step, one.loss, one.grad_norm, other.loss, other.grad_norm));
  }
  std::set<std::int64_t> evaluated;
  for (const auto& [version, values] : start.told.evaluations) {
    if (!evaluated.insert(version).second)
      violations.push_back(fmt::format("the evaluation of version {} is told twice", version));
    const auto it = whole.evaluations.find(version);
    if (it == whole.evaluations.end() ||
        !std::equal(values.begin(), values.end(), it->second.begin(), it->second.end(), same))
      violations.push_back(fmt::format("the evaluation of version {} is not that of the undisturbed job", version));
  }
  const std::set begun(start.told.started.begin(), start.told.started.end());
  if (begun.size() != start.told.started.size()) violations.push_back("a program is told twice to have begun");
  if (ending == Ending::finished) {
    for (const auto& [version, values] : whole.evaluations)
      if (version >= start.first && evaluated.count(version) == 0)
        violations.push_back(fmt::format("the evaluation of version {} is not told", version));
    for (const auto& [program, version] : begun)
      if (program == "evaluate" && evaluated.count(version) == 0)
        violations.push_back(fmt::format("program '{}' of version {} has begun, and not closed", program, version));
  }
  for (std::size_t i = 1; i < start.told.happened.size(); ++i) {
    // Not their times: an evaluation is told before the step that was committed while it ran (CO-3 held back).
    const auto before = start.told.happened[i - 1].second, after = start.told.happened[i].second;
    if (after < before)
      violations.push_back(fmt::format("an event of generation {} is told after one of generation {}", after, before));
  }
}

void check_incidents(const CompiledScenario& c, const Start& start, Ending ending, Violations& violations) {
  std::uint32_t generation = start.generation;
  const auto& incidents = start.out.job.incidents;
  const bool suspect = any(start, [](FaultKind k) { return k == FaultKind::crash; });
  for (std::size_t i = 0; i < incidents.size(); ++i) {
    const Incident& one = incidents[i];
    const auto wrong = [&](const std::string& what) {
      violations.push_back(fmt::format("incident {} ({}): {}", i, one.cause.substr(0, one.cause.find('\n')), what));
    };
    const bool last = i + 1 == incidents.size();
    if (one.version < 0) {
      if (!last || ending == Ending::finished) wrong("the job has not gone on from any version");
      continue;
    }
    if (one.generation <= generation)
      wrong(fmt::format("generation {} follows generation {}", one.generation, generation));
    generation = one.generation;
    if (one.version > one.committed) wrong(fmt::format("version {} of {} committed ones", one.version, one.committed));
    if (one.from == "memory") {
      // Places that went on from an older version, as memory was suspect, hold that one when another place is lost.
      const bool older = suspect && one.lost.size() > 1;
      if (one.version < one.committed - 1 && !older)
        wrong(fmt::format("it goes on from version {} in memory, and {} were committed", one.version, one.committed));
    } else if (!suspect && !(one.version == start.first && one.committed == start.first)) {  // no actor had written it
      wrong(fmt::format("it goes on from {}, and no memory was suspect",
                        one.from.empty() ? "initial values" : "'" + one.from + "'"));
    }
    if (one.planned && one.lost.empty() && one.version != one.committed)
      wrong(fmt::format("a planned change goes on from version {} of {}", one.version, one.committed));
    const bool acts = one.act_ns >= 0;
    if (!acts && (!last || (ending == Ending::finished && one.version < c.scenario().steps)))
      wrong("it has not closed");
    if (acts && !(one.down_ns <= one.last_down_ns && one.last_down_ns <= one.left_ns && one.left_ns <= one.agreed_ns &&
                  one.agreed_ns <= one.ready_ns && one.ready_ns <= one.act_ns))
      wrong("its times are not in order");
  }
}

std::optional<Newest> check_disk(SimStorage& disk, const std::string& folder, std::int64_t saved,
                                 Violations& violations) {
  const checkpoint::Catalog catalog(disk, folder);
  const auto entries = catalog.entries();
  if (!entries.ok()) {
    violations.push_back("the checkpoints cannot be listed: " + entries.status().message());
    return {};
  }
  std::optional<Newest> newest;
  SerialParallel serial;
  for (const auto& e : *entries) {
    if (!e.committed) continue;
    const auto manifest = catalog.manifest(e.folder);
    if (!manifest.ok()) {
      violations.push_back("a manifest does not load: " + manifest.status().message());
      continue;
    }
    const auto reader = checkpoint::CheckpointReader::open(disk, catalog.path(e.folder), *manifest);
    const auto wrong = reader.ok() ? reader->verify(serial) : std::vector{reader.status().message()};
    if (!wrong.empty()) violations.push_back("checkpoint '" + e.folder + "' does not load: " + wrong.front());
    else newest = Newest{catalog.path(e.folder), *manifest};
  }
  if (const auto step = newest ? newest->manifest.stamp.step : 0; step < saved)
    violations.push_back(fmt::format(
        "the checkpoint of step {} was told to be committed, and the newest that loads is of step {}", saved, step));
  return newest;
}

}  // namespace troupe::scenarios
