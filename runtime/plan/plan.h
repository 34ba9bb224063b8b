// Plan: the one artifact between a graph and a running job. It describes equal places once, as a role; a worker
// instantiates its own part from its rank.
//
// Plain values, comparable; written and read as Cap'n Proto (plan_io.h). Shown by plan_text.h, checked by
// verify.h, timed by token_game.h, run by worker.h.
#pragma once

#include <string>
#include <vector>

#include "placement/collective.h"
#include "placement/cost.h"
#include "runtime/graph/graph.h"
#include "runtime/plan/microbatch_owners.h"
#include "runtime/plan/pipeline_schedule.h"

namespace troupe::runtime {

/// A logical tensor with its layout on a mesh of the plan.
struct PlanTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;            ///< microbatch rate: of one microbatch
  std::int32_t mesh = 0;  ///< index into Plan::meshes
  NdSbp sbp;              ///< per axis. Microbatch rate: S(0) on dp (whole microbatches); gradients P
  Rate rate = Rate::microbatch;
  /// The parameter (index into Plan::params) whose gradient this is; -1: it is none. A gradient that ops make is P over
  /// dp. At step rate (sum64) a place adds up the gradients of its microbatches; at microbatch rate it passes each on
  /// (f32 where it is one term, else sum64).
  std::int32_t gradient_of = -1;
  bool operator==(const PlanTensor&) const = default;
};

/// An actor that takes the tokens of a channel. (A reader of a version is a program: SessionOptions::readers.)
struct PlanReader {
  std::int32_t actor = 0, port = 0;
  bool operator==(const PlanReader&) const = default;
};

/// A channel inside a place: one writer, some readers, `slots` buffers.
struct PlanChannel {
  enum class Kind : std::uint8_t {
    activation,
    stash,
    boundary,
    /// a place's own sums of gradients: over its microbatches of a step; with ZeRO 2 and 3 over one microbatch
    gradient,
    /// exact sums over dp, a place's share: before or after model axes are added
    reduced,
    rounded,  ///< the sums over dp, gathered from all shares and rounded to f32
    parameter,
    go,
    commit,
    feed,      ///< control: written by the worker's conductor
    gathered,  ///< ZeRO 3: parameters while a unit, or a user-defined actor, needs them
    turn,      ///< no bytes: a buffer of a ring is free for its next channel
    /// what a place saves of a group: its slots lie in the host arena (LocalPlan)
    snapshot
  };
  Kind kind = Kind::activation;
  std::string name;  ///< feed: the name that the session knows
  /// feed: the report of microbatch m for which microbatch m + 1 waits; empty: none
  std::string after;
  std::int64_t at_once = 1;  ///< feed: the number of first microbatches that wait for no report
  std::int32_t program = 0;
  std::int32_t writer = -1;  ///< actor of the role; -1: the worker's conductor
  std::int32_t writer_port = 0;
  std::vector<PlanReader> readers;
  std::vector<std::int32_t> tensors;
  std::vector<std::int64_t> offsets;  ///< bytes into a slot, 64-byte aligned
  std::int64_t bytes = 0;             ///< of one slot, at the largest place of the role
  std::int32_t slots = 1;
  Rate rate = Rate::microbatch;
  bool initial = false;  ///< holds a token before the first act
  /// of the role: its channels take turns in few buffers; -1: memory of its own
  std::int32_t ring = -1;
  std::int32_t buffer = 0;  ///< of that ring
  /// bytes into the buffer: channels that are needed together lie side by side
  std::int64_t buffer_offset = 0;
  /// A shared area of the role: its shifts take turns in the same memory (lifetimes.h), and tenants of one shift lie
  /// side by side; -1: none.
  std::int32_t area = -1;
  std::int32_t shift = 0;
  bool control() const { return kind == Kind::go || kind == Kind::commit || kind == Kind::feed; }
  bool operator==(const PlanChannel&) const = default;
};
const char* to_string(PlanChannel::Kind kind);

/// Where an op's argument lies.
struct PlanOperand {
  enum class Where : std::uint8_t { in, out, scratch };
  Where where = Where::scratch;
  std::int32_t port = 0;
  std::int32_t index = 0;   ///< in, out: which tensor of the channel
  std::int64_t offset = 0;  ///< scratch: bytes
  std::int32_t tensor = 0;
  bool operator==(const PlanOperand&) const = default;
};

