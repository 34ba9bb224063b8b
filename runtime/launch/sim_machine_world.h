// MachineWorld: the simulated world of a job on several machines (sim_machines.h): agents and their links, the job's
// process, and what happens to them. Internal to the simulation.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "devices/sim/sim_device.h"
#include "runtime/agents/agent_life.h"
#include "runtime/agents/followed_leader.h"
#include "runtime/launch/kept_plans.h"
#include "runtime/launch/running_job.h"
#include "runtime/launch/shape_plans.h"
#include "runtime/launch/sim_machines.h"
#include "runtime/launch/sim_processes.h"
#include "runtime/launch/sim_store.h"
#include "runtime/store/lead_steps.h"

namespace troupe::runtime {

class AgentsProcesses;

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
  bool met = false;                       // the agent has said who it is
};
using Wire = std::shared_ptr<SimWire>;

class MachineWorld final : public SimProcesses {
 public:
  MachineWorld(const Plan& plan, const kernels::OpSet& ops, const actors::UserActorSet& user_actors,
               const SimMachinesOptions& options);
  ~MachineWorld() override;
  SimMachinesOutcome run();

 private:
  friend class SimAgentLink;
  friend class AgentsProcesses;

  static constexpr std::int64_t ms_ns = 1'000'000, second_ns = 1'000'000'000;
  static constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();
  static constexpr const char* sim_program = "program";
  /// Ends of the network: a place that is started anew on another machine, or by another agent, has another one.
  static constexpr Rank ends_most = 96;
  static constexpr std::int64_t starts_least_ns = 50 * ms_ns, starts_most_ns = 800 * ms_ns;  // a process of the job
  static constexpr std::int64_t wire_ns = 50'000, boots_ns = 2 * ms_ns, asks_again_ns = second_ns;

