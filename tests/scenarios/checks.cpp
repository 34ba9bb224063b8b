#include "tests/scenarios/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
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

/// Two short faults within so long of each other, or one beside another fault, may hold a place up for too long.
constexpr std::int64_t near_ns = 3'000'000'000;
/// Virtual time that a job which is not held up takes at most: places may be slow to start.
constexpr std::int64_t not_held_up_ns = 4'000'000'000;

constexpr const char *cut_off_text = "do not reach each other", *slow_text = "has not left";
constexpr const char* grace_text = "after the job was asked to end";  // CR-6 (grace)

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::int64_t count(const Start& start, FaultKind kind) {
  return std::count_if(start.hits.begin(), start.hits.end(), [kind](const Hit& h) { return h.kind == kind; });
}

std::int64_t count(const Start& start, bool (*of)(FaultKind)) {
  return std::count_if(start.hits.begin(), start.hits.end(), [of](const Hit& h) { return of(h.kind); });
}

/// Whether the places of a fault that is of two have exchanged messages.
bool is_linked(const Start& start, const Hit& h) {
  return start.out.run.linked.count({std::min(h.place, h.peer), std::max(h.place, h.peer)}) > 0;
}

/// Whether a place may be lost by this one: a short fault only where another one came near it.
bool may_take(const Start& start, const Hit& h) {
  if (is_of_two(h.kind) && !is_linked(start, h)) return false;
  if (takes_place(h.kind)) return true;
  return is_short(h.kind) && std::any_of(start.hits.begin(), start.hits.end(), [&h](const Hit& other) {
           return &other != &h && (takes_place(other.kind) || is_short(other.kind)) &&
                  std::abs(other.at_ns - h.at_ns) < near_ns;
         });
}

/// Whether this one may have taken the place by then.
bool takes(const Start& start, const Hit& h, Rank place, std::int64_t by_ns) {
  return h.at_ns <= by_ns && (h.place == place || (is_of_two(h.kind) && h.peer == place)) && may_take(start, h);
}

bool is_cut(FaultKind kind) { return kind == FaultKind::cut || kind == FaultKind::cut_one_way; }

/// Whether the incidents of the start are such that it had to give up (CR-4 giving up).
bool had_to_give_up(const Start& start) {
  const auto& job = start.out.job;
  if (has(job.status.message(), "generations without an act"))
    return count(start, takes_place) > runtime::incidents_in_a_row_max;
  if (has(job.status.message(), "times without an act between them"))
    return std::any_of(start.hits.begin(), start.hits.end(), [&](const Hit& one) {
      const auto faults = std::count_if(start.hits.begin(), start.hits.end(), [&](const Hit& h) {
        return takes(start, h, one.place, std::numeric_limits<std::int64_t>::max());
      });
      return faults > runtime::losses_in_incident_max &&
             has(job.status.message(), fmt::format("worker {} was lost", one.place).c_str());
    });
  // A row of incidents ends where the job has committed a version for the first time, or has gone on from a later one.
  std::int64_t furthest = -1, row = 0, version = 0;
  for (const Incident& one : job.incidents) {
    if (!one.planned) {
      row = one.committed > furthest ? 1 : row + 1;
      furthest = std::max(furthest, one.committed);
    }
    if (one.version > version) row = std::min<std::int64_t>(row, one.planned ? 0 : 1);
    if (one.version >= 0) version = one.version;
  }
  return row > runtime::incidents_in_a_row_max &&
         has(job.status.message(), "incidents without a new step between them");
}

