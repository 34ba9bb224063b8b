// The search of deduce() along one model axis of one program: a dynamic program over the forward ops in order. A state
// has the layouts of the values that later ops read, and the cost so far.
//
// Layers repeat: where a block of ops (the ops of one unit) does what the block before it does, and the states after
// both differ only by the layer's number and a constant cost, the alike blocks that follow need no search: they take
// the rows of the last block that was searched (axis_repeat.cpp).
#pragma once

#include <map>
#include <memory>

#include "runtime/compile/deduce.h"
#include "runtime/compile/lowering.h"

namespace troupe::runtime {

class AxisSearch {
 public:
  /// `params`: layouts of the parameters that earlier programs read; run() adds those that this program reads.
  /// REQUIRES: all arguments outlive this object.
  AxisSearch(const Graph& g, const Staged& staged, std::size_t axis, std::int32_t program, std::map<Value, Sbp>& params,
             const Allowed& allowed)
      : g_(g), units_(staged.units), plan_(staged.plan), costs_(staged.layout_costs), axis_(axis), program_(program),
        params_(params), allowed_(allowed) {}

  /// Fills signatures[node][axis]; reads those of the axes before. Returns the cost. Error: an op that no row fits, by
  /// name. REQUIRES: called once.
  Expected<LayoutCost> run(std::vector<std::vector<kernels::Signature>>& signatures);
  /// Ops of which every row was tried: all except those of layers that repeat others.
  std::int64_t searched() const { return searched_; }

 private:
  using Signature = kernels::Signature;

  /// The layout of a value, and the boxings that the cost has already: copies of it with other layouts, and layouts of
  /// its gradient (parts of one layout are added first).
  struct LiveLayout {
    Sbp sbp;
    std::vector<Sbp> copies, paid;  // sorted
    bool operator==(const LiveLayout&) const = default;
  };
  struct RepeatedBlocks;
  struct State {
    std::map<Value, LiveLayout> live;
    std::map<Value, Sbp> params;  // of parameters that later ops read again
    LayoutCost cost;
    std::shared_ptr<const State> before;
    std::size_t op = 0;  // its row is this step's
    Signature signature;
    // Not null: stands for the blocks that repeat a block, not for an op.
    std::shared_ptr<const RepeatedBlocks> repeated;
  };
  using StatePtr = std::shared_ptr<const State>;
  /// Over `blocks` blocks that repeat the block before them.
  struct RepeatedBlocks {
    std::size_t block = 0, blocks = 0;  // the block that they repeat
    // A state after the block before it -> the same one block on.
    std::map<const State*, StatePtr> same_one_block_on;
  };
  using Key = std::vector<std::int64_t>;  // what the rest of a search depends on

  static Key params_of(const State& s);
  static Key key_of(const State& s);

  // axis_search.cpp
  const Node& node(std::size_t op) const { return g_.nodes()[ops_[op]]; }
  /// The least common multiple of the meshes' places along the axis. Bytes of parameters are counted times this: whole
  /// numbers.
  double multiple() const;
  std::int64_t places(const Node& n) const { return plan_.meshes[units_[n.unit].mesh].axes[axis_].size; }
  std::string axis_name(const Node& n) const { return plan_.meshes[units_[n.unit].mesh].axes[axis_].name; }
  void find_ops();
  std::vector<Signature> rows(const Node& n, std::int32_t index) const;
  bool as_required(const Node& n, const Signature& row) const;
  std::string why_not_required(const Node& n) const;
  Status search(std::size_t op, std::vector<StatePtr>& states) const;
  StatePtr step(const StatePtr& s, std::size_t op, const Signature& sig) const;
  double work_s(std::size_t op, double split) const;
  template <class SbpOf>
  TensorType part(const Node& n, Value v, std::int32_t index, SbpOf sbp_of) const;
  bool may_box(Value v, const Sbp& have, const Node& n, std::int32_t index, std::size_t input, const Sbp& wanted) const;
  bool is_one_unit_left(const Node& reader, const TensorType& type, std::size_t input) const;
  bool read_param(State& s, const Node& reader, const TensorType& type, const Signature& sig, std::size_t input,
                  std::int64_t n) const;
  void choose(std::size_t op, const Signature& sig, std::vector<std::vector<Signature>>& signatures);

  // axis_repeat.cpp
  std::size_t block_size(std::size_t b) const { return blocks_[b + 1] - blocks_[b]; }
  /// Whether block b does what block b - 1 does, one block on.
  bool alike(std::size_t b) const;
  bool alike_ops(std::size_t then, std::size_t now, std::size_t end) const;
  bool alike_inputs(Value then, Value now, std::size_t then_op, std::size_t now_op, std::size_t end) const;
  /// The layouts `blocks` blocks on: values that block b made become those of block b + blocks.
  std::map<Value, LiveLayout> later(const std::map<Value, LiveLayout>& live, std::size_t b, std::size_t blocks) const;
  /// Whether the states after block b are those after block b - 1, one block on, at a constant cost more.
  bool repeats(const std::vector<StatePtr>& then, const std::vector<StatePtr>& now, std::size_t b) const;
  /// Returns the states after block b + `blocks` without a search. `then`, `now`: the states after blocks b - 1 and b.
  /// REQUIRES: repeats(then, now, b), and alike() of each block from b + 1 to b + `blocks`.
  std::vector<StatePtr> skip_repeated(const std::vector<StatePtr>& then, const std::vector<StatePtr>& now,
                                      std::size_t b, std::size_t blocks) const;
  /// Chooses the rows of the blocks that were skipped. Returns the state after the block that they repeat.
  StatePtr choose_repeated(const State& s, std::vector<std::vector<Signature>>& signatures);

  const Graph& g_;
  const std::vector<UnitPlace>& units_;
  const Plan& plan_;
  const CostModel& costs_;
  std::size_t axis_;
  std::int32_t program_;
  std::map<Value, Sbp>& params_;
  const Allowed& allowed_;
  const std::vector<std::vector<Signature>>* earlier_ = nullptr;  // rows taken on the axes before this one
  // Ops are numbered in the order of the program's forward nodes; parameters are none.
  std::vector<std::int32_t> ops_;                                 // nodes
  std::vector<std::vector<Signature>> tables_;                    // by op: rows that it may take
  std::vector<std::size_t> blocks_;                               // first op of each, and the end
  std::vector<std::int64_t> maker_, first_reader_, last_reader_;  // by value: op, -1: none
  std::vector<bool> needs_grad_;
  std::int64_t searched_ = 0;
  mutable std::map<std::pair<std::size_t, double>, double> work_s_;            // by op and part
  mutable std::map<std::pair<const Node*, std::size_t>, bool> one_unit_left_;  // by reader and input
};

}  // namespace troupe::runtime
