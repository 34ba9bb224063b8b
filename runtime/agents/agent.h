// Agent: the places of one machine. Starts their processes, keeps their memory, and passes on what the job and the
// places say to each other. A job on one machine has one in its own process. Without clock, thread or socket but for
// those of its PlaceProcesses.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/process/poll_set.h"
#include "runtime/agents/agent_messages.h"
#include "runtime/agents/place_processes.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// Not thread-safe.
class Agent final : private ProcessObserver {
 public:
  /// Makes the processes of an agent, which observes them.
  using MakeProcesses = std::function<std::unique_ptr<PlaceProcesses>(ProcessObserver& observer)>;
  /// `tell`: to the job. Called in all calls but the constructor; must not call the agent.
  explicit Agent(std::function<void(FromAgent)> tell, const MakeProcesses& make = launched());
  /// Does what the job says, or tells that it cannot: PlaceEnded of a place that cannot be started, else AgentFailed.
  void take(const ToAgent& order);
  /// Adds what the agent waits for. What has happened is told as the set is served, but for ends of processes.
  void watch(PollSet& set) { processes_->watch(set); }
  /// Tells of processes that have ended, once all that they have said was told. After each wait.
  void tell_ends() { processes_->tell_ends(); }
  /// Ends all processes, as Launcher::finish; so does Finish, which tells Finished.
  Status finish(int grace_ms, int killed_ms) { return processes_->finish(grace_ms, killed_ms); }
  /// Ends all processes, and keeps the memory of places whose job may come back for them (RestartPlace). Nothing is
  /// told.
  Kept keep(int grace_ms, int killed_ms);
  /// Lets go of all that was kept but for these.
  void forget_kept(std::span<const PlaceId> but_for);

 private:
  struct Place {
    SharedBytes plan;  // that its process was told
    std::string run;   // TellPlan, as the next
    StageWidths widths;
    Hello hello;
    bool garbled = false;  // it has said what no message is: its memory may be damaged
  };
  /// Processes of a Launcher.
  static MakeProcesses launched();

  void heard(PlaceId from, ControlFrame frame) override { tell_(FromPlace{from, std::move(frame)}); }
  void garbled(PlaceId from, const Status& why) override;
  void logged(PlaceId from, const std::string& line) override;
  void ended(PlaceId place, ProcessEnd end) override;

  /// Whether it has the place; else tells that it has not.
  bool has(PlaceId place);
  void start(const StartPlace& order);
  void tell_plan(const TellPlan& order);
  void restart(const RestartPlace& order);
  void send_plan(PlaceId place, JobGeneration of);
  void post(PlaceId place, JobGeneration of, SharedBytes message);
  /// What the process of a place that has ended has left in its memory.
  WholeVersions left_by(PlaceId place);

  const std::function<void(FromAgent)> tell_;
  const std::unique_ptr<PlaceProcesses> processes_;
  JobGeneration of_;  // of the last plan that was told, or place that was restarted
  std::deque<std::pair<std::int64_t, SharedBytes>> states_;  // of its versions (Remember)
  std::map<PlaceId, Place> places_;
};

}  // namespace troupe::runtime
