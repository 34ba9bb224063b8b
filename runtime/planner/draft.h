// PlanDraft: a plan while the passes of passes.h make it, and what every pass may do with it. Internal to the compiler.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "runtime/planner/lowered.h"

namespace troupe::runtime {

// A stream runs lower priorities first. A backward act frees memory and feeds other stages; no actor reads weight
// gradients before the end of the step; evaluation uses the time that is left. A negative priority runs between any two
// tasks (RQ-3 urgency): places of several stages wait for it.
enum Priority : std::int32_t {
  urgent_priority = -1,
  backward_priority,
  update_priority,
  forward_priority,
  weights_priority,
  other_priority
};

// Chains of tasks on a stream that continue each other (RQ-1 runs).
enum Run : std::uint32_t { forward_run, backward_run, weights_run, source_run, update_run, runs_per_program };
inline std::uint32_t run_of(std::int32_t program, Run run) {
  return static_cast<std::uint32_t>(program) * runs_per_program + run;
}

/// Where an actor is: (role, index). Roles are stages. The conductor: actor -1.
struct ActorRef {
  std::int32_t role = -1, actor = -1;
  auto operator<=>(const ActorRef&) const = default;
};

/// The actors that one node of the graph, or one exchange, becomes, by role: one on each stage of its mesh.
using Ends = std::map<std::int32_t, ActorRef>;

/// A pass through a virtual stage.
struct PassAt {
  Pass pass = Pass::forward;
  std::int32_t virtual_stage = 0;
  bool operator==(const PassAt&) const = default;
};

/// Where a tensor lies on a stage.
struct Home {
  std::int32_t channel = 0, index = 0;  ///< of the role; of the channel's tensors
};

class PlanDraft {
 public:
  /// Adds the plan's roles, still empty. REQUIRES: all arguments outlive this object.
  PlanDraft(const Graph& graph, Plan& plan, Lowered& low, std::int32_t virtual_stages);

  const Graph& graph;
  Plan& plan;
  Lowered& low;
  const std::int32_t virtual_stages;

  PlanActor& at(ActorRef w) { return plan.roles[w.role].actors[w.actor]; }
  const PlanActor& at(ActorRef w) const { return plan.roles[w.role].actors[w.actor]; }
  PassAt pass_at(ActorRef w) const { return {at(w).pass, at(w).virtual_stage}; }

  /// Adds an actor of this virtual stage, on the stream of its kind. Returns where it is.
  ActorRef add_actor(std::int32_t role, PlanActor actor, std::int32_t virtual_stage);
  /// Adds an exchange, and an actor for its end on each of `roles`. Returns the ends.
  Ends add_exchange(PlanExchange x, const std::vector<std::int32_t>& roles, std::int32_t virtual_stage, bool backward);
  /// Adds one more end to the exchange of `other`. Returns it.
  ActorRef add_exchange_end(ActorRef other, std::int32_t role) {
    return add_actor(role, PlanActor(at(other)), at(other).virtual_stage);
  }
  /// Adds a tensor that no lowered node makes. Returns its index.
  std::int32_t add_tensor(PlanTensor tensor, const std::string& name);
  /// Adds a tensor to a channel; returns its index there.
  std::int32_t put(PlanChannel& c, std::int32_t tensor) const;
  /// Registers a channel with its writer's and readers' ports, and its tensors' home. Returns its index in the role.
  std::int32_t connect(PlanChannel c, ActorRef writer, const std::vector<ActorRef>& readers);
  /// Makes an actor a reader of a channel that is there.
  void add_reader(std::int32_t channel, ActorRef reader);

  /// Where a tensor lies on a stage, if it lies in a channel.
  std::optional<Home> home(std::int32_t role, std::int32_t tensor) const;
  /// Bytes of the largest part of a tensor: position 0 has it.
  std::int64_t local_bytes(std::int32_t tensor) const { return plan.layout(tensor, 0).bytes_at(0); }

  /// Priority of an act: of two chunks with the same `kind` the chunk that is farther along its pass runs first.
  std::int32_t priority(Priority kind, std::int32_t virtual_stage) const {
    return kind * virtual_stages + (kind == forward_priority ? virtual_stages - 1 - virtual_stage : virtual_stage);
  }
  /// What begins the names of a program's actors: nothing for the first step program, else "evaluate.".
  std::string prefix(std::int32_t program) const {
    return program == plan.step_program() ? "" : plan.programs[program].name + ".";
  }
  /// Most microbatches of a program that a place keeps from one pass to a later one.
  std::int32_t slots_between(std::int32_t role, std::int32_t program, PassAt from, PassAt to) const;
  /// Whether a virtual stage is the first of those that data of step programs joins to it, straight or through others.
  bool begins_pipeline(std::int32_t virtual_stage) const { return pipeline_[virtual_stage] == virtual_stage; }
  /// Whether such data joins another one to it.
  bool in_pipeline(std::int32_t virtual_stage) const {
    return std::count(pipeline_.begin(), pipeline_.end(), pipeline_[virtual_stage]) > 1;
  }
  /// Slots for tensors that arrive from another virtual stage before their turn. Groups of more than S microbatches
  /// arrive while their first chunk is still under way.
  std::int32_t landing_slots(std::int32_t role) const;

 private:
  /// Microbatches that a shared unit at the end of a stage's pipeline keeps under way in addition: each stage begins
  /// its part of the unit only when its stream is between two segments.
  std::int32_t shared_slack(std::int32_t virtual_stage) const;

  std::map<std::pair<std::int32_t, std::int32_t>, Home> home_;  // (role, tensor)
  /// by virtual stage: the first one of those that data of step programs joins to it (begins_pipeline)
  std::vector<std::int32_t> pipeline_;
};

}  // namespace troupe::runtime
