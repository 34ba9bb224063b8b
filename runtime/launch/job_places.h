// JobPlaces: the places of a job as its coordinator reaches them: through the agent of each machine. Without other
// machines the agent is an object of this process.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/agents/agent.h"
#include "runtime/agents/agent_port.h"
#include "runtime/elastic/coordinator.h"
#include "runtime/launch/app.h"

namespace troupe::runtime {

/// The last lines of a place's log that its end is told with, at most.
inline constexpr std::size_t log_lines_kept = 20;

/// Machines whose places may be started.
enum class OnMachines : std::uint8_t { any, that_have_joined_late };

/// Not thread-safe. Places are numbered from 0, in the order in which they are started: machine by machine, as many on
/// each as its agent takes, and those together that JobOptions::places_together says (fill_machines).
class JobPlaces final : public CoordinatorSink {
 public:
  /// `log`: takes each line that a place puts out.
  JobPlaces(const JobOptions& options, std::function<void(PlaceId, const std::string&)> log);

  // ---- machines --------------------------------------------------------------------------------------

  /// Without another machine: this one, which takes any number of places.
  void use_this_machine();
  /// An agent that has joined, `late`: since the first place was started; places that are started from now on may be
  /// there. It is told so. `back`: places that it has kept (can_be_back), and has again.
  void add_machine(AgentPort::Joined joined, bool late = false, const std::vector<PlaceId>& back = {});
  /// The same, of an agent that has kept places of a job whose process is lost: these are places of this job, and get
  /// new processes once they are told to (restart). Before the first place is started.
  void add_machine_with(AgentPort::Joined joined, const std::vector<PlaceId>& kept);
  /// Places of a job whose process is lost that are lost, too, with their machines. REQUIRES: their numbers are the
  /// next behind all others.
  void add_lost(std::span<const PlaceId> lost);
  /// Whether a place was lost with a machine of this name.
  bool can_be_back(PlaceId place, const std::string& machine) const;
  /// Whether a machine of this name is reached.
  bool has_machine(const std::string& name) const;
  /// For how long an agent, or the job, may say nothing to the other.
  std::int32_t machine_budget_ms() const;
  /// Until when a machine of this name that was set aside is not to be tried again; 0: it was not. `waits`: the job has
  /// nothing better to do.
  std::int64_t is_aside_until_ns(const std::string& name, bool waits) const;
  /// Places that can still be started.
  std::int64_t room(OnMachines which = OnMachines::any) const;

  // ---- places ----------------------------------------------------------------------------------------

  /// What places hear beside their plan, by number; those beyond hear as the first, and may use any core. Before the
  /// first is started.
  void begin(std::vector<Hello> hellos);
  /// Starts the process of a new place. REQUIRES: room there.
  PlaceId start(OnMachines which = OnMachines::any);
  /// These places, by rank, hear what is for their rank.
  void seat(std::span<const PlaceId> places);
  /// Each of these places, by rank, has been started, or is about to be restarted, and hears the plan.
  void tell_plan(const Plan& plan, std::span<const PlaceId> places, JobGeneration of);
  /// Whether each of these places has a process; the first error, where one could not be started.
  Expected<bool> have_started(std::span<const PlaceId> places) const;
  /// The process of a place; -1: it has ended.
  std::int64_t pid(PlaceId place) const { return at(place).pid; }
  /// What people call the machine of a place; empty: this one.
  const std::string& machine(PlaceId place) const { return machines_[at(place).machine].name; }
  /// Names of the machines that are reached, and have no place with a process.
  std::vector<std::string> idle_machines() const;

  void watch(PollSet& set);
  /// After each wait: what has ended, and which machine says nothing any more.
  void turn(std::int64_t now_ns);
  /// This process was stopped until now, and read nothing.
  void resumed_after_stop(std::int64_t now_ns);
  /// Brings the coordinator what agents have told since the last call.
  void bring_to(Coordinator& coordinator, std::int64_t now_ns);
  /// Ends all processes, as Launcher::finish; bring_to() has what their logs still had.
  Status finish(int grace_ms, int killed_ms);
  /// Leaves other machines to the process that leads the job next: their agents end the processes, keep the memory, and
  /// join that one. `why`: not ok: the job does not begin, which they are told.
  void let_go(const Status& why = {});
  /// The same as finish(), but that it waits for no other machine: has_finished() says when all have done so, and
  /// left_behind() what has become of it.
  Status begin_to_finish(int grace_ms, int killed_ms);
  bool has_finished() const;
  Status left_behind() const;

