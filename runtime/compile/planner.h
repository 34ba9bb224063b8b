// Planner: lowered ops -> segments -> actors, channels, slots and memory, by role. Internal to the compiler;
// run() is in planner.cpp, its parts in planner_*.cpp.
#pragma once

#include <array>
#include <functional>
#include <set>

#include "runtime/compile/lowered.h"

namespace troupe::runtime {

/// Everything in a slot and in scratch memory begins at a multiple of this: a cache line, an AVX-512 vector.
inline constexpr std::int64_t plan_alignment = tensor_alignment;

// A stream runs lower priorities first. A backward act frees memory and feeds other stages; no actor reads weight
// gradients before the end of the step; evaluation uses the time that is left. A negative priority runs between any two
// tasks (RQ-3): places of several stages wait for it.
enum Priority : std::int32_t { urgent_priority = -1, backward_priority, update_priority, forward_priority, weights_priority, other_priority };

// Chains of tasks on a stream that continue each other (RQ-1).
enum Run : std::uint32_t { forward_run, backward_run, weights_run, source_run, update_run, runs_per_program };
inline std::uint32_t run_of(std::int32_t program, Run run) { return static_cast<std::uint32_t>(program) * runs_per_program + run; }

/// Where an actor is: (role, index). Roles are stages.
struct ActorRef {
  std::int32_t role = -1, actor = -1;
  auto operator<=>(const ActorRef&) const = default;
};

/// A pass through a virtual stage.
struct PassAt {
  Pass pass = Pass::forward;
  std::int32_t virtual_stage = 0;
  bool operator==(const PassAt&) const = default;
};

/// The actors that one node of the graph becomes, by role: one on each stage of its mesh.
using Ends = std::map<std::int32_t, ActorRef>;

class Planner {
 public:
  Planner(const Graph& g, Plan& plan, Lowered low, std::int32_t depths, const CompileOptions& options)
      : g_(g), plan_(plan), low_(std::move(low)), virtual_stages_(depths), zero_(options.zero), snapshots_(options.snapshots) {}
  Status run();

 private:
  PlanActor& at(ActorRef w) { return plan_.roles[w.role].actors[w.actor]; }
  PassAt pass_at(ActorRef w) { return {at(w).pass, at(w).virtual_stage}; }
  ActorRef add_actor(std::int32_t role, PlanActor actor, std::int32_t virtual_stage);
  /// Slots for tensors that arrive from another virtual stage before their turn. Groups of more than S microbatches
  /// arrive while their first chunk is still under way.
  std::int32_t landing_slots(std::int32_t role) const;
  /// Microbatches that a shared unit at the end of the pipeline keeps under way in addition: each stage begins its part
  /// of the unit only when its stream is between two segments.
  std::int32_t shared_slack() const;
  /// Most microbatches that a place keeps from one pass to a later one.
  std::int32_t slots_between(std::int32_t role, PassAt from, PassAt to) const;
  /// Priority of an act: of two chunks with the same `kind` the chunk that is farther along its pass runs first.
  std::int32_t priority(Priority kind, std::int32_t virtual_stage) const {
    return kind * virtual_stages_ + (kind == forward_priority ? virtual_stages_ - 1 - virtual_stage : virtual_stage);
  }

  // segments and actors: planner_segments.cpp
  /// A run of ops on one stream is cut where data leaves it and comes back: `part` counts those cuts.
  void make_segments();
  /// Gives each node its pass: Pass::weights to ops that make only parameter gradients, if the pipeline splits the
  /// backward pass.
  void split_backward();
  /// Marks the segments that take turns: those that begin a pass, and those of weight gradients.
  void take_turns();
  void make_actors();

  // exchanges: planner_exchanges.cpp
  /// Boxings of one producer to one stage, for the same direction, travel together as one exchange.
  void make_exchanges();
  ActorRef add_exchange(PlanExchange x, Rate rate, std::int32_t role, std::int32_t virtual_stage, bool backward);
  ActorRef add_exchange_end(ActorRef other, std::int32_t role);
  /// An end of an exchange on each of some stages.
  Ends add_exchange_ends(PlanExchange x, const std::vector<std::int32_t>& roles, std::int32_t virtual_stage, bool backward);
  /// What each exchange moves, and how long the cost model thinks one act takes.
  void cost_exchanges();
  void cost_gather(PlanExchange& x);

