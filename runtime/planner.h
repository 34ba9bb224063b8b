// Planner: lowered ops -> segments -> actors, channels, slots and memory, by role. Internal to the compiler;
// run() is in compile.cpp, its parts in planner_*.cpp in the order in which it calls them.
#pragma once

#include <set>

#include "runtime/lowered.h"

namespace troupe::runtime {

/// Everything in a slot and in scratch memory begins at a multiple of this: a cache line, an AVX-512 vector.
inline constexpr std::int64_t plan_alignment = tensor_alignment;

// Lower first. A backward act frees memory and feeds other stages; evaluation uses what is left.
enum Priority : std::int32_t { backward_priority = 0, update_priority = 1, forward_priority = 2, other_priority = 3 };

/// Where an actor is: (role, index). Roles are stages.
struct Where {
  std::int32_t role = -1, actor = -1;
  auto operator<=>(const Where&) const = default;
};

class Planner {
 public:
  Planner(const Graph& g, Plan& plan, Lowered low, std::int32_t zero) : g_(g), plan_(plan), low_(std::move(low)), zero_(zero) {}
  Status run();

 private:
  PlanActor& at(Where w) { return plan_.roles[w.role].actors[w.actor]; }
  Where add_actor(std::int32_t role, PlanActor actor);
  /// 1F1B: how many microbatches stage s of S runs ahead of its backward work.
  std::int32_t stash_slots(std::int32_t stage) const;

  // segments and actors: planner_segments.cpp
  /// A run of ops on one stream is cut where data leaves it and comes back: `part` counts those cuts.
  void make_segments();
  void make_actors();

  // exchanges: planner_exchanges.cpp
  /// Boxings of one producer to one stage, for the same direction, travel together as one exchange.
  void make_exchanges();
  Where add_exchange(PlanExchange x, Rate rate, std::int32_t role, bool backward);
  Where add_exchange_end(Where other, std::int32_t role);
  /// What each exchange moves, and how long the cost model thinks one act takes.
  void cost_exchanges();

  // channels: planner_channels.cpp
  void read(std::int32_t tensor, Where who);
  void note_readers();
  std::int64_t local_bytes(std::int32_t tensor) const;
  /// Adds a tensor to a channel; answers its index.
  std::int32_t put(PlanChannel& c, std::int32_t tensor);
  /// Registers a channel with its writer's and readers' ports. Answers its index in the role.
  std::int32_t connect(PlanChannel c, Where writer, const std::vector<Where>& readers);
  /// Error: a feed that nobody reads.
  Status make_channels();
  void add_channel(Where writer, const std::vector<Where>& readers, const std::vector<std::int32_t>& tensors);
  /// 1F1B where a stage's forward work leaves nothing of its own for its backward work (a lone linear
  /// layer keeps only its input): a zero-byte stash from its first forward segment to its last backward one.
  void make_credits();
  void make_control();

  // parameters, gradients, optimizer: planner_parameters.cpp
  struct Group {                       // parameters that one actor updates
    std::vector<std::size_t> params;   // indices into low_.params
    std::int32_t mesh = 0;
    std::vector<std::int32_t> stages;
    std::string name;
  };
  /// One use's gradient as an optimizer actor finds it on a stage: a channel and an index in it.
  using Found = std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>>;   // (stage, tensor of the use)
  Status make_parameters();
  Status make_group(const Group& group);
  /// True where places of a model axis each know a part of the sum (a norm's weight over sequence shards).
  bool summed_on_model_axis(const PlanTensor& grad) const;
  /// P -> S(0) along dp (reduce-scatter), P -> B on the model axes where needed (all-reduce), then S(0) -> B along dp
  /// (all-gather): visible boxings all of them.
  void reduce(const Group& group, const Mesh& mesh, Where writer, PlanChannel grads,
              const std::vector<std::pair<std::size_t, std::int32_t>>& uses, std::map<std::int32_t, Where>& norm,
              std::map<std::int32_t, Where>& update, Found& for_norm, Found& for_update);
  /// ZeRO 1: each dp coordinate updates its share of the group's parameters, then all gather the shares in place.
  void share_update(const Group& group, std::map<std::int32_t, Where>& update);
  void add_param_refs(const Group& group, std::int32_t s, Where who, const Found& found);

  // operands, scratch, costs: planner_operands.cpp
  TensorType local_type(std::int32_t tensor) const;
  PlanOperand operand(Where who, std::int32_t tensor, bool writes);
  void fill_operands();
  /// First fit by lifetime: tensors that never live at the same time share memory. Answers the bytes.
  std::int64_t place_scratch(std::vector<PlanOp>& ops,
                             const std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>>& life);
  /// What merging lane copies adds to an act of a segment that makes gradients, on average over the step.
  double lane_merges_s(const PlanRole& role, const PlanActor& a) const;
  void finish_actors();

  const Graph& g_;
  Plan& plan_;
  Lowered low_;
  std::int32_t zero_;
  std::vector<Where> node_actor_;                              // lowered node -> its actor (boxing: the receiving end)
  std::map<std::int32_t, Where> exchange_source_;              // boxing node -> its sending end
  std::map<Where, std::vector<std::int32_t>> segment_nodes_;
  std::vector<Where> writer_;                                  // per tensor
  std::vector<std::vector<Where>> readers_;
  std::map<Where, std::set<Where>> merged_readers_;
  std::map<Where, std::vector<std::int32_t>> merged_;
  std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> place_;   // tensor -> (channel, index)
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::int32_t, std::int32_t>> param_place_;   // (stage, tensor)
};

}  // namespace troupe::runtime
