#include "runtime/launch/sim_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "devices/base/check.h"
#include "devices/sim/sim_device.h"
#include "runtime/agents/agent_life.h"
#include "runtime/launch/kept_run.h"
#include "runtime/launch/running_job.h"
#include "runtime/launch/shape_plans.h"
#include "runtime/launch/sim_processes.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t ms_ns = 1'000'000, second_ns = 1'000'000'000;
constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();
constexpr const char* sim_program = "program";

/// Ends of the network: a place that is started anew on another machine, or by another agent, has another one.
constexpr Rank ends_most = 96;

/// A connection between the job and an agent. Both ends are told of messages in their order; what comes on a way that
/// is cut waits until it is healed.
struct SimWire {
  std::size_t machine = 0;
  int life = 0;                                 // of the agent
  std::size_t process = 0;                      // of the job
  bool job_open = true, agent_open = true;      // ends
  std::int64_t to_job_ns = 0, to_agent_ns = 0;  // when the last message arrives
  std::deque<std::function<void()>> held_to_job, held_to_agent;
  std::deque<std::vector<std::byte>> in;  // at the job, and not read
  bool broken = false;                    // the agent's end has closed, as the job's system knows
  std::function<void()> read;             // what reads it
};
using Wire = std::shared_ptr<SimWire>;

class MachineWorld;

/// The job's end.
class SimAgentLink final : public AgentLink {
 public:
  SimAgentLink(MachineWorld& world, Wire wire) : world_(world), wire_(std::move(wire)) {}
  ~SimAgentLink() override;
  int fd() const override { return -1; }
  short events() const override { return 0; }
  void on_readable(std::function<void()> read) override { wire_->read = std::move(read); }
  Status serve(std::deque<std::vector<std::byte>>& messages) override {
    for (auto& message : std::exchange(wire_->in, {})) messages.push_back(std::move(message));
    return wire_->broken ? Status(Code::unavailable, "the agent has closed the connection") : Status{};
  }
  Status post(std::span<const std::byte> message) override;

 private:
  MachineWorld& world_;
  const Wire wire_;
};

/// The processes of one agent.
class AgentsProcesses final : public PlaceProcesses {
 public:
  AgentsProcesses(MachineWorld& world, std::size_t machine, ProcessObserver& observer)
      : world_(world), machine_(machine), observer_(observer) {}

  Expected<std::int64_t> start(PlaceId place, const std::vector<std::string>&, bool) override;
  Expected<std::int64_t> restart(PlaceId place, bool afresh) override;
  Status post(PlaceId to, JobGeneration of, SharedBytes message) override;
  void kill(PlaceId place) override;
  void dismiss(PlaceId place) override { kill(place); }
  std::int64_t number(PlaceId place) override { return slots_.at(place).end; }
  std::optional<ProcessEnd::Kind> how_it_ended(PlaceId place) override { return slots_.at(place).ended; }
  std::string memory_name(PlaceId place) override { return slots_.at(place).memory; }
  void look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) override;
  Status renew_memory(PlaceId place) override;
  void forget_memory(PlaceId place, bool used) override;
  Status end_all(int, int) override;
  Status finish(int, int) override { return end_all(0, 0); }
  void tell_ends() override;

  /// Of the simulation.
  void heard(Rank end, ControlFrame frame) { observer_.heard(place_of(end), std::move(frame)); }
  void reaped(Rank end, ProcessEnd how);
  /// All of them end with the agent.
  void end_with_agent(bool silently);
  Buffer* memory_named(const std::string& name) const;
  std::vector<Rank> ends() const {
    std::vector<Rank> out;
    for (const auto& [place, slot] : slots_) out.push_back(slot.end);
    return out;
  }

 private:
  struct Slot {
    Rank end = 0;
    std::string memory, home;  // names
    std::int64_t names = 0;    // that it has had
    std::optional<ProcessEnd::Kind> ended;
    std::optional<ProcessEnd> untold;
  };
  PlaceId place_of(Rank end) const {
    for (const auto& [place, slot] : slots_)
      if (slot.end == end) return place;
    ASSERT(false, end);
    return {};
  }
  std::string next_name(Slot& slot) { return fmt::format("{}.{}", slot.end, ++slot.names); }

  MachineWorld& world_;
  const std::size_t machine_;
  ProcessObserver& observer_;
  std::map<PlaceId, Slot> slots_;
};

