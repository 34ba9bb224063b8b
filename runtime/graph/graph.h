// Graph: what a user writes. Logical ops and tensors, user-defined actors, programs that share parameters.
//
//   Graph g(ops);
//   g.program("train", {.microbatches = 8, .samples = 2});
//   g.unit("mlp.0");
//   Value x = g.actor("data", "input", {}, {{"x", {DType::f32, {2, 64}}}})[0];
//   Value w = g.param("w", {32, 64}, Init::normal(0.02f));
//   Value y = g.op("linear", {x, w})[0];
//
// A parameter may be made anew in each step by ops instead of by AdamW: a state tensor (an average, a momentum), or a
// parameter with an optimizer of the application's own. Its next version is a value of the ops that gradient(),
// updated(), learning_rate(), update_number() and parameters feed:
//
//   Value m = g.param("w.momentum", {32, 64}, Init::constant(0));
//   Value next_m = g.op("weighted_sum", {m, g.gradient(w)}, {{"a", 0.9}, {"b", 1.0}})[0];
//   g.next(m, next_m);
//   g.next(w, g.op("weighted_sum", {w, g.op("scale", {next_m, g.learning_rate()})[0]}, {{"b", -1.0}})[0]);
//
// Shapes are those of one microbatch. The compiler decides which places run what: it cuts units into stages; SBP
// hints on values are optional. The graph keeps its first error, which `status()` returns, and ignores later calls; a
// Value that it returns after an error means nothing. Every call that adds a node but param() needs a program, and
// inputs that are values of this graph: anything else is an error. So is a tensor with a negative dim, or of more than
// tensor_bytes_max bytes; dims may be 0, but not those of a parameter.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/op.h"
#include "kernels/optimizer.h"

namespace troupe::runtime {

using kernels::Attrs;
using kernels::TensorType;
using kernels::Value;

/// How often a tensor is made: once per microbatch, or once per step (parameters, their gradients). A compiled plan
/// has a third rate: once per round, which is one microbatch of each dp coordinate of a stage.
enum class Rate : std::uint8_t { microbatch, step, round };

/// Initial values of a parameter: all equal, or normal with mean 0.
struct Init {
  enum class Kind : std::uint8_t { constant, normal };
  Kind kind = Kind::constant;
  float value = 0;  ///< the constant, or the standard deviation
  static Init normal(float std) { return {Kind::normal, std}; }
  static Init constant(float v) { return {Kind::constant, v}; }
};

/// Of a step of a program: the plan has tables with an entry for each.
inline constexpr std::int64_t microbatches_max = 1 << 20;
/// Rows (indices of dim 0) of a parameter that is trained: its norm is added along a tree of so many leaves
/// (placement/tree.h).
inline constexpr std::int64_t gradient_rows_max = std::numeric_limits<std::int32_t>::max();
/// Of one tensor: far above any memory, and so low that no sum or product of a few sizes overflows.
inline constexpr std::int64_t tensor_bytes_max = std::int64_t{1} << 46;

struct ProgramSpec {
  /// passes through the graph in a step, each by one dp coordinate of a stage, of the whole job; at most
  /// microbatches_max
  std::int64_t microbatches = 1;
  /// rows of dim 0 per microbatch: random numbers and UserActor's samples are numbered by them
  std::int64_t samples = 1;
  /// microbatches run in index order on every mesh; feeds and `stateful` set it
  bool sequential = false;
  /// Ops may keep state (OpDef::state_bytes): all microbatches run at dp coordinate 0 of every stage.
  bool stateful = false;
  bool operator==(const ProgramSpec&) const = default;
};

/// An output port of a user-defined actor.
struct PortType {
  std::string name;
  TensorType type;
  /// One per axis of its stage's mesh; none: B everywhere. A split is along a dim of `type`, in units of 1 or more.
  std::optional<NdSbp> sbp;
};

struct Tensor {
  std::string name;
  TensorType type;
  Rate rate = Rate::microbatch;
  std::int32_t node = -1;  ///< producer; -1: an update makes it
  std::optional<NdSbp> hint;
  bool required = false;                  ///< the hint is more than one: Graph::require
  Value gradient_of = kernels::no_value;  ///< the value of which this is the gradient, or a term of it
  std::int32_t update_node = -1;          ///< index into Graph::update_nodes, of what an update makes
};

struct Node {
  enum class Kind : std::uint8_t { op, actor, feed, param, report, delay, feed_back };
  Kind kind = Kind::op;
  std::string op;    ///< op name, actor kind, name of a report, feed or delay
  std::string name;  ///< logical, unique
  Attrs attrs;
  std::vector<Value> in, out;
  std::vector<std::optional<NdSbp>> in_sbp;  ///< actors: the layout in which each input is read; none: B
  std::int32_t unit = 0;
  std::int32_t program = 0;
  bool backward = false;
  std::int32_t of = -1;  ///< backward: the forward node whose gradient this is part of
  Init init;             ///< parameters
  bool decay = true;     ///< parameters: weight decay applies
  bool kept = false;     ///< parameters: what a step_delay keeps; dim 0 is the microbatch
  /// Whether it is an end of a step_delay: delay, which reads a parameter, or feed_back, which makes what it keeps.
  bool over_steps() const { return (kind == Kind::delay && !in.empty()) || (kind == Kind::feed_back && !out.empty()); }
};

/// Whether the attribute "reports" of an actor lists `name`: see Graph::actor.
bool lists_report(const Attrs& attrs, const std::string& name);

/// A value that the update of a step has, or makes: see Graph::next.
struct UpdateNode {
  enum class Kind : std::uint8_t { op, gradient, updated, learning_rate, number, handed, kept };
  Kind kind = Kind::op;
  std::string op, name;
  Attrs attrs;
  std::vector<Value> in, out;  ///< `in` of gradient, updated and handed: the parameter; of kept: what feed_back makes
  std::int32_t program = 0;
};

/// What makes the next version of a parameter.
struct NextVersion {
  Value param = kernels::no_value, value = kernels::no_value;
  std::int32_t program = 0;
};

/// The gradient of one parameter: one value per use, in graph order.
struct ParamGrad {
  Value param = kernels::no_value;
  std::int32_t program = 0;  ///< that trains it
  std::vector<Value> uses;
};

class Graph {
 public:
  /// REQUIRES: `ops` outlives this object.
  explicit Graph(const kernels::OpSet& ops) : ops_(&ops) {}
  explicit Graph(const kernels::OpSet&&) = delete;

