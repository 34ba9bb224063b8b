#include "tests/scenarios/seed_run.h"

#include <fmt/format.h>

#include <limits>
#include <memory>

#include "checkpoint/catalog.h"
#include "devices/base/philox.h"
#include "devices/sim/sim_device.h"
#include "runtime/launch/sim_place.h"
#include "runtime/session/checkpoint_tracker.h"
#include "tests/scenarios/disturbed_checkpoints.h"
#include "tests/scenarios/machine_seed.h"

namespace troupe::scenarios {

using namespace runtime;

namespace {

constexpr const char* folder = "run/checkpoints";
/// Starts with faults, and starts after which a job must have ended: each of the first few may be ended by a fault.
constexpr int disturbed_starts_max = 3, starts_max = 5;
/// Events until a commit begins, at most.
constexpr std::int64_t late_max = 60;

/// The run of one seed. Its disk outlives the starts.
class Run {
 public:
  Run(CompiledScenario& scenario, std::uint64_t seed, Planted planted) : c_(scenario), seed_(seed), planted_(planted) {}

  SeedRun run() {
    for (int number = 0; number < starts_max; ++number) {
      const Ending ending = start(number);
      if (ending == Ending::finished || !result_.violations.empty()) break;
      if (number + 1 == starts_max) result_.violations.push_back("the job has not finished without faults");
    }
    if (newest_ && result_.violations.empty()) begin_again();
    result_.counts.runs = 1;
    result_.digest = digest_.value();
    return std::move(result_);
  }

 private:
  /// A job that has finished begins once more, with the newest checkpoint: it has the same parameters.
  void begin_again() {
    const std::int64_t first = newest_->manifest.stamp.step;
    if (start(starts_max) != Ending::finished)
      result_.violations.push_back("the job that was done has not finished again");
    digest_.add(static_cast<std::uint64_t>(first));
    ++result_.counts.begun_again;
  }

  Ending start(int number) {
    Start s;
    s.number = number;
    if (newest_) s.first = newest_->manifest.stamp.step;
    const std::int64_t events = c_.events() * std::max<std::int64_t>(c_.scenario().steps - s.first, 1) /
                                c_.scenario().steps;
    if (number < disturbed_starts_max) s.faults = draw_faults(c_.scenario(), seed_, number, events);
    simulate(s);
    const Ending ending = check_ending(c_, s, result_.violations);
    check_told(c_, s, ending, result_.violations);
    check_incidents(c_, s, ending, result_.violations);
    check_losses(s, result_.violations);
    if (number < starts_max) count(s, ending);
    tell(s, ending);
    if (c_.scenario().checkpoint_every > 0) {
      saved_ = std::max(saved_, s.saved);
      constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();
      disk_.fail(never), disk_.stop_at(never), disk_.set_capacity(never);
      if (s.machine_stopped) disk_.crash(philox_key(seed_, fmt::format("crash {}", number)));
      newest_ = check_disk(disk_, folder, saved_, result_.violations);
      digest_.add_all(disk_.operations(), newest_ ? newest_->manifest.stamp.step : -1);
    }
    return ending;
  }

  void simulate(Start& s) {
    const Scenario& scenario = c_.scenario();
    SimClusterOptions cluster;
    cluster.seed = seed_ + static_cast<std::uint64_t>(s.number) * 12;  // as slow as the first start (SimJob::slow_ns)
    const std::vector<Fault> of_job = faults_of_job(s.faults);
    cluster.faults = simulated(of_job);
    cluster.recovers = true;
    cluster.stall_s = 120;
    cluster.changes = c_.changes();
    cluster.spares = scenario.spares;
    if (!scenario.replace)
      cluster.replan = [this](const Plan& before, std::int64_t places) { return c_.choose(before, places); };
    cluster.fenced = planted_ != Planted::unfenced;
    cluster.whole_early = planted_ == Planted::whole_early;
    SessionOptions session = session_of(scenario, s.first, s.told);
    if (scenario.checkpoint_every == 0) {
      s.generation = cluster.generation.number;
      s.out = simulate_job(c_.plan(), c_.ops(), c_.user_actors(), std::move(session), cluster);
    } else {
      simulate_saving(s, std::move(session), std::move(cluster));
    }
    for (const SimHit& h : s.out.run.hits) {
      const Fault& f = of_job[h.fault];
      s.hits.push_back({f.kind, f.place, f.peer, h.at_ns});
    }
    digest_.add_all(s.out.run.digest, s.out.run.events, s.out.job.exit_code);
    digest_.add(std::as_bytes(std::span(s.out.job.status.message())));
  }