/// One op of a segment, or the kind of a user-defined actor, with its arguments.
struct PlanOp {
  std::string op;  ///< "": report the input under `name`; with the attr "loss" as the loss
  std::string name;
  Attrs attrs;
  std::vector<PlanOperand> in, out;
  std::int64_t state_offset = 0;  ///< bytes into the op state of its actor
  std::int64_t state_bytes = 0;   ///< that the op keeps from act to act, at the largest place of the role
  bool operator==(const PlanOp&) const = default;
};

/// A parameter, or its gradients' positions, in an optimizer actor.
struct PlanParamRef {
  std::int32_t param = 0;  ///< index into Plan::params
  std::int32_t index = 0;  ///< tensor index in the parameter channel
  struct Use {
    std::int32_t port = 0, index = 0;
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> grads;
  bool operator==(const PlanParamRef&) const = default;
};

/// An actor of a role: what it executes, on which stream, and the channels at its ports.
struct PlanActor {
  enum class Kind : std::uint8_t { segment, user, exchange, norm, update, digest, snapshot, writer };
  Kind kind = Kind::segment;
  std::string name;
  std::int32_t program = 0;
  Rate rate = Rate::microbatch;
  /// "compute", "comm", "host", "snapshot" or "disk": the kind's (actor_traits.h)
  std::string stream;
  std::int32_t priority = 0;  ///< TaskOrder::priority, TaskOrder::run
  std::uint32_t run = 0;
  Pass pass = Pass::forward;
  std::int32_t virtual_stage = 0;     ///< chunk virtual_stage / S of stage virtual_stage mod S
  bool takes_turns = false;           ///< its acts begin in the order of the plan's pipeline: see Plan::ordered
  std::vector<std::int32_t> in, out;  ///< channels, by port
  std::vector<PlanOp> ops;            ///< segments: the ops; user actors: one, with op = the actor's kind
  std::int32_t exchange = -1;         ///< index into Plan::exchanges; of an update: it gathers what it has updated
  std::vector<PlanParamRef> params;
  double cost_s = 0;               ///< predicted, of one act on its stream; an exchange's: of adding
  std::int64_t scratch_bytes = 0;  ///< tensors inside the segment, then the ops' own scratch
  std::int64_t op_scratch_offset = 0;
  std::int64_t op_state_bytes = 0;  ///< segments: what all their ops keep from act to act
  /// Exchanges of one ring take turns in few staging buffers; -1: staging memory of its own.
  std::int32_t staging_ring = -1;
  std::int32_t staging_buffer = 0;
  std::int32_t staging_area = -1;  ///< the shared area that its staging memory is in; -1: none
  std::int32_t staging_shift = 0;
  bool closes_step = false;
  /// An update of shares (ZeRO): its act is over when the shares of all dp coordinates are in the parameter slot.
  bool gathers() const { return kind == Kind::update && exchange >= 0; }
  bool backward() const { return pass != Pass::forward; }
  /// Whether each of its acts reports `report`: see Graph::report, Graph::actor.
  bool reports(const std::string& report) const;
  bool operator==(const PlanActor&) const = default;
};
const char* to_string(PlanActor::Kind kind);

/// A boxing that places execute together.
struct PlanExchange {
  std::string name;
  std::int32_t program = 0;
  Rate rate = Rate::microbatch;
  struct Pair {
    std::int32_t from = 0, to = 0;  ///< tensors
    bool operator==(const Pair&) const = default;
  };
  std::vector<Pair> moves;
  Collective collective = Collective::transfers;
  std::int64_t bytes = 0;  ///< moved between places per act of the whole job
  double seconds = 0;      ///< predicted, of one act
  double latency_s = 0;    ///< the part of `seconds` in which it keeps no port and no link busy
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

/// A parameter of the model.
struct PlanParam {
  std::string name;
  std::int32_t tensor = 0;  ///< its tensor on its own mesh (the union of its stages)
  Init::Kind init = Init::Kind::constant;
  float init_value = 0;
  bool decay = true;
  /// most terms that all microbatches of a step add to one element of its gradient
  std::int64_t terms = 1;
  /// ZeRO: the tensor that says which part a place updates; -1: all that it has
  std::int32_t share = -1;
  bool stored_as_share = false;  ///< ZeRO 3: between uses of the parameter a place keeps its share only
  /// The tensor that lies in the parameter slots.
  std::int32_t stored() const { return stored_as_share ? share : tensor; }
  bool operator==(const PlanParam&) const = default;
};

/// Position of the dp axis in a mesh, or -1.
inline int dp_axis(const Mesh& mesh) { return mesh.axis("dp"); }

struct Plan {
  std::vector<std::string> programs;
  std::vector<ProgramSpec> program_specs;
  std::int32_t step_program = 0;  ///< runs once a step: Graph::step_program
  bool trains = false;            ///< the step program does
  std::uint64_t seed = 0;
  kernels::AdamW hyper;
  std::vector<Mesh> meshes;  ///< the first `stages` are the stages' own; then unions of stages
  std::int32_t stages = 1;
  Pipeline pipeline;
  /// Per stage: which dp coordinate runs each microbatch of a step. Empty: microbatch m is run by m mod width. Any
  /// table gives the same numbers, for gradients are exact sums.
  std::vector<std::vector<std::int32_t>> owners;
  std::vector<PlanRole> roles;  ///< one per stage
  std::vector<PlanTensor> tensors;
  std::vector<PlanExchange> exchanges;
  std::vector<PlanParam> params;
  CostModel costs;