  // channels: planner_channels.cpp
  void read(std::int32_t tensor, ActorRef who);
  void note_readers();
  std::int64_t local_bytes(std::int32_t tensor) const;
  /// Adds a tensor to a channel; returns its index.
  std::int32_t put(PlanChannel& c, std::int32_t tensor);
  /// Registers a channel with its writer's and readers' ports. Returns its index in the role.
  std::int32_t connect(PlanChannel c, ActorRef writer, const std::vector<ActorRef>& readers);
  /// Error: a feed without a reader.
  Status make_channels();
  void add_channel(ActorRef writer, const std::vector<ActorRef>& readers, const std::vector<std::int32_t>& tensors);
  /// For each virtual stage a zero-byte stash from its first forward segment to its last backward segment. It limits
  /// forward work that stashes nothing of its own (a single linear layer keeps only its input).
  void make_credits();
  void make_control();

  /// A tensor that no lowered node makes.
  std::int32_t add_tensor(PlanTensor tensor, const std::string& name);

  // parameters, gradients, optimizer: planner_parameters.cpp
  struct Group {                       // parameters that one actor updates
    std::vector<std::size_t> params;   // indices into low_.params
    std::int32_t mesh = 0;
    std::vector<std::int32_t> stages;
    std::string name;
  };
  /// Where an optimizer actor on a stage finds the sums that have the gradient of a use: channel, index in it.
  using Found = std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>>;   // (stage, tensor of the use)
  Status make_parameters();
  Status make_group(const Group& group);
  /// True where each place of a model axis has a part of the sum (a norm's weight over sequence shards).
  bool summed_on_model_axis(const PlanTensor& grad) const;
  /// A gradient of each use, by parameter: (index into low_.params, tensor).
  using Uses = std::vector<std::pair<std::size_t, std::int32_t>>;
  /// P -> S(0) along dp, and P -> B on the model axes where it is a sum there too (reduce-scatter); where each place
  /// updates the whole, then S(0) -> B along dp (all-gather): visible boxings both.
  void reduce(const Group& group, const Uses& uses, const Ends& norm, const Ends& update, Found& for_norm, Found& for_update);
  /// The reduce-scatter of reduce(): adds the gradient of use u to sum `sum_of[u]`, of which each dp coordinate gets
  /// its share. Returns the exchanges whose first output has the sums; `readers`: the readers of these, by stage.
  Ends reduce_shares(const Group& group, Rate rate, const Uses& uses, const std::vector<std::int32_t>& sum_of, std::vector<std::int32_t>& shares,
                     const std::function<std::vector<ActorRef>(std::int32_t)>& readers);
  /// The channels in which the segments of a stage leave gradients of these uses, one for each segment, read by
  /// `readers`.
  std::vector<std::int32_t> connect_gradients(const Group& group, std::int32_t stage, const Uses& uses, const std::vector<ActorRef>& readers);
  std::string gradients_name(const Group& group, std::int32_t gradient);
  /// Makes an actor a reader of the slot of a group's parameters.
  void read_parameters(const Group& group, ActorRef who);
  /// Most terms that a microbatch adds to an element of a gradient, at one place.
  std::int64_t terms_of(std::int32_t gradient) const;
  void add_param_refs(const Group& group, std::int32_t s, ActorRef who, const Found& found);
  /// A parameter's gradient on its mesh, added up over all places: a share along dp, or all of it.
  PlanTensor reduced_tensor(std::size_t param, bool share) const;
  /// One end of an exchange of these tensors on each stage of the group.
  Ends everywhere(const Group& group, const std::string& name, Rate rate, const std::vector<std::int32_t>& from,
                  const std::vector<std::int32_t>& to);
  /// A channel for tensors that an exchange makes once a step. Returns its index in the role.
  std::int32_t add_result(PlanChannel::Kind kind, const std::vector<std::int32_t>& tensors, ActorRef from, const std::vector<ActorRef>& readers);