class MachineWorld final : public SimProcesses {
 public:
  MachineWorld(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
               const SimMachinesOptions& options)
      : SimProcesses(ops, user_actors, cluster_of(options), ends_most), plan_(plan), o_(options) {
    std::stable_sort(o_.faults.begin(), o_.faults.end(),
                     [](const auto& a, const auto& b) { return a.at_event < b.at_event; });
    for (const std::int32_t places : o_.machines) add_machine(places);
    begin_process();
  }

  SimMachinesOutcome run() {
    while (!over_) turn();
    out_.run = std::move(run_);
    out_.run.virtual_ns = loop_.now_ns();
    digest_.add_all(loop_.now_ns(), out_.job.exit_code, name_hash(out_.job.status.message()));
    out_.run.digest = digest_.value();
    close();
    return std::move(out_);
  }

 private:
  friend class SimAgentLink;
  friend class AgentsProcesses;

  static constexpr std::int64_t wire_ns = 50'000, boots_ns = 2 * ms_ns, asks_again_ns = second_ns;

  struct Machine {
    std::string name;
    std::int32_t places = 0;
    std::unique_ptr<AgentLife> life;
    AgentsProcesses* processes = nullptr;  // of `life`
    int number = 0;                        // of its agent: events are of one of them
    Wire wire;
    bool cut_to = false, cut_from = false;
    std::int64_t late_ns = 0, paused_until_ns = 0, deadline_ns = 0;
    std::set<std::size_t> apart;
    std::map<std::uint32_t, std::size_t> leaders;  // of its agent: generations and processes of the job
  };
  /// A process of the job.
  struct Process {
    std::size_t number = 0;
    JobOptions options;
    std::unique_ptr<SimDevice> device;
    std::unique_ptr<Stream> planning;
    std::unique_ptr<ShapePlans> shapes;
    std::unique_ptr<Gathering> gathering;
    std::unique_ptr<RunningJob> running;
    std::vector<JoinedAgent> port;  // that have joined since the last turn
    bool finishing = false;
    int spins = 0;  // turns without time between them
    std::int64_t turned_ns = -1, finish_until_ns = 0, stopped_until_ns = 0;
  };

  static SimClusterOptions cluster_of(const SimMachinesOptions& o) {
    SimClusterOptions c;
    c.seed = o.seed;
    c.recovers = true;
    c.fenced = o.flaw != SimMachinesFlaw::unfenced;
    return c;
  }
  void violates(const std::string& what) {
    if (out_.violations.size() < 8) out_.violations.push_back(what);
  }

  // ---- SimProcesses ----------------------------------------------------------------------------------

