// Plan: the one artifact between a graph and a running job. It describes equal places once, as a role; a worker
// instantiates its own part from its rank.
//
// Plain values, comparable; written and read as Cap'n Proto (plan_io.h). Shown by plan_text.h, checked by
// verify.h, timed by token_game.h, run by worker.h.
#pragma once

#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "placement/collective.h"
#include "placement/cost.h"
#include "runtime/graph/graph.h"
#include "runtime/plan/microbatch_owners.h"
#include "runtime/plan/pipeline_schedule.h"
#include "runtime/plan/plan_actor.h"
#include "runtime/plan/plan_channel.h"

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
  std::int32_t program = -1;  ///< that trains it; -1: none does
  /// most terms that all microbatches of a step add to one element of its gradient
  std::int64_t terms = 1;
  /// ZeRO: the tensor that says which part a place updates; -1: all that it has
  std::int32_t share = -1;
  /// between uses a place keeps its share only: ZeRO 3; and with ZeRO 1 and 2 what only updates read
  bool stored_as_share = false;
  bool by_ops = false;  ///< its next version is made by ops of the update (Graph::next): it has no moments
  /// What a Graph::step_delay keeps, a row for each microbatch: of any type, at first 0, and no value ruins a run.
  bool kept = false;
  /// Whether AdamW makes its next version.
  bool has_moments() const { return program >= 0 && !by_ops; }
  /// The tensor that lies in the parameter slots.
  std::int32_t stored() const { return stored_as_share ? share : tensor; }
  bool operator==(const PlanParam&) const = default;
};

/// A program, and what a run does with it.
struct PlanProgram {
  std::string name;
  ProgramSpec spec;
  /// It runs once a step: those that train, all of them together; where none does, one. Others run on the versions that
  /// the session chooses.
  bool steps = false;
  std::optional<kernels::AdamW> optimizer;  ///< of one that trains
  /// In the order of its microbatches so many blocks take turns (MicrobatchOwners): the dp coordinates of the stages
  /// with a Graph::step_delay. 1: it is that of their numbers.
  std::int64_t blocks = 1;
  bool operator==(const PlanProgram&) const = default;
};

/// Position of the dp axis in a mesh, or -1.
inline int dp_axis(const Mesh& mesh) { return mesh.axis("dp"); }
/// Whether model axes divide the model here: places wait for each other's parts inside their passes.
inline bool has_model_axis(const Mesh& mesh) { return mesh.size() > mesh.axis_size("dp"); }

struct Plan {
  std::vector<PlanProgram> programs;
  std::uint64_t seed = 0;
  std::vector<Mesh> meshes;  ///< the first `stages` are the stages' own; then unions of stages
  std::int32_t stages = 1;
  Pipeline pipeline;
  /// Per stage: which dp coordinate runs each microbatch of a step. Empty: they take turns (MicrobatchOwners). Any
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
  /// Whether a program trains.
  bool trains() const;
  /// Whether a program runs once a step.
  bool is_step_program(std::int32_t program) const {
    return program >= 0 && program < std::ssize(programs) && programs[static_cast<std::size_t>(program)].steps;
  }
  /// The first program that runs once a step. Where several train they begin and close their steps together, and
  /// session and places speak of it for all of them. REQUIRES: there is one.
  std::int32_t step_program() const;
  const ProgramSpec& step_spec() const { return spec(step_program()); }
  const ProgramSpec& spec(std::int32_t program) const { return programs[static_cast<std::size_t>(program)].spec; }
  /// The program as which the session begins one: step_program() for all that run once a step, else itself.
  std::int32_t begun_as(std::int32_t program) const { return is_step_program(program) ? step_program() : program; }
  /// The programs that train, ascending.
  std::vector<std::int32_t> training() const;
  /// Whether one program runs once a step: schedules of passes, owners and shortened games are of one.
  bool has_one_step_program() const;
  /// Versions of the parameters that the arenas hold for checkpoints at the same time; 0: the plan takes no checkpoint.
  std::int32_t snapshot_slots() const;
  /// Whether updates leave the version before whole (CompileOptions::keeps_version).
  bool keeps_version() const;
  /// Whether places copy versions to memory that outlives their process (CompileOptions::keeps_copies).
  bool keeps_copies() const { return program("copy") >= 0; }
  /// Whether the state that a lost place had can lie whole elsewhere: a job of the plan can recover.
  bool recoverable() const { return keeps_version() || keeps_copies(); }
  /// Whether the places of a stage are among those of a mesh.
  bool on_mesh(std::int32_t mesh, std::int32_t stage) const;
  /// The stages whose places a mesh has, ascending.
  std::vector<std::int32_t> stages_on(std::int32_t mesh) const;
  /// True for a part of a unit that all stages share (Graph::shared_unit).
  bool shared(const PlanActor& actor) const;
  /// Whether a stage runs microbatches of a program. A stage that only keeps parameters has actors of step rate.
  bool runs_on(std::int32_t program, std::int32_t stage) const;
  /// dp coordinate of a rank within its stage; dp width of a stage. REQUIRES: the rank is on a stage.
  std::int64_t dp_index(Rank rank) const;
  std::int64_t dp_width(std::int32_t stage) const { return meshes[stage].axis_size("dp"); }
  /// Whether a rank has coordinate 0 on each axis but dp: of the places that run a microbatch of a stage, the place
  /// whose reports count where all make them. REQUIRES: the rank is on a stage.
  bool leads(Rank rank) const;
  /// Which dp coordinates of a stage run which microbatches of a program. Valid while this plan is.
  MicrobatchOwners owners_of(std::int32_t program, std::int32_t stage) const {
    const bool of_step = is_step_program(program);
    return {spec(program), dp_width(stage), of_step && !owners.empty() ? &owners[stage] : nullptr,
            programs[static_cast<std::size_t>(program)].blocks};
  }
  /// That of the stage whose dp coordinates make up an exchange's rounds: where a gather ends, where a reduction
  /// begins. Of several stages, which then are equally wide, the first.
  MicrobatchOwners owners_of(const PlanExchange& exchange) const;
  /// Whether passes begin in pass_order: one program trains, the pipeline has an order, the stages have one dp width
  /// and share no unit. Else slots and priorities decide: published orders cover no such pipeline.
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