  // ---- CoordinatorSink -------------------------------------------------------------------------------

  void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) override;
  Status with_last_log_lines(PlaceId of, const Status& status) override;
  void remember(std::int64_t version, const SumState& sums) override;
  void restart(PlaceId place, JobGeneration of, bool afresh) override { order(place, RestartPlace{of, place, afresh}); }
  void kill(PlaceId place) override { order(place, KillPlace{place}); }
  void set_aside(PlaceId place) override;
  void reshape(const Plan& plan, std::span<const PlaceId> places, JobGeneration of) override;
  void fill(const Plan& plan, std::span<const PlaceId> places, std::span<const PlaceId> newcomers,
            JobGeneration of) override;
  std::string memory_of(PlaceId place) override;
  std::int32_t machine_of(PlaceId place) override { return static_cast<std::int32_t>(at(place).machine); }
  std::int64_t machines_reached() override;
  void settled(std::span<const PlaceId> used) override;
  void dismiss(PlaceId place) override;

 private:
  struct Machine {
    std::string name, net_device, host;     // as its agent says (Joins)
    bool late = false;                      // it has joined since the first place was started
    std::int64_t places = 0, started = 0;   // that it takes; that it was given, but for those that were dismissed
    std::unique_ptr<Agent> own;             // in this process, or else ...
    std::unique_ptr<AgentLink> connection;  // ... with its agent; null: it is lost
    std::int64_t heard_ns = -1, sent_ns = 0;
    bool heard = false;  // since turn()
    std::optional<Status> finished;
  };
  struct Told {  // by an agent
    std::size_t machine = 0;
    FromAgent what;
  };
  struct Aside {
    std::int64_t since_ns = 0, wait_ns = 0;
  };
  struct Place {
    std::size_t machine = 0;
    std::int64_t pid = -1;
    Hello hello;
    std::string memory, home;  // names; the second: of what it had before reshape()
    std::deque<std::string> last_lines;
    bool is_new = false;   // fill(): what it had before counts for nothing
    bool started = false;  // the coordinator knows it
    bool dismissed = false;
    bool has_room = true;  // of its machine
    Status not_started;
  };
  static bool has_room(const Machine& m, OnMachines which) {
    return (m.own || m.connection) && m.started < m.places && (which == OnMachines::any || m.late);
  }
  Place& at(PlaceId place) { return places_[static_cast<std::size_t>(place)]; }
  const Place& at(PlaceId place) const { return places_[static_cast<std::size_t>(place)]; }
  void order(std::size_t machine, const ToAgent& order);
  void order(PlaceId place, const ToAgent& what) { order(at(place).machine, what); }
  /// The same to each machine that has some of these places: `make` makes it, for them.
  template <class Make>
  void order_each(std::span<const PlaceId> places, Make make);
  void give_room_back(Place& place);
  void read(std::size_t machine);
  /// A machine is not reached any more: its places are lost with it.
  void lose(std::size_t machine, const Status& why);
  /// Tells the plan to some of these places.
  enum class Memory : std::uint8_t { stays, is_renewed, is_new };
  void tell(const Plan& plan, std::span<const PlaceId> places, std::span<const PlaceId> some, JobGeneration of,
            Memory memory);
  void take(const Told& told, Coordinator& coordinator, std::int64_t now_ns);
  /// A machine is lost, and taken again only after some time.
  void set_aside(std::size_t machine, const Status& why);
  /// An agent cannot do what it was told.
  void failed(std::size_t machine, const Status& why, Coordinator& coordinator);
  void take(const PlaceStarted& started, Coordinator& coordinator, std::int64_t now_ns);

  const JobOptions& options_;
  const std::function<void(PlaceId, const std::string&)> log_;
  std::vector<Hello> hellos_;
  std::map<std::size_t, std::int32_t> seats_;  // by number: the machines of the first places
  std::vector<Place> places_;
  std::deque<Told> told_;
  std::vector<Machine> machines_;
  std::int64_t turned_ns_ = 0;
  std::map<std::string, int> failed_;   // by name: how often machines have, before the job had begun
  std::map<std::string, Aside> aside_;  // by name: machines that did not reach others
};

}  // namespace troupe::runtime