/// The prefix of what is said of an incident.
std::string name_of(std::size_t i, const Incident& one) {
  return fmt::format("incident {} ({}): ", i, one.cause.substr(0, one.cause.find('\n')));
}

}  // namespace

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::finished: return "finished";
    case Ending::machine_stopped: return "machine stopped";
    case Ending::interrupted: return "interrupted";
    case Ending::gave_up: return "gave up";
    case Ending::disk: return "disk";
    case Ending::not_begun: return "not begun";
    case Ending::no_place_left: return "no place left";
    case Ending::state_lost: return "state lost";
    case Ending::wrong: return "wrong";
  }
  return "";
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
  // Where memory was suspect, or from copies, the job may go on from before a step that was told.
  const bool repeats = count(start, FaultKind::crash) > 0 ||
                       (c.scenario().copy_every > 0 &&
                        std::any_of(job.incidents.begin(), job.incidents.end(),
                                    [](const Incident& i) { return i.version < i.committed; }));
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
        count(start, is_of_disk) == 0)
      violations.push_back(fmt::format("the job has ended well, and its newest checkpoint is of step {}", start.saved));
    return Ending::finished;
  }
  switch (job.exit_code) {
    case runtime::exit_interrupted:
      if (count(start, FaultKind::interrupt) == 0) break;
      if (has(job.status.message(), " after step ")) {
        const auto paused = fmt::format("interrupted after step {} of {}", job.committed_steps, c.scenario().steps);
        if (job.status.message() != paused)
          violations.push_back(fmt::format("the job says '{}', and was {}", job.status.message(), paused));
        if (job.committed_steps > start.first && start.saved != job.committed_steps)
          violations.push_back(
              fmt::format("the job was {}, and its newest checkpoint is of step {}", paused, start.saved));
      } else if (count(start, FaultKind::interrupt) < 2 &&
                 std::none_of(start.hits.begin(), start.hits.end(), [&start](const Hit& h) {
                   const std::int64_t begun_ns = start.out.run.begun_ns;
                   return h.kind == FaultKind::interrupt && (begun_ns < 0 || h.at_ns <= begun_ns);
                 })) {
        violations.push_back("the job was asked to end once, after it had begun, and has saved nothing");
      }
      return Ending::interrupted;
    case runtime::exit_checkpoint:
      if (count(start, FaultKind::disk_full) + count(start, FaultKind::disk_error) > 0) return Ending::disk;
      break;
    case runtime::exit_do_not_requeue:
      if (had_to_give_up(start)) return Ending::gave_up;
      break;
    case runtime::exit_worker:
      if (start.out.run.begun_ns < 0 && count(start, FaultKind::disk_error) + count(start, FaultKind::fails) > 0)
        return Ending::not_begun;
      // A planned change to fewer places dismisses the others.
      if (!c.scenario().replace && has(job.status.message(), "no shape of this job runs on") &&
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
  const Scenario& scenario = c.scenario();
  const auto& told_ns = start.out.run.told_ns;
  if (told_ns.size() != start.told.steps.size()) violations.push_back("steps were told, and the simulation told none");
  // CO-7 (copies): a job goes back copy_every steps at most.
  const std::int64_t repeated_max = std::max<std::int64_t>(1, scenario.copy_every);
  // One replica is left, with everything.
  const bool crash_is_harmless = scenario.copy_every == 0 && scenario.tp == 1 && scenario.zero == 0 &&
                                 count(start, takes_place) == 1 && count(start, is_short) == 0 &&
                                 count(start, FaultKind::change) == 0 &&
                                 std::all_of(scenario.dp.begin(), scenario.dp.end(), [](auto dp) { return dp >= 2; });
  std::uint32_t generation = start.generation;
  bool suspect = false;    // memory was lost, and no step was committed since
  bool went_back = false;  // before steps that were told, which come again
  std::int64_t from_version = start.first;
  const auto& incidents = start.out.job.incidents;
  for (std::size_t i = 0; i < incidents.size(); ++i) {
    const Incident& one = incidents[i];
    const auto wrong = [&](const std::string& what) { violations.push_back(name_of(i, one) + what); };
    const bool last = i + 1 == incidents.size();
    const auto told = [&](auto before) {
      return start.first + std::count_if(told_ns.begin(), told_ns.end(), [&](std::int64_t ns) { return before(ns); });
    };
    const std::int64_t least = told([&](std::int64_t ns) { return ns < one.down_ns; });
    const std::int64_t most = told([&](std::int64_t ns) { return ns <= one.down_ns; }) + 1;
    if (one.committed > from_version) suspect = false;
    if (one.committed > least) went_back = false;
    suspect |= std::any_of(start.hits.begin(), start.hits.end(), [&](const Hit& h) {
      return h.kind == FaultKind::crash && h.at_ns <= one.last_down_ns &&
             std::find(one.lost.begin(), one.lost.end(), static_cast<std::int32_t>(h.place)) != one.lost.end();
    });
    if (!went_back && (one.committed < least || one.committed > most))
      wrong(fmt::format("{} versions were committed, and {} told", one.committed, least));
    if (one.version < 0) {
      if (!last || ending == Ending::finished) wrong("the job has not gone on from any version");
      continue;
    }
    if (one.generation <= generation)
      wrong(fmt::format("generation {} follows generation {}", one.generation, generation));
    generation = one.generation;
    // A job that has gone back to copies, and loses them, goes on from a checkpoint that may be newer.
    const bool saved_later = scenario.copy_every > 0 && one.from != "memory" && !one.from.empty();
    if (one.version > one.committed && !(saved_later && one.version <= least))
      wrong(fmt::format("version {} of {} committed ones", one.version, one.committed));
    const bool strict = !suspect || crash_is_harmless;
    if (one.from == "memory") {
      if (strict && one.version < one.committed - repeated_max)
        wrong(fmt::format("it goes on from version {} in memory, and {} were committed", one.version, one.committed));
    } else if (strict && !(one.ends && one.version == one.committed) &&          // it ends with what is saved already
               !(one.version == start.first && one.committed == start.first)) {  // no actor had written it
      wrong(fmt::format("it goes on from {}, and no memory was suspect",
                        one.from.empty() ? "initial values" : "'" + one.from + "'"));
    }
    if (strict && !went_back && one.version < least && scenario.copy_every == 0)
      wrong(fmt::format("it goes on from version {}, and steps before {} were told (CO-3 held back)", one.version,
                        least));
    // Until all had left, a checkpoint that was written may have been told, with the lines before it.
    const std::int64_t left_ns = std::max(one.left_ns, one.down_ns);
    went_back |= one.version < told([&](std::int64_t ns) { return ns <= left_ns; });
    from_version = one.version;
    if (one.planned && one.lost.empty() && one.version != one.committed)
      wrong(fmt::format("a planned change goes on from version {} of {}", one.version, one.committed));
    const bool acts = one.act_ns >= 0;
    if (!acts && (!last || (ending == Ending::finished && one.version < scenario.steps))) wrong("it has not closed");
    if (acts && !(one.down_ns <= one.last_down_ns && one.last_down_ns <= one.left_ns && one.left_ns <= one.agreed_ns &&
                  one.agreed_ns <= one.ready_ns && one.ready_ns <= one.act_ns))
      wrong("its times are not in order");
  }
}

void check_losses(const Start& start, Violations& violations) {
  const auto& incidents = start.out.job.incidents;
  std::int64_t losses = 0, slow_losses = 0, unplanned = 0;
  bool names_link = false;
  for (std::size_t i = 0; i < incidents.size(); ++i) {
    const Incident& one = incidents[i];
    const bool slow = has(one.cause, slow_text), named = has(one.cause, cut_off_text);
    names_link |= named;
    const bool grace = has(one.cause, grace_text) && count(start, FaultKind::interrupt) > 0;
    unplanned += !one.planned && !slow && !grace ? 1 : 0;
    (slow ? slow_losses : losses) += std::ssize(one.lost);
    // A place that pauses beside a cut link is not heard while the two ends are compared: none is killed.
    const bool unheard = std::any_of(start.hits.begin(), start.hits.end(),
                                     [&](const Hit& h) { return is_short(h.kind) && may_take(start, h); });
    if (!one.planned && !grace && !unheard && one.lost.empty())
      violations.push_back(name_of(i, one) + "no place was lost");
    for (const std::int32_t place : one.lost) {
      if (slow) continue;  // a place may have much to do as it leaves
      bool taken = false, otherwise = false;
      for (const Hit& h : start.hits) {
        if (!takes(start, h, place, one.last_down_ns)) continue;
        taken = true;
        otherwise |= !is_cut(h.kind);
      }
      if (!taken) violations.push_back(name_of(i, one) + fmt::format("place {} was lost, and no fault hit it", place));
      else if (!otherwise && !named)
        violations.push_back(name_of(i, one) +
                             fmt::format("place {} was cut off from another, which is not named", place));
    }
  }
  const auto taking = std::count_if(start.hits.begin(), start.hits.end(),
                                    [&](const Hit& h) { return may_take(start, h); });
  if (unplanned > taking)
    violations.push_back(fmt::format("there were {} incidents, of {} faults that take places", unplanned, taking));
  if (losses > taking)
    violations.push_back(fmt::format("{} places were lost to {} faults that take places", losses, taking));
  if (start.out.run.restarts > taking + slow_losses)
    violations.push_back(fmt::format("{} processes were started again after {} faults that take places",
                                     start.out.run.restarts, taking));
  const auto cuts = std::count_if(start.hits.begin(), start.hits.end(),
                                  [&](const Hit& h) { return is_cut(h.kind) && is_linked(start, h); });
  if (cuts > 0 && cuts == taking && count(start, is_short) == 0 && start.out.job.status.ok() && !names_link &&
      start.out.run.virtual_ns > not_held_up_ns)
    violations.push_back(fmt::format("a link was cut, the job took {:.1f} s of virtual time, and names no link",
                                     static_cast<double>(start.out.run.virtual_ns) * 1e-9));
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