  void heard(Rank from, ControlFrame frame, bool) override {
    const auto [machine, number] = owner_[static_cast<std::size_t>(from)];
    at_agent(machine, number, [this, machine = machine, from, frame = std::move(frame)]() mutable {
      machines_[machine].processes->heard(from, std::move(frame));
    });
  }
  void reaped(Rank r, ProcessEnd end, bool) override {
    const auto [machine, number] = owner_[static_cast<std::size_t>(r)];
    at_agent(machine, number,
             [this, machine = machine, r, end = std::move(end)] { machines_[machine].processes->reaped(r, end); });
  }
  Buffer* memory_named(const std::string& name, Rank reader) override {
    const Machine& m = machines_[owner_[static_cast<std::size_t>(reader)].first];
    return m.processes ? m.processes->memory_named(name) : nullptr;
  }
  void cannot_go_on(const Status& why) override { violates("a worker cannot be made: " + why.message()); }
  std::int64_t committed() const override {
    return process_ && process_->running ? process_->running->coordinator().committed() : 0;
  }
  void link(Rank r) override {
    const std::size_t own = owner_[static_cast<std::size_t>(r)].first;
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      if (!machines_[m].processes) continue;
      for (const Rank peer : machines_[m].processes->ends()) {
        if (peer == r) continue;
        if (machines_[own].apart.count(m) > 0) cut(r, peer);
        else heal(r, peer);
      }
    }
  }

  // ---- agents ----------------------------------------------------------------------------------------

  void add_machine(std::int32_t places) {
    Machine& m = machines_.emplace_back();
    m.name = fmt::format("m{:02d}", machines_.size());
    m.places = places;
    begin_agent(machines_.size() - 1);
  }

  void begin_agent(std::size_t number) {
    Machine& m = machines_[number];
    ++m.number;
    m.leaders.clear();
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
    later(boots_ns + random_ns(boots_ns), number, [this, number] { connect(number); });
    tick(number, std::min(tick_ns, o_.job.detect_budget_ms * ms_ns / 8));
  }

  void tick(std::size_t number, std::int64_t every_ns) {
    later(every_ns, number, [this, number, every_ns] { tick(number, every_ns); });
  }

  /// Runs `f` after `ns` at the agent, if it is the same one then, or at the end of its pause.
  void later(std::int64_t ns, std::size_t machine, std::function<void()> f) {
    loop_.at(loop_.now_ns() + ns,
             [this, machine, number = machines_[machine].number, f = std::move(f)] { at_agent(machine, number, f); });
  }

  void at_agent(std::size_t machine, int number, std::function<void()> f) {
    Machine& m = machines_[machine];
    if (m.number != number || !m.life) return;
    if (loop_.now_ns() < m.paused_until_ns) {
      loop_.at(m.paused_until_ns, [this, machine, number, f = std::move(f)] { at_agent(machine, number, f); });
      return;
    }
    f();
    if (!m.life || m.number != number) return;
    m.life->turn(loop_.now_ns());
    if (m.wire && m.life->over()) part(machine);
  }

  void connect(std::size_t machine) {
    Machine& m = machines_[machine];
    m.deadline_ns = m.life->connects(loop_.now_ns());
    attempt(machine);
  }

  /// One packet that asks for a connection.
  void attempt(std::size_t machine) {
    Machine& m = machines_[machine];
    if (loop_.now_ns() >= m.deadline_ns) {
      m.life->breaks(Status(Code::unavailable, "it has not answered"));
      return part(machine);
    }
    if (m.cut_to || m.cut_from || (process_ && loop_.now_ns() < process_->stopped_until_ns))
      return later(std::min(asks_again_ns, m.deadline_ns - loop_.now_ns()), machine,
                   [this, machine] { attempt(machine); });
    if (!process_ || process_->finishing) {
      m.life->cannot_connect(Status(Code::unavailable, "job: Connection refused"));
      return part(machine);
    }
    m.wire = std::make_shared<SimWire>();
    m.wire->machine = machine;
    m.wire->life = m.number;
    m.wire->process = process_->number;
    wires_.push_back(m.wire);
    later(3 * wire_ns + m.late_ns + random_ns(jitter_ns), machine, [this, machine, wire = m.wire] {
      if (machines_[machine].wire == wire) machines_[machine].life->opened(loop_.now_ns());
    });
  }

  /// The connection of an agent is over.
  void part(std::size_t machine) {
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

  /// The process of the agent ends, and all of its places; `silently`: with its machine.
  void end_agent(std::size_t machine, bool silently) {
    Machine& m = machines_[machine];
    if (!m.life) return;
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

  /// What an agent says.
  Status say(std::size_t machine, FromAgent message) {
    Machine& m = machines_[machine];
    if (!m.wire) return {};
    if (auto* joins = std::get_if<Joins>(&message)) spoil_joins(*joins);
    auto bytes = encode(message);
    digest_.add_all(loop_.now_ns(), machine, 1);
    digest_.add(bytes);
    travel(m.wire, true, [this, wire = m.wire, bytes = std::move(bytes)]() mutable {
      if (!wire->job_open) return;
      if (o_.flaw == SimMachinesFlaw::unfenced) stamp(bytes);
      wire->in.push_back(std::move(bytes));
      reached(wire);
    });
    return {};
  }

  /// What a place says is of the job's present generation, whenever it was said.
  void stamp(std::vector<std::byte>& bytes) {
    auto message = decode_from_agent(bytes);
    ASSERT(message.ok(), message.status().message());
    auto* said = std::get_if<FromPlace>(&*message);
    if (!said || !process_ || !process_->running) return;
    said->frame.of = process_->running->coordinator().generation();
    bytes = encode(*message);
  }

  void spoil_joins(Joins& joins) {
    if (o_.flaw == SimMachinesFlaw::two_leaders && joins.kept.of.number > 1) --joins.kept.of.number;
    if (o_.flaw != SimMachinesFlaw::claims_newer) return;
    for (KeptPlace& k : joins.kept.places)
      if (k.left && !k.left->empty()) k.left->push_back(k.left->back() + 1);
    if (!joins.kept.states.empty())
      joins.kept.states.emplace_back(joins.kept.states.back().first + 1, joins.kept.states.back().second);
  }

  // ---- wires -----------------------------------------------------------------------------------------

  bool is_cut(const SimWire& wire, bool to_job) const {
    const Machine& m = machines_[wire.machine];
    return to_job ? m.cut_from : m.cut_to;
  }

  void travel(const Wire& wire, bool to_job, std::function<void()> f) {
    std::int64_t& last_ns = to_job ? wire->to_job_ns : wire->to_agent_ns;
    const std::int64_t late_ns = machines_[wire->machine].late_ns;
    last_ns = std::max(last_ns, loop_.now_ns() + wire_ns + random_ns(jitter_ns) + late_ns);
    loop_.at(last_ns, [this, wire, to_job, f = std::move(f)]() mutable {
      auto& held = to_job ? wire->held_to_job : wire->held_to_agent;
      if (is_cut(*wire, to_job) || !held.empty()) held.push_back(std::move(f));
      else f();
    });
  }

  /// What waits on the ways of a machine goes on.
  void release(std::size_t machine) {
    for (const std::weak_ptr<SimWire>& weak : wires_) {
      const Wire wire = weak.lock();
      if (!wire || wire->machine != machine) continue;
      for (const bool to_job : {true, false})
        if (!is_cut(*wire, to_job))
          for (auto& f : std::exchange(to_job ? wire->held_to_job : wire->held_to_agent, {}))
            loop_.at(loop_.now_ns(), std::move(f));
    }
  }

  /// Something has come at the job's end.
  void reached(const Wire& wire) {
    reach([this, wire] {
      if (!wire->job_open || !process_) return;
      if (wire->read) return wire->read();
      if (known_.insert(wire).second) return meet(wire);
    });
  }

  /// An agent that has connected says who it is.
  void meet(const Wire& wire) {
    if (wire->in.empty() || process_->finishing) return;
    const auto message = decode_from_agent(wire->in.front());
    ASSERT(message.ok(), message.status().message());
    const auto* joins = std::get_if<Joins>(&*message);
    ASSERT(joins, message->index());
    wire->in.pop_front();
    process_->port.push_back({std::make_unique<SimAgentLink>(*this, wire), joins->machine, *joins});
  }

  /// The job says something to an agent.
  Status post(const Wire& wire, std::span<const std::byte> message) {
    if (wire->broken) return {Code::unavailable, "the agent has closed the connection"};
    digest_.add_all(loop_.now_ns(), wire->machine, 2);
    digest_.add(message);
    travel(wire, false, [this, wire, bytes = std::vector<std::byte>(message.begin(), message.end())] {
      at_agent(wire->machine, wire->life, [this, wire, bytes] {
        Machine& m = machines_[wire->machine];
        if (m.wire != wire) return;
        const auto order = decode_to_agent(bytes);
        ASSERT(order.ok(), order.status().message());
        m.life->heard(loop_.now_ns());
        if (std::holds_alternative<Welcome>(*order)) welcomed(wire->machine);
        note_leader(wire->machine, wire->process, *order);
        m.life->take(*order, loop_.now_ns());
      });
    });
    return {};
  }

  /// The job has closed its end.
  void let_go(const Wire& wire) {
    if (!std::exchange(wire->job_open, false)) return;
    wire->read = nullptr;
    ++out_.machines_given_up;
    travel(wire, false, [this, wire] {
      at_agent(wire->machine, wire->life, [this, wire] {
        Machine& m = machines_[wire->machine];
        if (m.wire == wire) m.life->breaks(Status(Code::unavailable, "the job has closed the connection"));
      });
    });
  }

  /// The job has taken a machine.
  void welcomed(std::size_t machine) {
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

  // ---- the job's process -----------------------------------------------------------------------------

  void begin_process() {
    auto p = std::make_unique<Process>();
    p->number = out_.processes.size();
    p->options = o_.job;
    p->gathering = std::make_unique<Gathering>(p->options.machines, sim_program, p->number > 0, loop_.now_ns());
    p->turned_ns = loop_.now_ns();
    out_.processes.push_back({});
    process_ = std::move(p);
    known_.clear();
  }

  void begin_job() {
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
                                             RunningJob::Parts{nullptr, p.shapes.get(), p.planning.get()},
                                             loop_.clock(), [](PlaceId, const std::string&) {});
    Status s = p.running->begin_on(std::move(joined), sim_program);
    if (s.ok()) s = p.running->start(p.running->first_generation({}, options_.generation.job), {});
    if (!s.ok()) p.running->coordinator().end(s, exit_worker);
    p.running->coordinator().started(loop_.now_ns());
    told.first_generation = p.running->coordinator().generation().number;
    note_generation();
  }

  void ends_without_state() {
    out_.kept_nothing = true;
    out_.job.status = Status(Code::not_found, "the agents have kept no whole step");
    out_.job.exit_code = exit_checkpoint;
    over_ = true;
  }

  void note_generation() {
    out_.processes.back().last_generation = process_->running->coordinator().generation().number;
  }

  /// An agent serves one process of the job in each generation (one leader), and generations grow.
  void note_leader(std::size_t machine, std::size_t process, const ToAgent& order) {
    const auto of = std::visit(
        [](const auto& m) {
          if constexpr (requires { m.of; }) return m.of.number;
          else return std::uint32_t{0};
        },
        order);
    if (of == 0) return;
    auto& leaders = machines_[machine].leaders;
    const auto [it, fresh] = leaders.emplace(of, process);
    if (!fresh && it->second != process)
      violates(fmt::format("generation {} has two leaders, processes {} and {} of the job", of, it->second, process));
    if (leaders.rbegin()->first != of)
      violates(fmt::format("an order of generation {} comes after one of {}", of, leaders.rbegin()->first));
  }

  std::int64_t wakes_ns() const {
    if (!process_) return begins_again_ns_;
    const Process& p = *process_;
    const std::int64_t poll_ns = std::min<std::int64_t>(200 * ms_ns, o_.job.detect_budget_ms * ms_ns / 8);
    std::int64_t at = p.turned_ns + poll_ns;
    if (p.running && !p.finishing) at = std::min(at, p.running->coordinator().wakes_ns());
    return std::max({at, loop_.now_ns(), p.stopped_until_ns});
  }

  void turn() {
    drain();
    while (fault_ < o_.faults.size() && o_.faults[fault_].at_event <= run_.events) inject(o_.faults[fault_++]);
    drain();
    if (over_) return;
    if (process_) takes_ns_ = std::max(takes_ns_, process_->stopped_until_ns);  // it reads nothing meanwhile
    advance(wakes_ns());
    if (process_ && loop_.now_ns() < process_->stopped_until_ns) return;
    if (!take_reached()) return;
    if (loop_.now_ns() >= o_.virtual_most_ns) {
      violates("the job does not end");
      over_ = true;
    } else if (process_) {
      turn_job();
    } else if (loop_.now_ns() >= begins_again_ns_) {
      begin_process();
    }
  }

  void turn_job() {
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
        if (std::deque<std::vector<std::byte>> none; !one.connection->serve(none).ok())
          gone.push_back(one.joins.machine);
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

  void finish() {
    Process& p = *process_;
    Coordinator& c = p.running->coordinator();
    c.finish_checkpoints();
    run_.params_hash = c.session().params_hash();
    out_.job = c.take_result();
    p.finishing = true;
    p.finish_until_ns = loop_.now_ns() + 10 * second_ns;
    (void)p.running->places().begin_to_finish(500, 0);
  }

  /// The process of the job ends, with its connections.
  void lose_process(std::int64_t for_ns) {
    out_.processes.back().lost = true;
    reached_.clear();
    for (const std::weak_ptr<SimWire>& weak : wires_)
      if (const Wire wire = weak.lock()) let_go(wire);
    lost_processes_.push_back(std::move(process_));  // events refer to it
    begins_again_ns_ = loop_.now_ns() + for_ns;
  }

  // ---- faults ----------------------------------------------------------------------------------------

  void inject(const SimMachineFault& fault) {
    if (run_.fault_ns < 0) run_.fault_ns = loop_.now_ns();
    digest_.add_all(loop_.now_ns(), static_cast<int>(fault.kind), fault.which, fault.peer);
    if (hits(fault)) out_.hits.push_back({fault.kind, loop_.now_ns(), loop_.now_ns() + fault.for_ns});
  }

  std::vector<Rank> living() const {
    std::vector<Rank> out;
    for (std::size_t r = 0; r < owner_.size(); ++r) {
      const Machine& m = machines_[owner_[r].first];
      if (m.number == owner_[r].second && places_[r].lives()) out.push_back(static_cast<Rank>(r));
    }
    return out;
  }

  bool hits(const SimMachineFault& f) {
    using Kind = SimMachineFault::Kind;
    const std::size_t machine = f.which % machines_.size();
    const std::size_t other = (machine + 1 + f.peer % std::max<std::size_t>(machines_.size() - 1, 1)) %
                              machines_.size();
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

  void relink(std::size_t a, std::size_t b) {
    if (!machines_[a].processes || !machines_[b].processes) return;
    for (const Rank r : machines_[a].processes->ends())
      for (const Rank s : machines_[b].processes->ends())
        if (machines_[a].apart.count(b) > 0) cut(r, s);
        else heal(r, s);
  }

  const Plan& plan_;
  SimMachinesOptions o_;
  SimMachinesOutcome out_;
  std::deque<Machine> machines_;
  std::vector<std::pair<std::size_t, int>> owner_;  // by end of the network: machine, and number of its agent
  std::unique_ptr<Process> process_;                // null: it is lost
  std::vector<std::unique_ptr<Process>> lost_processes_;
  std::vector<std::unique_ptr<AgentLife>> gone_agents_;
  std::set<Wire> known_;  // that have said who they are
  std::vector<std::weak_ptr<SimWire>> wires_;
  std::int64_t begins_again_ns_ = never_ns;
  std::size_t fault_ = 0, twin_ = std::numeric_limits<std::size_t>::max();
  bool twice_ = false, over_ = false;
};

SimAgentLink::~SimAgentLink() { world_.let_go(wire_); }

Status SimAgentLink::post(std::span<const std::byte> message) { return world_.post(wire_, message); }

// ---- processes of an agent ---------------------------------------------------------------------------

Expected<std::int64_t> AgentsProcesses::start(PlaceId place, const std::vector<std::string>&, bool) {
  const Rank end = static_cast<Rank>(world_.owner_.size());
  ASSERT(end < ends_most, end);
  world_.owner_.emplace_back(machine_, world_.machines_[machine_].number);
  Slot& slot = slots_[place] = {};
  slot.end = end;
  slot.memory = next_name(slot);
  world_.start_again(end, false);
  return std::int64_t{end};
}

Expected<std::int64_t> AgentsProcesses::restart(PlaceId place, bool afresh) {
  Slot& slot = slots_.at(place);
  if (world_.places_[slot.end].lives()) world_.violates("a place has two processes that write its memory");
  ++world_.run_.restarts;
  slot.ended.reset();
  slot.untold.reset();
  if (afresh || slot.memory.empty()) slot.memory = next_name(slot);
  world_.start_again(slot.end, afresh);
  return std::int64_t{slot.end};
}

Status AgentsProcesses::post(PlaceId to, JobGeneration of, SharedBytes message) {
  world_.send(slots_.at(to).end, {of, *message});
  return {};
}

void AgentsProcesses::kill(PlaceId place) { world_.kill(slots_.at(place).end, false); }

void AgentsProcesses::look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) {
  const SimPlace& p = world_.places_[slots_.at(place).end];
  if (p.memory && !slots_.at(place).memory.empty()) look({p.memory->data(), p.memory->size()});
}

Status AgentsProcesses::renew_memory(PlaceId place) {
  Slot& slot = slots_.at(place);
  if (slot.home.empty()) slot.home = slot.memory;
  slot.memory = next_name(slot);
  world_.SimProcesses::renew_memory(slot.end);
  return {};
}

void AgentsProcesses::forget_memory(PlaceId place, bool used) {
  Slot& slot = slots_.at(place);
  SimPlace& p = world_.places_[slot.end];
  slot.home.clear();
  if (p.home) world_.dropped_.push_back(std::move(p.home));
  p.home_guards.reset();
  if (used) return;
  slot.memory.clear();
  if (p.memory) world_.dropped_.push_back(std::move(p.memory));
}

Status AgentsProcesses::end_all(int, int) {
  for (auto& [place, slot] : slots_) {
    if (world_.places_[slot.end].lives() || !slot.ended) world_.end_at_once(slot.end, false);
    if (!slot.ended) slot.ended = ProcessEnd::Kind::ordinary;
    slot.untold.reset();
  }
  return {};
}

void AgentsProcesses::reaped(Rank end, ProcessEnd how) {
  Slot& slot = slots_.at(place_of(end));
  slot.ended = how.kind;
  slot.untold = std::move(how);
}

void AgentsProcesses::tell_ends() {
  for (auto& [place, slot] : slots_)
    if (auto how = std::exchange(slot.untold, std::nullopt))
      observer_.ended(place, {how->kind, Status(Code::unavailable, fmt::format("worker {} was killed",
                                                                               static_cast<std::int32_t>(place)))});
}

void AgentsProcesses::end_with_agent(bool silently) {
  for (auto& [place, slot] : slots_) world_.end_at_once(slot.end, silently);
}

Buffer* AgentsProcesses::memory_named(const std::string& name) const {
  for (const auto& [place, slot] : slots_) {
    const SimPlace& p = world_.places_[slot.end];
    if (slot.home == name) return p.home.get();
    if (slot.memory == name) return p.memory.get();
  }
  return nullptr;
}

}  // namespace

SimMachinesOutcome simulate_machines(const Plan& plan, const kernels::OpSet& ops,
                                     const actors::UserActorSet& user_actors, const SimMachinesOptions& options) {
  return MachineWorld(plan, ops, user_actors, options).run();
}

}  // namespace troupe::runtime
