// Plan: the one artifact between a graph and a running job. Equal places are described once, as a role;
// a worker instantiates its own part from its rank. Nobody lists the cluster.
//
// Plain values, comparable; written and read as Cap'n Proto (plan_io.h). Shown by plan_text.h, checked by
// verify.h, timed by token_game.h, run by worker.h.
#pragma once

#include <string>
#include <vector>

#include "placement/boxing.h"
#include "placement/cost.h"
#include "placement/tree.h"
#include "runtime/graph.h"

namespace troupe::runtime {

/// A logical tensor with its layout on a mesh of the plan.
struct PlanTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;                     ///< microbatch rate: of one microbatch
  std::int32_t mesh = 0;           ///< index into Plan::meshes
  NdSbp sbp;                       ///< per axis. Microbatch rate: the dp axis says S(0), whole microbatches
  Rate rate = Rate::microbatch;
  bool lane_terms = false;         ///< a gradient before reduction: P over dp, its terms are lane sums
  bool operator==(const PlanTensor&) const = default;
};

struct PlanReader {
  std::int32_t actor = 0, port = 0;
  bool operator==(const PlanReader&) const = default;
};

/// A channel inside a place: one writer, some readers, `slots` buffers.
struct PlanChannel {
  enum class Kind : std::uint8_t {
    activation, stash, boundary, gradient, reduced, parameter,
    go, commit, feed                 ///< control: written by the worker's conductor
  };
  Kind kind = Kind::activation;
  std::string name;                ///< feed: the name that the session knows
  std::string after;               ///< feed: the report whose value makes the next microbatch; empty: none
  std::int32_t program = 0;
  std::int32_t writer = -1;        ///< actor of the role; -1: the worker's conductor
  std::int32_t writer_port = 0;
  std::vector<PlanReader> readers;
  std::vector<std::int32_t> tensors;
  std::vector<std::int64_t> offsets;   ///< bytes into a slot (into a lane copy), 64-byte aligned
  std::int64_t bytes = 0;          ///< of one slot, one lane copy, at the largest place of the role
  std::int32_t slots = 1;
  Rate rate = Rate::microbatch;
  bool initial = false;            ///< holds a token before the first act
  bool control() const { return kind == Kind::go || kind == Kind::commit || kind == Kind::feed; }
  bool operator==(const PlanChannel&) const = default;
};
const char* to_string(PlanChannel::Kind kind);

/// Where an op's argument lies.
struct PlanOperand {
  enum class Where : std::uint8_t { in, out, scratch };
  Where where = Where::scratch;
  std::int32_t port = 0;
  std::int32_t index = 0;          ///< in, out: which tensor of the channel
  std::int64_t offset = 0;         ///< scratch: bytes
  std::int32_t tensor = 0;
  bool operator==(const PlanOperand&) const = default;
};

struct PlanOp {
  std::string op;                  ///< "": report the input under `name`; with the attr "loss" as the loss
  std::string name;
  Attrs attrs;
  std::vector<PlanOperand> in, out;
  bool operator==(const PlanOp&) const = default;
};

