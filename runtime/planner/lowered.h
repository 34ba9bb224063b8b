// The graph between deduction and planning: every op knows its stage and the layouts of its arguments,
// every change of layout is a boxing node. Internal to the compiler: compile/ makes it, planner/ reads it.
#pragma once

#include <map>
#include <utility>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

struct LoweredNode {
  enum class Kind : std::uint8_t { op, actor, feed, report, boxing };
  Kind kind = Kind::op;
  std::string op, name;
  Attrs attrs;
  std::vector<std::int32_t> in, out;  ///< tensors of the plan
  std::int32_t mesh = 0;              ///< of the places that run it; boxing: where it ends
  std::int32_t virtual_stage = 0;
  std::int32_t unit = 0;
  std::int32_t program = 0;
  bool backward = false;
  std::int32_t delayed = -1;  ///< tensor of the program that it reads `lag` microbatches late; not among `in`
  std::int64_t lag = 0;
  /// An end of a delay (Graph::delay, Graph::step_delay). One that keeps what it is given for a later step is a segment
  /// of its own: nothing else of the step waits for what it reads.
  enum class End : std::uint8_t { none, of_delay, keeps };
  End end = End::none;
  Rate rate = Rate::microbatch;
};

/// A parameter as lowered: its tensor and the gradients of its uses.
struct LoweredParam {
  std::int32_t tensor = -1;
  std::int32_t unit = 0;
  std::vector<std::int32_t> stages;  ///< ascending
  std::vector<std::int32_t> grads;   ///< one tensor per use, in graph order
  std::int32_t update = -1;          ///< index into Lowered::updates; -1: no op of an update reads or makes it
};

/// A value that the ops of an update read: a tensor of the plan, or a parameter (index into Lowered::params).
struct UpdateValue {
  std::int32_t tensor = -1, param = -1;
  bool next = false;  ///< the parameter's next version, which AdamW makes
  bool operator==(const UpdateValue&) const = default;
};

struct LoweredUpdateNode {
  UpdateNode::Kind kind = UpdateNode::Kind::op;
  std::string op, name;
  Attrs attrs;
  std::int32_t param = -1;  ///< gradient, handed: of which parameter, as UpdateValue::param
  std::vector<UpdateValue> in;
  std::vector<std::int32_t> out;  ///< tensors of the plan; kept: what the microbatches have left
};

/// Parameters that the ops of an update join (Graph::next).
struct LoweredUpdate {
  std::int32_t unit = 0;
  std::vector<LoweredUpdateNode> nodes;                     ///< in order; none of kind updated
  std::vector<std::pair<std::int32_t, UpdateValue>> makes;  ///< parameters, and their next versions
  /// Its ops keep rows apart: places may have shares of its parameters. `row_sbp`: how its tensors lie along dp then.
  bool by_rows = false;
  std::map<std::int32_t, Sbp> row_sbp;
};

struct Lowered {
  std::vector<LoweredNode> nodes;
  std::vector<LoweredParam> params;
  std::vector<LoweredUpdate> updates;
  std::vector<std::int32_t> producer;  ///< per tensor: node, or -1 (parameter)
};

/// Cost of one op at the largest place of its stage.
kernels::OpCost op_cost(const kernels::OpDef& def, const std::vector<TensorType>& in,
                        const std::vector<TensorType>& out, const Attrs& attrs);

}  // namespace troupe::runtime