  /// Places of the job: the ranks are 0 .. workers() - 1.
  std::int32_t workers() const;
  /// The stage of a rank; -1 if it has none.
  std::int32_t stage_of(Rank rank) const;
  /// Index of a program; -1 if there is none of this name.
  std::int32_t program(const std::string& name) const;
  /// Whether a program is the step program.
  bool is_step_program(std::int32_t program) const { return program == step_program; }
  const ProgramSpec& step_spec() const { return program_specs[step_program]; }
  /// Versions of the parameters that the arenas hold for checkpoints at the same time; 0: the plan takes no checkpoint.
  std::int32_t snapshot_slots() const;
  /// Whether the places of a stage are among those of a mesh.
  bool on_mesh(std::int32_t mesh, std::int32_t stage) const;
  /// The stages whose places a mesh has, ascending.
  std::vector<std::int32_t> stages_on(std::int32_t mesh) const;
  /// True for a part of a unit that all stages share (Graph::shared_unit).
  bool shared(const PlanActor& actor) const;
  /// dp coordinate of a rank within its stage; dp width of a stage. REQUIRES: the rank is on a stage.
  std::int64_t dp_index(Rank rank) const;
  std::int64_t dp_width(std::int32_t stage) const { return meshes[stage].axis_size("dp"); }
  /// Whether a rank has coordinate 0 on each axis but dp: of the places that run a microbatch of a stage, the place
  /// whose reports count where all make them. REQUIRES: the rank is on a stage.
  bool leads(Rank rank) const;
  /// Which dp coordinates of a stage run which microbatches of a program. Valid while this plan is.
  MicrobatchOwners owners_of(std::int32_t program, std::int32_t stage) const {
    return {program_specs[program], dp_width(stage),
            is_step_program(program) && !owners.empty() ? &owners[stage] : nullptr};
  }
  /// That of the stage whose dp coordinates make up an exchange's rounds: where a gather ends, where a reduction
  /// begins. Of several stages, which then are equally wide, the first.
  MicrobatchOwners owners_of(const PlanExchange& exchange) const;
  /// Whether passes begin in pass_order: the plan trains, the pipeline has an order, the stages have one dp width and
  /// share no unit. Else slots and priorities decide: published orders cover no such pipeline.
  bool ordered() const;
  /// True for a gradient as ops make it: a term of the sum over dp.
  bool unreduced(const PlanTensor& t) const {
    return t.gradient_of >= 0 && t.sbp[dp_axis(meshes[t.mesh])].is_partial();
  }
  /// True where an exchange adds up gradients; false where it only moves data.
  bool reduces(const PlanExchange& exchange) const { return unreduced(tensors[exchange.moves[0].from]); }
  /// The layout of a tensor; for microbatch rate on the sub-mesh of the one dp coordinate that runs it.
  Layout layout(std::int32_t tensor, std::int64_t dp_index) const;
  /// The part of a tensor that `rank` has. REQUIRES: the tensor's mesh has the rank.
  Extent extent(std::int32_t tensor, Rank rank) const;
};

/// Error: owners (CompileOptions::owners) that do not fit the plan's stages and microbatches, or leave a dp coordinate
/// without a microbatch.
Status check_owners(const std::vector<std::vector<std::int32_t>>& owners, const Plan& plan);

}  // namespace troupe::runtime