/// A parameter, or its gradients' positions, in an optimizer actor.
struct PlanParamRef {
  std::int32_t param = 0;          ///< index into Plan::params
  std::int32_t index = 0;          ///< tensor index in the parameter channel
  struct Use {
    std::int32_t port = 0, index = 0;
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> grads;
  bool operator==(const PlanParamRef&) const = default;
};

struct PlanActor {
  enum class Kind : std::uint8_t { segment, user, exchange, norm, update, digest };
  Kind kind = Kind::segment;
  std::string name;
  std::int32_t program = 0;
  Rate rate = Rate::microbatch;
  std::string stream;              ///< "compute", "comm" or "host"
  std::int32_t priority = 0;
  std::uint32_t run = 0;
  bool backward = false;
  std::vector<std::int32_t> in, out;   ///< channels, by port
  std::vector<PlanOp> ops;         ///< segments: the ops; user actors: one, with op = the actor's kind
  std::int32_t exchange = -1;      ///< index into Plan::exchanges; of an update: it gathers what it has updated
  std::vector<PlanParamRef> params;
  double cost_s = 0;               ///< predicted, of one act
  std::int64_t scratch_bytes = 0;  ///< tensors inside the segment, then the ops' own scratch
  std::int64_t op_scratch_offset = 0;
  bool closes_step = false;
  /// An update of shares (ZeRO): its act is over when everybody's shares have arrived in the parameter slot.
  bool gathers() const { return kind == Kind::update && exchange >= 0; }
  bool operator==(const PlanActor&) const = default;
};
const char* to_string(PlanActor::Kind kind);

/// A boxing that places execute together.
struct PlanExchange {
  std::string name;
  std::int32_t program = 0;
  Rate rate = Rate::microbatch;
  struct Pair {
    std::int32_t from = 0, to = 0;     ///< tensors
    bool operator==(const Pair&) const = default;
  };
  std::vector<Pair> moves;
  Collective collective = Collective::transfers;
  std::int64_t bytes = 0;          ///< moved between places per act of the whole job
  double seconds = 0;              ///< predicted, of one act
  double latency_s = 0;            ///< the part of it in which the link is free for others
  bool operator==(const PlanExchange&) const = default;
};

/// What every place of a stage does.
struct PlanRole {
  std::int32_t stage = 0;
  std::vector<PlanActor> actors;
  std::vector<PlanChannel> channels;
  std::vector<std::string> units;
  bool operator==(const PlanRole&) const = default;
};

struct PlanParam {
  std::string name;
  std::int32_t tensor = 0;         ///< its tensor on its own mesh (the union of its stages)
  Init::Kind init = Init::Kind::constant;
  float init_value = 0;
  bool decay = true;
  std::int32_t grad_copies = 0;    ///< most lane copies any place holds
  std::int32_t share = -1;         ///< ZeRO: the tensor that says which part a place updates; -1: all that it has
  bool operator==(const PlanParam&) const = default;
};

struct Plan {
  std::vector<std::string> programs;
  std::vector<ProgramSpec> program_specs;
  bool trains = false;
  std::int32_t lanes = 1;
  std::uint64_t seed = 0;
  kernels::AdamW hyper;
  std::vector<Mesh> meshes;        ///< the first `stages` are the stages' own
  std::int32_t stages = 1;
  std::vector<PlanRole> roles;     ///< one per stage
  std::vector<PlanTensor> tensors;
  std::vector<PlanExchange> exchanges;
  std::vector<PlanParam> params;
  CostModel costs;

  std::int32_t workers() const;
  /// The stage of a rank; -1 if it has none.
  std::int32_t stage_of(Rank rank) const;
  std::int32_t program(const std::string& name) const;
  /// Lanes of a program: never more than it has microbatches.
  std::int32_t lanes_for(std::int32_t program) const;
  /// dp coordinate and dp width of a rank within its stage.
  std::int64_t dp_index(Rank rank) const;
  std::int64_t dp_width(std::int32_t stage) const { return meshes[stage].axis_size("dp"); }
  /// The microbatches of a program that dp coordinate `dp_index` of a stage runs, in the order in which it
  /// runs them. Owners take turns where another stage is wider: all of its places work from the first
  /// microbatch on. Every place runs its own in one global order, so no two wait for each other.
  std::vector<std::int32_t> microbatches(std::int32_t program, std::int32_t stage, std::int64_t dp_index) const;
  /// Lanes that dp coordinate `dp_index` of a stage owns.
  Term owned_lanes(std::int32_t program, std::int32_t stage, std::int64_t dp_index) const;
  /// The layout of a tensor; for microbatch rate on the sub-mesh of the one dp coordinate that runs it.
  Layout layout(std::int32_t tensor, std::int64_t dp_index) const;
  /// The part of a tensor that `rank` has (empty extent list if none).
  Extent extent(std::int32_t tensor, Rank rank) const;
  /// How the gradients of that place accumulate: which lane copies, which sums at the end.
  LaneSchedule lane_schedule(std::int32_t stage, std::int64_t dp_index) const;
  /// Lane copies of gradient channels that a place of `stage` with dp coordinate `dp_index` holds.
  std::int32_t grad_copies(std::int32_t stage, std::int64_t dp_index) const;
};

/// Position of the dp axis in a mesh, or -1.
inline int dp_axis(const Mesh& mesh) { return mesh.axis("dp"); }

}  // namespace troupe::runtime
