// Actor, as a plan says what it is: a segment, an exchange, an update, ...; its ops, its stream and the channels at its
// ports. How an actor waits and acts: actors/actor_core.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/graph/graph.h"
#include "runtime/plan/pipeline_schedule.h"

namespace troupe::runtime {

/// Where an op's argument lies. Of an update's op: see update_ops.h.
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
  enum class Kind : std::uint8_t { segment, user, exchange, norm, update, digest, snapshot, writer, copy };
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
  /// segments: the ops; user actors: one, with op = the actor's kind; updates: see update_ops.h, none: AdamW only
  std::vector<PlanOp> ops;
  std::int32_t exchange = -1;  ///< index into Plan::exchanges; of an update: it gathers what it has updated
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
  /// Of a user-defined actor: whether it ends the run, or waits for the outside (Graph::actor).
  bool finishes() const { return says("finishes"); }
  bool waits() const { return says("waits"); }
  bool operator==(const PlanActor&) const = default;

 private:
  bool says(const char* attribute) const {
    return kind == Kind::user && ops.size() == 1 && ops[0].attrs.integer(attribute) != 0;
  }
};
const char* to_string(PlanActor::Kind kind);

}  // namespace troupe::runtime