  /// Following nodes belong to this program. Returns its index, from 0. Error: no microbatch, a name that is taken,
  /// more than 31 programs.
  std::int32_t program(const std::string& name, ProgramSpec spec);
  /// Following units belong to this model: what CompileOptions::models gives a chain of stages of its own. Reuses a
  /// known name. Nodes behind it belong to a unit that has the model's name, until one is named. Units and nodes before
  /// the first model belong to it, and the unit that they are in goes on; a graph that names none has one, "main".
  std::int32_t model(const std::string& name);
  /// Following nodes belong to this unit (layer): what pipeline stages are made of. Reuses a known name. Nodes before
  /// the first unit belong to it; a graph that names none has one, "main". The order in which units are named means
  /// nothing. `kind`: what it has in common with units that do the same ("layers.*"), for people who read a plan.
  /// Error: a unit of another model.
  std::int32_t unit(const std::string& name, const std::string& kind = {});
  /// The same for a unit that all pipeline stages work on together, each with its part of the parameters (Yeung et
  /// al., 2024: vocabulary parallelism). It begins and ends on the stage of the units around it. Its stages are an axis
  /// that divides the model, as tp does: for bits it is (NU-3 model axes).
  std::int32_t shared_unit(const std::string& name);

  /// A parameter, f32; the same name gives the same value (tying, sharing between programs). Error: another shape than
  /// before; the name of an actor or op.
  Value param(const std::string& name, const Shape& shape, Init init, bool decay = true);
  /// One op; returns its outputs. Inputs are values of this program or parameters. Error: an op that is not registered,
  /// inputs that it does not take, state in a program that is not stateful.
  std::vector<Value> op(const std::string& op, const std::vector<Value>& in, Attrs attrs = {}, std::string name = {});
  /// A user-defined actor of `kind`; returns its output values. Without inputs it is a source. No gradient passes
  /// through it: parameters upstream are trained only by other ways to the loss. The attribute "reports" names what the
  /// actor's body reports by itself (UserCall::report) where a feed waits for it; several names: "token,score".
  /// The attribute "finishes" (1) says that the actor ends the run (UserCall::finish): one of several, or of several
  /// places, ends it together with the others. The attribute "waits" (1) says that its acts may wait for the outside, a
  /// socket say: it has a thread of its own, so that it is in no other actor's way, and while it waits, and all steps
  /// before are over, the place counts as one that makes progress. Where actors end the run, it is one of them. (A
  /// simulation, where all actors share one thread, refuses it.)
  /// Of a parameter it reads, in each microbatch, the version of the step, whole along dp whatever the ZeRO stage.
  /// `in_sbp`: the layouts in which the actor reads its inputs, as PortType::sbp; for inputs without an entry: B.
  /// Nothing boxes a parameter for it: other readers have it in the same layout, or the graph does not compile.
  /// Error: a layout that splits what its tensor does not have; more entries in `in_sbp` than inputs; one of these
  /// attributes with another value than 0 or 1; "finishes" in a program that does not run once a step; "waits" of an
  /// actor that does not finish, where others do.
  std::vector<Value> actor(const std::string& kind, const std::string& name, const std::vector<Value>& in,
                           const std::vector<PortType>& out, Attrs attrs = {},
                           std::vector<std::optional<NdSbp>> in_sbp = {});
  /// Sends the values of a small tensor to the session, once per microbatch. Error: a parameter.
  void report(const std::string& name, Value v);
  /// The layout that a value should have on its stage's mesh, an Sbp per axis (of stage_meshes: the model axes, then
  /// dp, whose entry means nothing): of an op's output weighed against the cost of its boxings, not forced; of a
  /// parameter required of each op that reads it.
  /// Error: an output of an actor (see PortType::sbp), a feed; a layout that splits what the value does not have; P of
  /// a parameter.
  void hint(Value v, NdSbp sbp);
  /// As hint(), but required: of the op's SBP table no row is taken that leaves the value otherwise. compile() refuses
  /// where none is left, with all that there are, or none that fits the parameters as other ops read them. Errors as
  /// of hint().
  void require(Value v, NdSbp sbp);
  /// A value that the session sends, once per microbatch (a token, a command). `after` names a report of the
  /// same program (report(), or an actor's attribute "reports"): the session sends microbatch m + 1 when microbatch m
  /// has reported it; the first `at_once` microbatches (a prompt) wait for no report. Where the actor runs at several
  /// places of a mesh, the report of the place with coordinate 0 on each axis but dp counts (Plan::leads). Empty: none
  /// waits. A place has at most feed_window microbatches of a feed that its actors have not taken yet. Error:
  /// `at_once` < 1, a name twice; in compile(): a report that no actor or op makes, or more than one.
  Value feed(const std::string& name, TensorType type, const std::string& after = {}, std::int64_t at_once = 1);
  /// A value that microbatch m has of microbatch m - lag of the same step of its program: what feed_back() is given.
  /// Zeros in the first `lag` microbatches of each step. A cycle through a delay is none: recurrence, a token that is
  /// drawn and read (a delay of synchronous dataflow: Lee and Messerschmitt, 1987). It goes from place to place, past
  /// the session; no step begins with what another has left. Error: a program that is not stateful (a microbatch of
  /// another would read what another dp coordinate has made), a lag below 1, a name twice, ops without "delay"; in
  /// compile(): one that is never fed back; in a shared unit.
  Value delay(const std::string& name, TensorType type, std::int64_t lag = 1);
  /// A value that microbatch m of step s has of microbatch m of step s - lag: what feed_back() is given. Zeros in the
  /// first `lag` steps of a run from the beginning. So what makes the value may work on a step while what reads it
  /// still works on the one before: actors that play while a learner learns (Impala: Espeholt et al., 2018). It is kept
  /// as parameter NAME, of shape (microbatches, ...), whole along model axes: saved, restored on any mesh and recovered
  /// with the version that the step makes; with a lag above 1 the steps between are parameters NAME.lag1 and on. A run
  /// that goes on has the same number of microbatches. A void step is fed back, too. No gradient passes through it. It
  /// may have any values. Error: a program that is stateful, or does not train; a type that no parameter can have; a
  /// lag below 1 or above 1000; a name that the graph has; in compile(): one that is never fed back, or in a shared
  /// unit; where its stage has more than one dp coordinate: with CompileOptions::owners, in a program with a feed,
  /// beside one on a stage of another width.
  Value step_delay(const std::string& name, TensorType type, std::int64_t lag = 1);
  /// The same of a value that is there already: feeds it back, too.
  Value step_delay(const std::string& name, Value value, std::int64_t lag = 1);
  /// What the delay gives `lag` microbatches, or steps, later. Once for each. Error: no delay() or step_delay(), one of
  /// another program; a value of another type, a parameter.
  void feed_back(Value delay, Value value);

