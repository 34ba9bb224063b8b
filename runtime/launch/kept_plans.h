// KeptPlans: of which plan the memory is that agents have kept of a run. A run begins with one, and goes on with
// others, as a loss or `troupe scale` changes its shape. The process that goes on for one that is lost knows the first,
// and hears from the agents which widths the last one had.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/launch/gather_machines.h"
#include "runtime/launch/kept_run.h"
#include "runtime/search/shapes.h"

namespace troupe::runtime {

/// Not thread-safe.
class KeptPlans {
 public:
  struct Newest {
    KeptRun run;
    std::shared_ptr<const Plan> plan;  ///< that it is of
  };
  /// `first`: the plan with which the run began. `run`: JobOptions::identity. `replan`: the run's; null: it has had no
  /// other plan.
  KeptPlans(std::shared_ptr<const Plan> first, std::string run, Replan replan);
  /// The newest version, at most `most`, that agents have kept together, of any plan of the run; of two plans the one
  /// whose agents have heard of the later generation. None: they have none.
  std::optional<Newest> newest(std::span<const AgentPort::Joined> agents, std::int64_t most);
  /// What these agents have. Where one knows of a run whose process is lost, and they have not kept a version together
  /// that is as late as they can have (`lines`: steps whose line is written), they lack state: another agent, which may
  /// only be cut off, has the rest.
  /// `needs_room`: false: the run goes on with fewer places, too.
  KeptThere look(std::span<const AgentPort::Joined> agents, std::int64_t lines, bool needs_room);
  /// Whether an agent has kept memory of a plan of the run.
  bool are_of_run(std::span<const AgentPort::Joined> agents);

 private:
  struct Known {
    std::shared_ptr<const Plan> plan;
    std::string digest;
  };
  /// Makes the plans of which agents have kept memory, once for each width.
  void know(std::span<const AgentPort::Joined> agents);

  const std::string run_;
  const Replan replan_;
  std::vector<Known> known_;
  std::set<StageWidths> tried_;
};

}  // namespace troupe::runtime