  /// A job that saves checkpoints, and begins from the newest.
  void simulate_saving(Start& s, SessionOptions session, SimClusterOptions cluster) {
    UnsyncedStorage unsynced(disk_);
    Storage& disk = planted_ == Planted::no_sync ? static_cast<Storage&>(unsynced) : disk_;
    SimLoop loop;
    SimDevice device(loop);
    const auto stream = device.create_stream("checkpoints", 1);
    CheckpointOptions options;
    options.dir = folder;
    options.every = c_.scenario().checkpoint_every;
    if (newest_) {
      options.job = newest_->manifest.stamp.job;
      cluster.restore = newest_->path;
      session.sums = sums_of(newest_->manifest);
    }
    options.on_event = [&s](const CheckpointEvent& e) {
      if (e.kind == CheckpointEvent::Kind::committed) s.saved = std::max(s.saved, e.step);
    };
    CheckpointTracker tracker(c_.plan(), options, s.first, c_.scenario().steps, disk, *stream, loop.clock());
    if (const Status begun = tracker.begin(1); !begun.ok()) {
      s.out.job.status = begun.in("the checkpoints' folder cannot be claimed");
      s.out.job.exit_code = exit_usage;
      return;
    }
    DisturbedCheckpoints checkpoints(tracker, loop, disk_, faults_of_disk(s.faults),
                                     draw_below(seed_, 50 + static_cast<std::uint64_t>(s.number), late_max));
    cluster.storage = &disk;
    cluster.save = {folder, tracker.claim().job};
    cluster.generation = {tracker.claim().job, tracker.claim().generation};
    cluster.snapshots = &checkpoints;
    s.generation = cluster.generation.number;
    s.out = simulate_job(c_.plan(), c_.ops(), c_.user_actors(), std::move(session), cluster);
    s.machine_stopped = checkpoints.stopped();
    for (const FaultKind kind : checkpoints.hits()) s.hits.push_back({kind});
  }

  void count(const Start& s, Ending ending) {
    Counts& n = result_.counts;
    ++n.endings[static_cast<std::size_t>(ending)];
    n.events += s.out.run.events;
    n.slowest_virtual_ns = std::max(n.slowest_virtual_ns, s.out.run.virtual_ns);
    for (const Fault& f : s.faults) ++n.faults[static_cast<std::size_t>(f.kind)];
    for (const Hit& h : s.hits) ++n.hits[static_cast<std::size_t>(h.kind)];
    for (const Incident& i : s.out.job.incidents) {
      ++n.incidents;
      n.planned += i.planned;
      n.reshaped += !i.shape.empty();
      if (i.version < 0) continue;
      ++(i.from == "memory" ? n.from_memory : i.from.empty() ? n.from_initial : n.from_checkpoint);
      n.repeated_steps += i.committed - i.version;
    }
  }