  /// Backward by graph rewriting, from a loss op's output; fills grads(). Once for a program: it trains then, with an
  /// optimizer of its own. Programs that train take their steps together: step s of each reads version s of all
  /// parameters, and all updates make version s + 1. `trained`: the parameters that this loss trains; none: all that it
  /// depends on. A parameter is trained by one program at most. The loss is reported to the session, which sums it over
  /// the step. Error: an op that is no loss or has no gradient, a program that is stateful, a loss that depends on no
  /// parameter, or on one with more than gradient_rows_max rows; in `trained`, a value that is no parameter or on which
  /// the loss does not depend; a parameter that another program trains.
  void minimize(Value loss, kernels::AdamW hyper, const std::vector<Value>& trained = {});

  /// Version v + 1 of a parameter is `value`, which ops make of version v of parameters, of the gradients of step v,
  /// and of what the calls below return: op() of such values only is an op of the update, once a step, behind the
  /// commit; a void step of the program keeps version v. AdamW leaves the parameter alone, be it trained or not. It is
  /// saved, restored, divided and healed as other parameters are; it has no moments. Parameters that one of these ops
  /// joins are updated together: they lie on the same stages; along model axes they lie as microbatches read them, and
  /// those that no op of a microbatch reads as the ops of the update ask. Where each of these ops keeps rows (indices
  /// of dim 0) apart, ZeRO divides them as it divides what AdamW updates; else each dp coordinate has them whole and
  /// makes the same update. Error: no parameter; a value that no op of an update makes, or of another shape or program;
  /// a parameter twice. In compile(): a program that does not train; layouts that none of an op's rows has.
  void next(Value param, Value value);
  /// The gradient of the step of a parameter that this program trains, f32, clipped: what AdamW would have. Error: no
  /// parameter; in compile(): one that the program does not train.
  Value gradient(Value param);
  /// The parameter's next version: what AdamW makes of it, or the value that next() is given. In compile(): an error
  /// where nothing trains or makes it, or where that value is made of this one.
  Value updated(Value param);
  /// Hands a parameter over to another one of its shape, wherever and however that lies: on other stages, of another
  /// model, divided along other axes. Version v of `to` is version v - lag of `from`, so that a reader of `to` depends
  /// on no timing; before there is one, what `to` was initialised with. It is a next() of `to`, of the current program;
  /// a lag above 1 keeps the versions between as parameters, TO.lag1 and on. The boxing begins with the step, beside
  /// its passes. A void step hands over, too. Error: as of next(); a lag below 1 (ops that read `from` itself have lag
  /// 0) or above 1000; a parameter that is called TO.lag1.
  void hand_over(Value from, Value to, std::int64_t lag = 1);
  /// AdamW::lr as the schedule has it in this step (SessionOptions::lr), f32 (1).
  Value learning_rate();
  /// The number of the update of this program, from 1, f32 (1). A void step is none.
  Value update_number();