  // ZeRO: planner_shares.cpp
  /// The tensors that say which share of a group's parameters each dp coordinate updates.
  void make_shares(const Group& group);
  /// ZeRO 1 and 2: after the update of its share each place gathers all shares, in its parameter slot.
  void gather_updated(const Group& group, const Ends& update);
  /// ZeRO 3: each use of the group's parameters gathers them anew. Returns the actors that read the shares, by stage.
  std::map<std::int32_t, std::set<ActorRef>> gather_for_uses(const Group& group);
  /// ZeRO 2 and 3: in each round every place gets its share of the gradients of the round's microbatches, and adds it
  /// to its sums.
  void reduce_by_rounds(const Group& group, const Uses& uses, const Ends& norm, const Ends& update, Found& found);

  // checkpoints: planner_snapshots.cpp
  /// On each stage, for every group of parameters, a snapshot actor and a writer actor.
  void make_snapshots();

  // rings: planner_rings.cpp
  /// Few buffers that many channels use one after the other, in the order in which a pass needs them.
  void make_rings();
  using Occupant = std::vector<std::int32_t>;        // channels that are needed together
  void add_ring(std::int32_t role, std::int32_t buffers, const std::vector<Occupant>& occupants);
  /// Reductions of one stage, in the order in which their gradients are made, share few staging buffers.
  void share_staging(std::int32_t role, const std::vector<std::int32_t>& exchanges);
  bool shares_staging(const PlanRole& role, const PlanActor& actor) const;
  /// Positions of a role's actors in an order in which each comes after those that it reads from.
  std::vector<std::int32_t> order_of(const PlanRole& role) const;

  // shared areas: planner_areas.cpp
  /// Where segments hand activations on inside the compute stream, the last one sends the first a turn: a chain's next
  /// microbatch begins after the last segment has begun this one. Its activations then take turns (Lifetimes, LT-1).
  /// Chains whose microbatches leave the stream on the way stay open: another microbatch fills that time.
  void close_chains();
  /// Puts tenants that take turns into shared areas. Error: as local_plan.
  Status share_areas();

  // operands, scratch, costs: planner_operands.cpp
  TensorType local_type(std::int32_t tensor) const;
  PlanOperand operand(ActorRef who, std::int32_t tensor, bool writes);
  void fill_operands();
  /// First fit by lifetime: tensors that never live at the same time share memory. Returns the bytes.
  std::int64_t place_scratch(std::vector<PlanOp>& ops,
                             const std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>>& life);
  void finish_actors();
  void finish_actor(const PlanRole& role, PlanActor& a);

  const Graph& g_;
  Plan& plan_;
  Lowered low_;
  std::int32_t virtual_stages_;
  std::int32_t zero_;
  std::int32_t snapshots_;                                     // slots of the arena
  std::vector<Pass> pass_;                                     // per lowered node
  // lowered node -> its actors (boxing: the receiving ends)
  std::vector<Ends> node_actor_;
  std::map<std::int32_t, Ends> exchange_source_;               // boxing node -> its sending ends
  std::map<ActorRef, std::vector<std::int32_t>> segment_nodes_;
  std::vector<Ends> writer_;                                   // per tensor
  std::vector<std::vector<ActorRef>> readers_;
  std::map<ActorRef, std::set<ActorRef>> merged_readers_;
  std::map<ActorRef, std::vector<std::int32_t>> merged_;
  // (role, tensor) -> (channel, index)
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>> place_;
  // (segment, parameter) -> the gathered tensor that it reads
  std::map<std::pair<ActorRef, std::int32_t>, std::int32_t> gathered_;
  std::set<ActorRef> after_commit_;                               // exchanges that wait for the commit
  // role, channels: the second takes the memory of the first
  std::vector<std::pair<std::int32_t, std::array<std::int32_t, 2>>> reused_;
};

}  // namespace troupe::runtime
