// The passes that make a plan of a lowered graph, in the order in which make_plan() runs them. Each says what it reads
// and what it leaves; what several passes share is PlanDraft. Internal to the compiler.
#pragma once

#include <array>
#include <set>

#include "runtime/planner/draft.h"

namespace troupe::runtime {

/// Where parameters, moments and gradient sums lie: what a ZeRO stage (Rajbhandari et al., 2020) divides over dp, and
/// how many versions there are. No later pass asks for the stage's number.
struct ParameterScheme {
  /// 1 to 3: each place updates its share, and has the moments of that share only
  bool updates_shares = false;
  /// 2, 3: each place sums the gradients of its share only, microbatch by microbatch
  bool sums_shares = false;
  bool stores_shares = false;  ///< 3: between uses of a parameter a place keeps its share only
  /// At any stage: an update leaves the version that it reads whole, and writes the other of two slots.
  bool keeps_version = false;
};
ParameterScheme scheme_of(std::int32_t zero_stage, bool keeps_version);

/// Settles rate and type of every use's gradient, before any pass reads them: where places sum shares, a microbatch's
/// gradient is passed on, as f32 if it is one term.
void settle_gradients(PlanDraft& draft, const ParameterScheme& scheme);

/// What nodes become.
struct Segments {
  std::vector<Ends> node_actor;                         ///< per lowered node (boxing: the receiving ends)
  std::map<ActorRef, std::vector<std::int32_t>> nodes;  ///< of each segment
  std::map<ActorRef, std::int32_t> user_nodes;          ///< of each user-defined actor
};
/// Ops and reports -> segments. A run of ops on one stream is cut where data leaves it and comes back, and at unit
/// boundaries.
Segments make_segments(PlanDraft& draft);
/// Segments -> which of them take turns: those that begin a pass, and those of weight gradients.
void take_turns(PlanDraft& draft, const Segments& segments);
/// Nodes of user-defined actors -> actors.
void make_user_actors(PlanDraft& draft, Segments& segments);

/// Who makes and who reads a tensor of the lowered graph.
struct Edges {
  std::vector<Ends> writer;  ///< per tensor
  std::vector<std::vector<ActorRef>> readers;
};
/// Boxings -> exchanges: those of one producer to one stage, for the same direction, travel together. Leaves the edges
/// of all nodes.
Edges make_exchanges(PlanDraft& draft, Segments& segments);

/// Edges of activations -> channels and their slots. Error: a feed without a reader.
Status make_channels(PlanDraft& draft, const Edges& edges);
/// For each virtual stage a zero-byte stash from its first forward segment to its last backward segment. It limits
/// forward work that stashes nothing of its own (a single linear layer keeps only its input).
void make_credits(PlanDraft& draft, const Segments& segments);

/// A gathered, rounded gradient takes the memory of the sums that it comes from.
struct ReusedMemory {
  std::int32_t role = 0;
  std::array<std::int32_t, 2> channels{};  ///< the second takes the memory of the first
};
/// What the parameters' pass leaves for later ones.
struct Optimizers {
  /// (segment or user-defined actor, parameter) -> the tensor that it reads: gathered, or a share
  std::map<std::pair<ActorRef, std::int32_t>, std::int32_t> gathered;
  std::set<ActorRef> after_commit;  ///< exchanges that wait for the commit
  std::vector<ReusedMemory> reused;
};
/// Parameters -> their slots, norms, updates, digests, and the way of their gradients: reductions, gathers, shares.
Optimizers make_parameters(PlanDraft& draft, const Segments& segments, const Edges& edges,
                           const ParameterScheme& scheme);

/// Parameter slots -> snapshot and writer actors, with `slots` slots of the arena between them.
void make_snapshots(PlanDraft& draft, std::int32_t slots);
/// Parameter slots -> copy actors.
void make_copies(PlanDraft& draft);

/// Channels that can take turns -> rings of few buffers, in the order in which a pass needs them.
void make_rings(PlanDraft& draft, const Segments& segments, const std::vector<ReusedMemory>& reused);

/// A chain is segments that activations connect on the compute stream. Adds a channel from each of its last segments to
/// those of its first ones that may not act at any time between yet: these begin a microbatch when the last one has
/// begun the microbatch before, so that the chain's activations take turns in memory (Lifetimes, LT-1 acts). Leaves out
/// chains whose data leave the stream on the way: another microbatch fills that time.
void close_chains(PlanDraft& draft);

/// Actors that wait for nothing else -> channels of `go`; updates, and exchanges that wait for it -> `commit`.
void make_control(PlanDraft& draft, const std::set<ActorRef>& after_commit);

/// First fit by lifetime: tensors that never live at the same time share memory. Sets the offsets of the operands that
/// are scratch memory; returns its bytes.
std::int64_t place_scratch(const PlanDraft& draft, std::vector<PlanOp>& ops);
/// What an op sees of a tensor at the place that has the largest part.
TensorType local_type(const PlanDraft& draft, std::int32_t tensor);

/// Segments and user-defined actors -> their ops with operands, scratch memory by lifetime, and op state.
void fill_operands(PlanDraft& draft, Segments& segments, const Edges& edges, const Optimizers& optimizers);

/// Sets the costs of all actors but segments and exchanges, which actors close a step, and which parameters digests,
/// snapshots and copies read.
void finish_actors(PlanDraft& draft);
/// Sets each exchange's collective, bytes, seconds and latency by the cost model, and as the cost of its actors the
/// seconds of an act in which a place adds.
void cost_exchanges(PlanDraft& draft);

/// Tenants that take turns -> shared areas. REQUIRES: operands, costs and closes_step are there. Error: as local_plan.
Status share_areas(PlanDraft& draft);

/// All passes. `snapshots`: slots of the arena, 0: the plan takes no checkpoint. `copies`: whether places keep copies.
/// Error: those of make_channels and share_areas; data goes back to an earlier stage where the pipeline's order of
/// passes, or ZeRO 3, cannot serve it; with ZeRO 3, data comes back to a unit on its stage.
Status make_plan(const Graph& graph, Plan& plan, Lowered low, std::int32_t virtual_stages,
                 const ParameterScheme& scheme, std::int32_t snapshots, bool copies);

}  // namespace troupe::runtime
