#include <fmt/format.h>

#include <algorithm>

#include "runtime/launch/kept_run.h"
#include "runtime/launch/sim_machine_world.h"

namespace troupe::runtime {

void MachineWorld::begin_process(std::size_t machine, int agent, std::int64_t of_revision) {
  auto p = std::make_unique<Process>();
  p->number = processes_.size();
  p->machine = machine;
  p->agent = agent;
  p->options = o_.job;
  p->turned_ns = loop_.now_ns();
  if (store_) {
    LeadershipOptions o;
    o.run = "job";
    o.leader = p->number + 1;
    o.of_revision = of_revision;
    p->lead.emplace(o, "the store");
    p->lead->begin(fmt::format("{}", p->number));
    p->stage = Stage::takes;
    p->next_call_ns = loop_.now_ns() + (agent > 0 ? starts_least_ns + random_ns(starts_most_ns) : 0);
    p->patient_until_ns = p->next_call_ns + o.patience_ms * ms_ns;
    loop_.at(p->next_call_ns, [] {});  // turn_lead()
    if (agent > 0 && !p->options.replaces) p->options.machines.count_to_go_on = p->options.machines.count_min;
  }
  out_.processes.push_back({});
  processes_.push_back(std::move(p));
  if (!store_) gather(*processes_.back());
}

void MachineWorld::gather(Process& p) {
  p.stage = Stage::gathers;
  LookAtKept look_at_kept;
  p.plan = std::make_shared<const Plan>(plan_);
  if (p.number > 0) {
    p.kept_plans = std::make_unique<KeptPlans>(p.plan, p.options.identity, p.options.replan);
    look_at_kept = [this, &p](std::span<const JoinedAgent> agents) {
      return p.kept_plans->look(agents, o_.lines(), p.options.replaces);
    };
  }
  p.gathering = std::make_unique<Gathering>(p.options.machines, sim_program, look_at_kept, loop_.now_ns());
}

MachineWorld::Process* MachineWorld::leader() const {
  for (auto p = processes_.rbegin(); p != processes_.rend(); ++p)
    if (!(*p)->gone && (*p)->stage != Stage::takes) return p->get();
  return nullptr;
}

void MachineWorld::turn_process(Process& p) {
  const std::int64_t now_ns = loop_.now_ns();
  for (const auto& what : std::exchange(p.held, {})) what();
  if (p.lead) turn_lead(p);
  if (p.gone) return;
  const std::int64_t quiet_ns = now_ns - std::exchange(p.turned_ns, now_ns);
  switch (p.stage) {
    case Stage::takes:
    case Stage::ends: return;  // turn_lead()
    case Stage::gathers: return turn_gathering(p);
    case Stage::looks:
      if (!p.lead->lost().ok()) return fail(p, p.lead->lost(), exit_superseded);
      if (p.lead->looks()) return;
      if (p.lead->is_sure()) return begin_job(p);
      p.next_call_ns = now_ns + LeadSteps::again_ms * ms_ns;  // the store has not answered
      p.lead->look();
      return;
    case Stage::claims:
      if (!p.lead->lost().ok()) {
        p.running->coordinator().end(p.lead->lost(), exit_superseded);
        p.stage = Stage::runs;
      } else if (p.lead->claimed() == p.first || o_.flaw == SimMachinesFlaw::enters_unclaimed) {
        start_job(p);
      }
      return;
    case Stage::runs: return turn_job(p, quiet_ns);
  }
}

void MachineWorld::turn_gathering(Process& p) {
  const std::int64_t now_ns = loop_.now_ns();
  for (JoinedAgent& one : std::exchange(p.port, {})) p.gathering->take(std::move(one), now_ns);
  std::vector<std::string> gone;
  for (const JoinedAgent& one : p.gathering->joined())
    if (std::deque<std::vector<std::byte>> none; !one.connection->serve(none).ok()) gone.push_back(one.joins.machine);
  for (const std::string& machine : gone) p.gathering->lost(machine);
  const auto done = p.gathering->done(now_ns);
  if (!done.ok()) return fail(p, done.status(), exit_worker);
  if (!*done) return;
  if (!store_) return begin_job(p);
  p.stage = Stage::looks;
  p.lead->look();
}

void MachineWorld::begin_job(Process& p) {
  std::vector<JoinedAgent> joined = p.gathering->take_joined();
  p.gathering.reset();
  SimJobProcess& told = out_.processes[p.number];
  std::optional<SumState> sums;
  if (p.number > 0) {
    told.lines_before = o_.lines();
    auto kept = p.kept_plans->newest(joined, told.lines_before);
    const bool from_the_beginning = store_ && told.lines_before == 0;  // the leader was lost before the first step
    if (!kept && !from_the_beginning) return joined.clear(), ends_without_state(p);
    if (kept) {
      told.first = kept->run.version;
      sums = kept->run.sums;
      if (!p.options.replaces) p.options.wanted = p.plan;
      p.plan = kept->plan;
      p.options.kept = std::make_shared<const KeptRun>(std::move(kept->run));
    }
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
  CoordinatorOptions c = coordinator_options(p.options, *p.plan);
  if (p.lead) c.claim = [&p](JobGeneration next) { p.lead->ask(next, fmt::format("{}", p.number)); };
  if (!p.options.replaces) {
    c.replan = o_.replan;
    p.device = std::make_unique<SimDevice>(loop_);
    p.planning = p.device->create_stream("shapes", 1);
    p.shapes = std::make_unique<ShapePlans>(p.options.replan, plan_.keeps_copies(),
                                            [](const Plan&) { return std::numeric_limits<std::int64_t>::max(); });
  }
  p.running = std::make_unique<RunningJob>(*p.plan, p.options, std::move(c),
                                           RunningJob::Parts{nullptr, p.shapes.get(), p.planning.get()}, loop_.clock(),
                                           [](PlaceId, const std::string&) {});
  const Status s = p.running->begin_on(std::move(joined), sim_program);
  if (!s.ok()) {
    p.running->coordinator().end(s, exit_worker);
    p.stage = Stage::runs;
    return;
  }
  const std::uint64_t fresh = options_.generation.job + p.number;  // of a job that begins from its first step
  p.first = p.running->first_generation({}, fresh, p.lead ? p.lead->newest_generation() : 0);
  if (!p.lead) return start_job(p);
  p.lead->ask(p.first, fmt::format("{}", p.number));
  p.stage = Stage::claims;
}

void MachineWorld::start_job(Process& p) {
  p.stage = Stage::runs;
  p.has_started = true;
  for (const auto& other : processes_)
    if (p.lead && other->has_started && !other->gone && p.first.number > other->first.number)
      out_.processes[other->number].replaced = true;
  if (const Status s = p.running->start(p.first, {}); !s.ok()) p.running->coordinator().end(s, exit_worker);
  p.running->coordinator().started(loop_.now_ns());
  out_.processes[p.number].first_generation = p.running->coordinator().generation().number;
  note_generation(p);
}

void MachineWorld::fail(Process& p, const Status& why, int code) {
  p.result.status = why;
  p.result.exit_code = code;
  p.looks_last = true;  // only who has had a job asks once more
  if (store_) p.stage = Stage::ends;
  else ended(p);
}

void MachineWorld::ends_without_state(Process& p) {
  p.kept_nothing = true;
  fail(p, Status(Code::not_found, "the agents have kept no whole step"), exit_checkpoint);
}

void MachineWorld::note_generation(const Process& p) {
  out_.processes[p.number].last_generation = p.running->coordinator().generation().number;
}

void MachineWorld::note_commit(const Process& p) {
  const std::int64_t committed = p.running->coordinator().committed();
  if (p.committed_when_replaced >= 0 && committed > p.committed_when_replaced)
    violates(fmt::format("process {} commits version {} after a later process has made its first commit", p.number,
                         committed));
  if (committed <= out_.processes[p.number].first) return;
  for (const auto& before : processes_)
    if (before->has_started && !before->gone && p.first.number > before->first.number &&
        before->committed_when_replaced < 0)
      before->committed_when_replaced = before->running->coordinator().committed() + (wakes(*before) ? 0 : 1);
}

void MachineWorld::turn_job(Process& p, std::int64_t quiet_ns) {
  const std::int64_t now_ns = loop_.now_ns();
  if (p.finishing) {
    if (!p.running->places().has_finished() && now_ns < p.finish_until_ns) return;
    if (store_) p.stage = Stage::ends;
    else ended(p);
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
  if (p.lead && job.coordinator().has_begun()) p.lead->went_on();
  if (p.lead && job.coordinator().committed() > out_.processes[p.number].first) p.lead->made_step();
  if (p.lead && !job.coordinator().over()) {
    const bool unclaimed = o_.flaw == SimMachinesFlaw::enters_unclaimed;
    job.coordinator().claimed(unclaimed ? job.coordinator().generation() : p.lead->claimed());
    if (!p.lead->lost().ok()) job.coordinator().superseded(p.lead->lost());
  }
  (void)job.decide(now_ns);
  note_generation(p);
  if (p.lead) note_commit(p);
  if (job.coordinator().over()) return finish(p);
  p.spins = job.coordinator().wakes_ns() <= now_ns && quiet_ns == 0 ? p.spins + 1 : 0;
  if (p.spins > 100'000) {
    violates("the job's process spins: it is to be called at once, again and again");
    over_ = true;
  }
}

void MachineWorld::finish(Process& p) {
  Coordinator& c = p.running->coordinator();
  c.finish_checkpoints();
  p.params_hash = c.session().params_hash();
  p.result = c.take_result();
  p.finishing = true;
  p.finish_until_ns = loop_.now_ns() + 10 * second_ns;
  const bool begins_again = p.result.exit_code == exit_superseded || (p.options.kept && !c.has_begun());
  if (begins_again) p.running->places().let_go();
  (void)p.running->places().begin_to_finish(500, 0);
}

void MachineWorld::ended(Process& p) {
  p.gone = true;
  out_.processes[p.number].exit_code = p.result.exit_code;
  out_.kept_nothing = p.kept_nothing;
  const bool replaced = std::any_of(processes_.begin(), processes_.end(), [&p](const auto& other) {
    return p.has_started && p.lead && other->first.number > p.first.number && other->lead->claimed().number > 0;
  });
  if (replaced && p.result.exit_code != exit_superseded && !p.asks_in_vain)
    violates(fmt::format("process {} of the job ends with code {} though another one has taken its place", p.number,
                         p.result.exit_code));
  // Another process may go on where this one has not.
  const bool goes_on = p.lead && !p.result.status.ok() &&
                       (!p.lead->lost().ok() || p.result.exit_code == exit_superseded || !p.lead->withdraws() ||
                        replaced);
  out_.job = std::move(p.result);
  run_.params_hash = p.params_hash;
  for (const std::weak_ptr<SimWire>& weak : wires_)
    if (const Wire wire = weak.lock(); wire && wire->process == p.number) let_go(wire);
  over_ = over_ || !goes_on;
}

void MachineWorld::lose_process(Process& p, bool silently) {
  out_.processes[p.number].lost = true;
  p.gone = true;
  for (const std::weak_ptr<SimWire>& weak : wires_) {
    const Wire wire = weak.lock();
    if (!wire || wire->process != p.number) continue;
    if (silently) wire->job_open = false, wire->read = nullptr;
    else let_go(wire);
  }
}

}  // namespace troupe::runtime
