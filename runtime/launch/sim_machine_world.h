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
#include "runtime/launch/running_job.h"
#include "runtime/launch/shape_plans.h"
#include "runtime/launch/sim_machines.h"
#include "runtime/launch/sim_processes.h"

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
  /// What a place says is of the job's present generation, whenever it was said.
  void stamp(std::vector<std::byte>& bytes);
  void spoil_joins(Joins& joins);
  /// The job has taken a machine.
  void welcomed(std::size_t machine);
  /// An agent serves one process of the job in each generation (one leader), and generations grow.
  void note_leader(std::size_t machine, std::size_t process, const ToAgent& order);

  // ---- wires (sim_machine_wires.cpp) -----------------------------------------------------------------

  bool is_cut(const SimWire& wire, bool to_job) const;
  void travel(const Wire& wire, bool to_job, std::function<void()> f);
  /// What waits on the ways of a machine goes on.
  void release(std::size_t machine);
  /// Something has come at the job's end.
  void reached(const Wire& wire);
  /// An agent that has connected says who it is.
  void meet(const Wire& wire);
  /// The job says something to an agent.
  Status post(const Wire& wire, std::span<const std::byte> message);
  /// The job has closed its end.
  void let_go(const Wire& wire);

  // ---- the job's process (sim_machine_job.cpp) -------------------------------------------------------

  void begin_process();
  void begin_job();
  void ends_without_state();
  void note_generation();
  std::int64_t wakes_ns() const;
  void turn();
  void turn_job();
  void finish();
  /// The process of the job ends, with its connections.
  void lose_process(std::int64_t for_ns);

  // ---- faults (sim_machine_faults.cpp) ---------------------------------------------------------------

  void inject(const SimMachineFault& fault);
  std::vector<Rank> living() const;
  bool hits(const SimMachineFault& f);
  void relink(std::size_t a, std::size_t b);

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

}  // namespace troupe::runtime
