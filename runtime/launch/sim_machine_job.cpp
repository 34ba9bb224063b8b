#include <algorithm>

#include "runtime/launch/kept_run.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

void MachineWorld::begin_process() {
  auto p = std::make_unique<Process>();
  p->number = out_.processes.size();
  p->options = o_.job;
  p->gathering = std::make_unique<Gathering>(p->options.machines, sim_program, p->number > 0, loop_.now_ns());
  p->turned_ns = loop_.now_ns();
  out_.processes.push_back({});
  process_ = std::move(p);
  known_.clear();
}

void MachineWorld::begin_job() {
  Process& p = *process_;
  std::vector<JoinedAgent> joined = p.gathering->take_joined();
  p.gathering.reset();
  SimJobProcess& told = out_.processes.back();
  std::optional<SumState> sums;
  if (p.number > 0) {
    told.lines_before = o_.lines();
    auto kept = newest_kept(joined, plan_, p.options.identity, told.lines_before);
    if (!kept) return joined.clear(), ends_without_state();
    told.first = kept->version;
    sums = kept->sums;
    p.options.kept = std::make_shared<const KeptRun>(*std::move(kept));
  }
  p.options.session = o_.session(told.first);
  if (sums) p.options.session.sums = sums;
  p.options.session.on_step = [this, tell = std::move(p.options.session.on_step)](const StepResult& r) {
    run_.steps.push_back(r);
    run_.told_ns.push_back(loop_.now_ns());
    tell(r);
  };
  p.options.on_ready = [this] {
    if (run_.begun_ns < 0) run_.begun_ns = loop_.now_ns();
  };
  p.options.on_incident = [this](const Incident& i) { out_.incidents.push_back(i); };
  CoordinatorOptions c = coordinator_options(p.options, plan_);
  if (!p.options.replaces) {
    c.replan = o_.replan;
    p.device = std::make_unique<SimDevice>(loop_);
    p.planning = p.device->create_stream("shapes", 1);
    p.shapes = std::make_unique<ShapePlans>(p.options.replan, plan_.keeps_copies(),
                                            [](const Plan&) { return std::numeric_limits<std::int64_t>::max(); });
  }
  p.running = std::make_unique<RunningJob>(plan_, p.options, std::move(c),
                                           RunningJob::Parts{nullptr, p.shapes.get(), p.planning.get()}, loop_.clock(),
                                           [](PlaceId, const std::string&) {});
  Status s = p.running->begin_on(std::move(joined), sim_program);
  if (s.ok()) s = p.running->start(p.running->first_generation({}, options_.generation.job), {});
  if (!s.ok()) p.running->coordinator().end(s, exit_worker);
  p.running->coordinator().started(loop_.now_ns());
  told.first_generation = p.running->coordinator().generation().number;
  note_generation();
}

void MachineWorld::ends_without_state() {
  out_.kept_nothing = true;
  out_.job.status = Status(Code::not_found, "the agents have kept no whole step");
  out_.job.exit_code = exit_checkpoint;
  over_ = true;
}

void MachineWorld::note_generation() {
  out_.processes.back().last_generation = process_->running->coordinator().generation().number;
}

void MachineWorld::turn_job() {
  Process& p = *process_;
  const std::int64_t now_ns = loop_.now_ns();
  const std::int64_t quiet_ns = now_ns - std::exchange(p.turned_ns, now_ns);
  if (p.finishing) {
    if (p.running->places().has_finished() || now_ns >= p.finish_until_ns) over_ = true;
    return;
  }
  if (p.gathering) {
    for (JoinedAgent& one : std::exchange(p.port, {})) p.gathering->take(std::move(one), now_ns);
    std::vector<std::string> gone;
    for (const JoinedAgent& one : p.gathering->joined())
      if (std::deque<std::vector<std::byte>> none; !one.connection->serve(none).ok()) gone.push_back(one.joins.machine);
    for (const std::string& machine : gone) p.gathering->lost(machine);
    const auto done = p.gathering->done(now_ns);
    if (!done.ok()) {
      out_.job.status = done.status();
      out_.job.exit_code = exit_worker;
      over_ = true;
    } else if (*done) {
      begin_job();
    }
    return;
  }
  RunningJob& job = *p.running;
  if (quiet_ns > second_ns) {  // as in the job's process
    job.coordinator().resumed_after_stop(now_ns);
    job.places().resumed_after_stop(now_ns);
  }
  job.places().turn(now_ns);
  job.bring();
  for (JoinedAgent& one : std::exchange(p.port, {})) job.take_joined(one);
  job.bring();
  (void)job.decide(now_ns);
  note_generation();
  if (job.coordinator().over()) return finish();
  p.spins = job.coordinator().wakes_ns() <= now_ns && quiet_ns == 0 ? p.spins + 1 : 0;
  if (p.spins > 100'000) {
    violates("the job's process spins: it is to be called at once, again and again");
    over_ = true;
  }
}

void MachineWorld::finish() {
  Process& p = *process_;
  Coordinator& c = p.running->coordinator();
  c.finish_checkpoints();
  run_.params_hash = c.session().params_hash();
  out_.job = c.take_result();
  p.finishing = true;
  p.finish_until_ns = loop_.now_ns() + 10 * second_ns;
  (void)p.running->places().begin_to_finish(500, 0);
}

void MachineWorld::lose_process(std::int64_t for_ns) {
  out_.processes.back().lost = true;
  reached_.clear();
  for (const std::weak_ptr<SimWire>& weak : wires_)
    if (const Wire wire = weak.lock()) let_go(wire);
  lost_processes_.push_back(std::move(process_));  // events refer to it
  begins_again_ns_ = loop_.now_ns() + for_ns;
}

}  // namespace troupe::runtime
