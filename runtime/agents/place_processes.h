// PlaceProcesses: the processes of the places of one machine, and their memory, as the agent of the machine reaches
// them. A seam: a Launcher has them (launched_processes.h), or a simulation (runtime/launch/sim_machines.h).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "devices/process/poll_set.h"
#include "runtime/agents/control_link.h"
#include "runtime/elastic/coordinator.h"

namespace troupe::runtime {

/// What an agent hears of them.
class ProcessObserver {
 public:
  virtual ~ProcessObserver() = default;
  virtual void heard(PlaceId from, ControlFrame frame) = 0;
  /// A process has said what no message is.
  virtual void garbled(PlaceId from, const Status& why) = 0;
  /// A process has put out a line.
  virtual void logged(PlaceId from, const std::string& line) = 0;
  /// The process of a place has ended, and all that it has said was heard. `end` says nothing of what it has left.
  virtual void ended(PlaceId place, ProcessEnd end) = 0;
};

/// Not thread-safe. Of places that were started, but for start(); an observer is called in any call but the
/// constructor, and must not call back but for what reads.
class PlaceProcesses {
 public:
  virtual ~PlaceProcesses() = default;
  /// Starts the process of a new place, behind `prefix`. Returns its number. Error: it cannot be started; there is no
  /// such place then.
  virtual Expected<std::int64_t> start(PlaceId place, const std::vector<std::string>& prefix, bool keeps_memory) = 0;
  /// Starts another process in a place whose process has ended, with the memory that it has left; `afresh`: with new
  /// memory.
  virtual Expected<std::int64_t> restart(PlaceId place, bool afresh) = 0;
  /// A message to the process of a place; none, where it has closed its link. Error: the message cannot be sent.
  virtual Status post(PlaceId to, JobGeneration of, SharedBytes message) = 0;
  /// Ends the process by SIGKILL.
  virtual void kill(PlaceId place) = 0;
  /// Closes the link to the process, which ends of itself.
  virtual void dismiss(PlaceId place) = 0;
  /// The number of the place's process.
  virtual std::int64_t number(PlaceId place) = 0;
  /// How the last process of the place has ended; nullopt: it has not.
  virtual std::optional<ProcessEnd::Kind> how_it_ended(PlaceId place) = 0;
  /// By which processes of the machine open the memory of the place; empty: it has none.
  virtual std::string memory_name(PlaceId place) = 0;
  /// Calls `look` with that memory, if it can be read. REQUIRES: no process writes there.
  virtual void look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) = 0;
  /// The place gets new memory, and keeps what it had until forget_memory.
  virtual Status renew_memory(PlaceId place) = 0;
  /// Lets go of what the place had before renew_memory; `used`: false: and of what it has.
  virtual void forget_memory(PlaceId place, bool used) = 0;
  /// Ends all processes, as Launcher::end_processes; their memory is kept. What their logs still have is heard.
  virtual Status end_all(int grace_ms, int killed_ms) = 0;
  /// The same, as Launcher::finish: their memory goes.
  virtual Status finish(int grace_ms, int killed_ms) = 0;
  /// Adds what these processes may be heard by, for who waits for descriptors.
  virtual void watch(PollSet& set) { (void)set; }
  /// Tells of those that have ended. After each wait.
  virtual void tell_ends() {}
};

}  // namespace troupe::runtime
