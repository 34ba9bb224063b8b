// BackwardRows: which row of its SBP table a backward op takes along each model axis. Its arguments have the layouts of
// the forward pass, so it takes a row that mirrors the forward op's row and, of these, the row that costs least time:
// that of bringing its arguments, and that of bringing the gradient that it makes to where the search has charged for.
#pragma once

#include <limits>

#include "runtime/compile/deduce.h"
#include "runtime/compile/lowering.h"

namespace troupe::runtime {

class BackwardRows {
 public:
  /// REQUIRES: all arguments outlive this object.
  BackwardRows(const Graph& g, const Staged& staged, const Deduction& deduced, const TensorLayouts& layouts);

  /// Returns a row of `table` for each mesh axis of the op, null for dp and for axes of one place. REQUIRES: `table`
  /// outlives the result. Error: an axis for which no row fits, or axes whose rows do not go together; names the op.
  Expected<std::vector<const kernels::Signature*>> choose(const Node& n,
                                                          const std::vector<kernels::Signature>& table) const;

 private:
  /// One row on one axis, and what it costs.
  struct Candidate {
    const kernels::Signature* row;
    double seconds;
    int boxings;
  };
  /// Rows that can be had together.
  struct Choice {
    std::vector<const kernels::Signature*> rows;  // by axis
    double seconds = std::numeric_limits<double>::infinity();
    int boxings = 0;
  };

  std::int32_t home_mesh(const Node& n) const { return units_[n.unit].mesh; }
  const Mesh& mesh(std::int32_t id) const { return plan_.meshes[id]; }
  bool alike(std::int32_t mesh_a, std::int32_t mesh_b, std::size_t axis) const;
  Shape part_before(const PlanTensor& t, std::size_t axis) const;
  bool there(Value v, std::int32_t on, std::size_t axis, const Sbp& wanted) const;
  double argument_s(Value v, std::int32_t on, std::size_t axis, const Sbp& wanted) const;
  bool has_term(Value v, const Node& n, std::size_t axis, const Sbp& made) const;
  double gradient_s(const Node& n, Value gradient, std::size_t axis, const Sbp& made) const;
  bool mirrors(const Node& n, const kernels::Signature& sig, std::size_t axis) const;
  std::vector<Candidate> candidates(const Node& n, const std::vector<kernels::Signature>& table,
                                    std::size_t axis) const;
  bool may_box(const Node& n, const std::vector<NdSbp>& in, std::size_t axes) const;
  /// Extends `now` by one axis and on; keeps the best whole choice.
  void extend(const Node& n, const std::vector<std::vector<Candidate>>& by_axis, std::vector<NdSbp>& in, Choice& now,
              Choice& best) const;

  const Graph& g_;
  const std::vector<UnitPlace>& units_;
  const Plan& plan_;
  const CostModel& costs_;
  const Deduction& deduced_;
  const TensorLayouts& layouts_;
  /// By value: the forward ops of the programs of a step that read it, and as which input.
  std::vector<std::vector<std::pair<std::int32_t, std::size_t>>> readers_;
};

}  // namespace troupe::runtime