  static constexpr std::size_t no_process = std::numeric_limits<std::size_t>::max();
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
    bool isolated = false;                         // from all other machines, and from the store
    std::map<std::uint32_t, std::size_t> leaders;  // of its agent: generations and processes of the job
    // Of a job with a store: what its agent knows of it.
    std::optional<StoredClaim> stored;
    Status unread;
    std::int64_t watches = 0;  // the newest wait: older ones do not count
    bool looked = false, waits_for_news = false;
    FollowedLeader follows{Status(Code::unavailable, "the store has not answered yet")};
    TakeOver take_over;
    std::size_t started = no_process;  // the process of the job that this agent has started last
    bool job_over = false;             // in order
  };
  static constexpr std::size_t no_machine = std::numeric_limits<std::size_t>::max();
  /// What a process of a job with a store does; one without runs from the beginning.
  enum class Stage : std::uint8_t {
    takes,    ///< the lead
    gathers,  ///< its agents; a job without a store begins with it
    looks,    ///< whether it leads still, before it reads what the run has written
    claims,   ///< its first generation
    runs,
    ends  ///< looks once more whether it leads, and withdraws its claim
  };
  /// A process of the job. Those that are gone are kept: events refer to them.
  struct Process {
    std::size_t number = 0;
    std::size_t machine = no_machine;  // on which it runs; no_machine: on one of its own
    int agent = 0;                     // with which it ends; 0: with none
    Stage stage = Stage::gathers;
    bool gone = false;
    JobOptions options;
    std::unique_ptr<SimDevice> device;
    std::unique_ptr<Stream> planning;
    std::unique_ptr<ShapePlans> shapes;
    std::shared_ptr<const Plan> plan;       // with which it begins
    std::unique_ptr<KeptPlans> kept_plans;  // of one that goes on for another
    std::unique_ptr<Gathering> gathering;
    std::unique_ptr<RunningJob> running;
    std::vector<JoinedAgent> port;  // that have joined since the last turn
    bool finishing = false;
    int spins = 0;  // turns without time between them
    std::int64_t turned_ns = -1, finish_until_ns = 0, stopped_until_ns = 0;
    std::deque<std::function<void()>> held;  // what has reached it since it was stopped
    JobResult result;
    std::string params_hash;
    // Of a job with a store.
    std::optional<LeadSteps> lead;
    JobGeneration first;  // its first generation
    bool tried = false, has_started = false, kept_nothing = false;
    bool store_cut = false, calls = false, looks_last = false;
    bool asks_in_vain = false;  // the store has not answered the last time
    std::int64_t next_call_ns = 0, keep_ns = 0, patient_until_ns = 0;
    /// When a later process had made its first commit; with the step, where this one was stopped, of which it may have
    /// all votes and had not read them.
    std::int64_t committed_when_replaced = -1;
  };

  static SimClusterOptions cluster_of(const SimMachinesOptions& o);
  void violates(const std::string& what) {
    if (out_.violations.size() < 8) out_.violations.push_back(what);
  }

  // ---- SimProcesses ----------------------------------------------------------------------------------

  void heard(Rank from, ControlFrame frame, bool) override;
  void reaped(Rank r, ProcessEnd end, bool) override;
  Buffer* memory_named(const std::string& name, Rank reader) override;
  void cannot_go_on(const Status& why) override { violates("a worker cannot be made: " + why.message()); }
  std::int64_t committed() const override;
  void link(Rank r) override;

  // ---- agents (sim_machine_agents.cpp) ---------------------------------------------------------------

  void add_machine(std::int32_t places);
  void begin_agent(std::size_t number);
  void tick(std::size_t number, std::int64_t every_ns);
  /// Runs `f` after `ns` at the agent, if it is the same one then, or at the end of its pause.
  void later(std::int64_t ns, std::size_t machine, std::function<void()> f);
  void at_agent(std::size_t machine, int number, std::function<void()> f);
  void connect(std::size_t machine);
  /// One packet that asks for a connection.
  void attempt(std::size_t machine);
  /// The connection of an agent is over.
  void part(std::size_t machine);
  /// The process of the agent ends, and all of its places; `silently`: with its machine.
  void end_agent(std::size_t machine, bool silently);
  /// What an agent says.
  Status say(std::size_t machine, FromAgent message);
  void spoil_joins(Joins& joins);
  /// The job has taken a machine.
  void welcomed(std::size_t machine);
  /// An agent serves one process of the job in each generation (one leader), and generations grow.
  void note_leader(std::size_t machine, std::size_t process, const ToAgent& order);
  /// The same of all agents, where the job has a store: places enter what the store has given to the process.
  void note_entered(std::size_t process, const ToPlaces& order);

  // ---- wires (sim_machine_wires.cpp) -----------------------------------------------------------------

  bool is_cut(std::size_t machine, const Process& p, bool to_job) const;
  void travel(const Wire& wire, bool to_job, std::function<void()> f);
  /// What waits on ways that are healed goes on.
  void release();
  /// Something has come at the job's end.
  void reached(const Wire& wire);
  /// The process reads it, once it is not stopped.
  void serve(const Wire& wire);
  /// An agent that has connected says who it is.
  void meet(const Wire& wire);
  /// The job says something to an agent.
  Status post(const Wire& wire, std::span<const std::byte> message);
  /// The job has closed its end.
  void let_go(const Wire& wire);

  // ---- the job's process (sim_machine_job.cpp) -------------------------------------------------------

  void begin_process(std::size_t machine = no_machine, int agent = 0, std::int64_t of_revision = 0);
  /// The process that leads, or did last; null: none lives.
  Process* leader() const;
  Process& process_of(const SimWire& wire) const { return *processes_[wire.process]; }
  /// Whether it takes what comes: it is not stopped.
  bool wakes(const Process& p) const { return !p.gone && loop_.now_ns() >= p.stopped_until_ns; }
  /// Whether its agents can connect.
  static bool listens(const Process& p) {
    return !p.gone && !p.finishing && p.stage != Stage::takes && p.stage != Stage::ends;
  }
  void gather(Process& p);
  void begin_job(Process& p);
  void start_job(Process& p);
  /// The process ends before it has a job.
  void fail(Process& p, const Status& why, int code);
  void ends_without_state(Process& p);
  void note_generation(const Process& p);
  void note_commit(const Process& p);
  std::int64_t wakes_ns() const;
  void turn();
  static constexpr const char* led_by_none = "no process leads the run";
  /// No process of the job lives, and no agent that could start one: the job is over.
  bool cannot_be_led();
  void turn_process(Process& p);
  void turn_gathering(Process& p);
  /// `quiet_ns`: since the last turn.
  void turn_job(Process& p, std::int64_t quiet_ns);
  void finish(Process& p);
  /// The process has ended by itself: with its result the job is over, if no other process goes on with it.
  void ended(Process& p);
  /// The process ends, as by SIGKILL, with its connections; `silently`: with its machine.
  void lose_process(Process& p, bool silently);

  // ---- the store (sim_machine_store.cpp) -------------------------------------------------------------

  /// A call of the store: `perform` is done there after a while, or not; `answer` is told here: true, or false where no
  /// answer has come. `late`: done instead, after the caller has given up.
  void call_store(std::function<bool()> reaches, std::function<void()> perform, std::function<void()> late,
                  std::function<void(bool)> answer);
  bool reaches_store(const Process& p) const {
    return !store_away_ && !p.store_cut && (p.machine == no_machine || !machines_[p.machine].isolated);
  }
  /// What has changed is told to those who watch; and the end of a lease, when it comes.
  void store_changed();
  void watch_lease();
  /// What a process says to the store, and hears of it.
  void turn_lead(Process& p);
  void take_lead(Process& p);
  template <class Answer>
  void call(Process& p, std::function<Answer()> perform, std::function<void()> late,
            std::function<void(const Expected<Answer>&)> answer);
  void make(Process& p, const LeadSteps::Call& call);
  void withdraw(Process& p);
  /// An agent reads the store, and once more when that has changed.
  void watch(std::size_t machine);
  void watch_again(std::size_t machine, std::int64_t ns);
  /// Where an agent finds the process that leads.
  Expected<std::string> address_for(const Machine& m) const;
  /// An agent leaves a leader whose place another one has taken, and takes the place of one that is lost.
  void follow(std::size_t machine);

  // ---- faults (sim_machine_faults.cpp) ---------------------------------------------------------------

  void inject(const SimMachineFault& fault);
  std::vector<Rank> living() const;
  bool hits(const SimMachineFault& f);
  /// Of those that hit the store, and who leads.
  bool hits_leader(const SimMachineFault& f);
  /// The machine is lost, with all that it has; another agent, or another machine, comes in its place.
  bool lose_machine(std::size_t machine, std::int64_t for_ns, bool replaced);
  void comes(std::int64_t in_ns, std::function<void()> begin);
  void isolate(std::size_t machine, bool isolated);
  bool are_apart(std::size_t a, std::size_t b) const {
    return machines_[a].apart.count(b) > 0 || (a != b && (machines_[a].isolated || machines_[b].isolated));
  }
  void relink(std::size_t a, std::size_t b);

  const Plan& plan_;
  SimMachinesOptions o_;
  SimMachinesOutcome out_;
  std::deque<Machine> machines_;
  std::vector<std::pair<std::size_t, int>> owner_;   // by end of the network: machine, and number of its agent
  std::vector<std::unique_ptr<Process>> processes_;  // of the job, by number
  std::vector<std::unique_ptr<AgentLife>> gone_agents_;
  std::vector<std::weak_ptr<SimWire>> wires_;
  std::int64_t begins_again_ns_ = never_ns;
  std::optional<SimStore> store_;
  bool store_away_ = false;
  std::int64_t lease_ended_ns_ = 0;               // the last end of a lease that was told
  int coming_ = 0;                                // agents that are to be started
  std::map<std::uint32_t, std::size_t> entered_;  // of a job with a store: generations and processes
  std::size_t fault_ = 0, twin_ = std::numeric_limits<std::size_t>::max();
  bool twice_ = false, over_ = false;
};

}  // namespace troupe::runtime
