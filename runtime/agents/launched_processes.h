// LaunchedProcesses: the processes of a machine's places, which its Launcher has started.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/agents/launcher.h"
#include "runtime/agents/place_processes.h"

namespace troupe::runtime {

class LaunchedProcesses final : public PlaceProcesses {
 public:
  /// `observer` outlives this object.
  explicit LaunchedProcesses(ProcessObserver& observer) : observer_(observer) {}

  Expected<std::int64_t> start(PlaceId place, const std::vector<std::string>& prefix, bool keeps_memory) override;
  Expected<std::int64_t> restart(PlaceId place, bool afresh) override;
  Status post(PlaceId to, JobGeneration of, SharedBytes message) override;
  void kill(PlaceId place) override;
  void dismiss(PlaceId place) override;
  std::int64_t number(PlaceId place) override { return process(place).pid; }
  std::optional<ProcessEnd::Kind> how_it_ended(PlaceId place) override;
  std::string memory_name(PlaceId place) override;
  void look_at_memory(PlaceId place, const std::function<void(std::span<std::byte>)>& look) override;
  Status renew_memory(PlaceId place) override { return Launcher::renew_memory(process(place)); }
  void forget_memory(PlaceId place, bool used) override { Launcher::forget_memory(process(place), used); }
  Status end_all(int grace_ms, int killed_ms) override;
  Status finish(int grace_ms, int killed_ms) override;
  void watch(PollSet& set) override;
  void tell_ends() override;

 private:
  struct Place {
    std::size_t worker = 0;  // of the launcher's
    std::vector<std::string> prefix;
    bool broken = false;  // its link has ended
    bool told = false;    // of the end of its process
  };
  WorkerProcess& process(PlaceId place) { return launcher_.workers()[places_.at(place).worker]; }
  void read_link(PlaceId place);
  void read_log(PlaceId place);

  ProcessObserver& observer_;
  Launcher launcher_;
  std::map<PlaceId, Place> places_;
};

}  // namespace troupe::runtime