  /// Fails the graph, as its calls do: for functions that add several nodes. The first error stays.
  void fail(const std::string& message);
  const Status& status() const { return status_; }
  const kernels::OpSet& ops() const { return *ops_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& units() const;
  /// The kind of a unit; its name where none was said.
  const std::string& unit_kind(std::int32_t unit) const;
  const std::vector<std::string>& models() const;
  /// The model that a unit belongs to, as an index into models().
  std::int32_t model_of(std::int32_t unit) const;
  bool is_shared(std::int32_t unit) const { return shared_units_.count(unit) != 0; }
  const std::vector<std::string>& programs() const { return programs_; }
  const std::vector<ProgramSpec>& program_specs() const { return program_specs_; }
  /// Whether a program runs once a step: those that minimize() is in; where no program minimizes, the first.
  bool is_step_program(std::int32_t program) const { return trains() ? trains(program) : program == 0; }
  const std::vector<ParamGrad>& grads() const { return grads_; }
  const std::vector<UpdateNode>& update_nodes() const { return update_nodes_; }
  const std::vector<NextVersion>& next_versions() const { return next_versions_; }
  /// REQUIRES: the program trains.
  const kernels::AdamW& hyper(std::int32_t program) const { return hyper_.at(program); }
  bool trains() const { return !hyper_.empty(); }
  bool trains(std::int32_t program) const { return hyper_.count(program) != 0; }
  /// REQUIRES: a value of this graph.
  bool is_param(Value v) const { return tensors_[v].node >= 0 && nodes_[tensors_[v].node].kind == Node::Kind::param; }

 private:
  friend class Differentiator;
  Value add_tensor(std::string name, TensorType type, Rate rate, std::int32_t node);
  Value add_param(const std::string& name, TensorType type, Init init, bool decay, bool kept = false);
  /// `to` becomes what `value`, a value of the update, was `lag` - 1 steps before: parameters TO.lag1 and on keep those
  /// between. `caller` begins messages.
  void keep_versions(const std::string& caller, Value value, Value to, std::int64_t lag);
  std::string unique(std::string name);
  /// The unit that a new node belongs to.
  std::int32_t current_unit();
  /// Fails if a value that `caller` reads is none of this graph, or, unless it is an `update`, one that an update
  /// makes. Returns whether all are.
  bool check_values(const std::string& caller, const std::vector<Value>& in, bool update = false);
  /// What each call that adds a node of a program begins with. False where there has been an error, or where this call
  /// is one: before the first program, or with a value that is none of this graph.
  bool may_add(const std::string& caller, const std::vector<Value>& in, bool update = false);
  /// Whether all are parameters, or values of an update.
  bool are_of_update(const std::vector<Value>& in) const;
  /// gradient(), updated(), learning_rate(), update_number().
  Value update_value(UpdateNode::Kind kind, const std::string& call, const std::vector<Value>& of);
  /// Fails if no tensor can have this type, or one of its dims is below `least`. `what` begins the message.
  bool check_type(const std::string& what, const TensorType& type, std::int64_t least = 0);
  /// hint() and require(), by the name of the `caller`.
  void set_layout(const std::string& caller, Value v, NdSbp sbp, bool required);
  /// Fails if `sbp` splits a dim that a tensor of this type does not have, or in a unit below 1. `port` begins the
  /// message.
  bool check_hint(const std::string& port, const NdSbp& sbp, const TensorType& type);
  /// The layouts that an actor's ports ask for.
  bool check_ports(const std::string& actor, const std::vector<Value>& in, const std::vector<PortType>& out,
                   const std::vector<std::optional<NdSbp>>& in_sbp);
  /// Programs share parameters only: fails if `reader` reads a value of another program.
  bool check_program(const std::string& reader, const std::vector<Value>& in);

  const kernels::OpSet* ops_;
  Status status_;
  std::vector<Node> nodes_;
  std::vector<Tensor> tensors_;
  std::vector<std::string> units_, programs_, models_;
  std::vector<ProgramSpec> program_specs_;
  std::vector<ParamGrad> grads_;
  std::vector<UpdateNode> update_nodes_;
  std::vector<NextVersion> next_versions_;
  std::set<std::string> names_;
  std::set<std::int32_t> shared_units_;
  std::map<std::int32_t, std::string> unit_kinds_;
  std::map<std::int32_t, kernels::AdamW> hyper_;  // by program: of those that train
  std::vector<std::int32_t> unit_models_;         // by unit
  std::int32_t unit_ = 0, program_ = 0, model_ = 0;
  bool needs_unit_ = false;  // a model has been named, and no unit of it since
  bool backward_ = false;
  std::int32_t of_ = -1;
};

}  // namespace troupe::runtime