  void tell(const Start& s, Ending ending) {
    std::string& story = result_.story;
    story += fmt::format("start {} of '{}', from version {}, generation {}\n", s.number, c_.scenario().name, s.first,
                         s.generation);
    for (const Fault& f : s.faults) story += fmt::format("  fault: {}\n", text(f));
    for (const Hit& h : s.hits)
      story += is_of_disk(h.kind) ? fmt::format("  hit: {}\n", name_of(h.kind))
                                  : fmt::format("  hit: {} of place {} at {:.6f} s\n", name_of(h.kind), h.place,
                                                static_cast<double>(h.at_ns) * 1e-9);
    for (const Incident& i : s.out.job.incidents)
      story += fmt::format("  incident: {}\n    generation {}, from version {} of {} ({}){}\n", i.cause, i.generation,
                           i.version, i.committed, i.from.empty() ? "initial values" : i.from,
                           i.shape.empty() ? "" : ", as " + i.shape);
    story += fmt::format(
        "  {}: exit code {}, {} steps committed, {} told, newest checkpoint {}, {} events, {:.3f} s{}\n",
        name_of(ending), s.out.job.exit_code, s.out.job.committed_steps, s.told.steps.size(), s.saved, s.out.run.events,
        static_cast<double>(s.out.run.virtual_ns) * 1e-9,
        s.out.job.status.ok() ? "" : "\n  " + s.out.job.status.message());
  }

  CompiledScenario& c_;
  const std::uint64_t seed_;
  const Planted planted_;
  SimStorage disk_;
  std::int64_t saved_ = 0;  // the newest version that any start was told to be committed
  std::optional<Newest> newest_;
  RollingHash digest_;
  SeedRun result_;
};

}  // namespace

void Counts::add(const Counts& o) {
  runs += o.runs, events += o.events, incidents += o.incidents, planned += o.planned, reshaped += o.reshaped;
  from_memory += o.from_memory, from_checkpoint += o.from_checkpoint, from_initial += o.from_initial;
  repeated_steps += o.repeated_steps, begun_again += o.begun_again;
  for (std::size_t i = 0; i < faults.size(); ++i) faults[i] += o.faults[i], hits[i] += o.hits[i];
  for (std::size_t i = 0; i < endings.size(); ++i) endings[i] += o.endings[i];
  processes_lost += o.processes_lost, processes_superseded += o.processes_superseded;
  for (std::size_t i = 0; i < machine_faults.size(); ++i)
    machine_faults[i] += o.machine_faults[i], machine_hits[i] += o.machine_hits[i];
  slowest_virtual_ns = std::max(slowest_virtual_ns, o.slowest_virtual_ns);
}

std::string text(const Counts& n) {
  std::string out = "faults that hit, of those drawn:";
  for (std::size_t i = 0; i < n.faults.size(); ++i)
    if (n.faults[i] > 0) out += fmt::format(" {} {}/{},", name_of(static_cast<FaultKind>(i)), n.hits[i], n.faults[i]);
  using Kind = SimMachineFault::Kind;
  for (std::size_t i = 0; i < n.machine_faults.size(); ++i)
    if (n.machine_faults[i] > 0)
      out += fmt::format(" {} {}/{},", name_of(static_cast<Kind>(i)), n.machine_hits[i], n.machine_faults[i]);
  out.back() = '\n';
  if (n.processes_lost > 0)
    out += fmt::format("processes of jobs that were lost: {}, that lived when another one took their place: {}\n",
                       n.processes_lost, n.processes_superseded);
  out += fmt::format(
      "incidents: {} ({} planned, {} in another shape); from memory {}, from a checkpoint {}, from initial values {}; "
      "{} steps repeated\n",
      n.incidents, n.planned, n.reshaped, n.from_memory, n.from_checkpoint, n.from_initial, n.repeated_steps);
  out += "starts:";
  for (std::size_t i = 0; i < n.endings.size(); ++i)
    if (n.endings[i] > 0) out += fmt::format(" {} {},", n.endings[i], name_of(static_cast<Ending>(i)));
  out.back() = '\n';
  out += fmt::format("jobs that were done, and begun once more: {}\n", n.begun_again);
  out += fmt::format("events: {}; longest virtual time of a start: {:.1f} s\n", n.events,
                     static_cast<double>(n.slowest_virtual_ns) * 1e-9);
  return out;
}

SeedRun run_seed(CompiledScenario& scenario, std::uint64_t seed, Planted planted) {
  if (!scenario.scenario().machines.empty()) return run_machine_seed(scenario, seed, planted);
  return Run(scenario, seed, planted).run();
}

}  // namespace troupe::scenarios
