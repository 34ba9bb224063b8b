// Deduction of layouts along the model axes of a mesh: which row of its SBP table each forward op takes.
//
// A model axis (tp) divides the model. So the search minimises first the bytes of parameters on a place (heads that do
// not divide evenly count as divided evenly), then time: computing, and the boxings of the forward pass and of its
// mirror image, the backward pass. On a transformer it finds Megatron's layout (Shoeybi et al., 2019: column, row,
// column, row) with sequence-sharded norms between (Korthikanti et al., 2022) without hints. The search is a dynamic
// program over the ops in order; a state has the layouts of the values that later ops read. OneFlow (Yuan et al., 2021)
// decides op by op instead.
//
// dp is no axis of deduction: see docs/decisions/0004.
#pragma once

#include <functional>

#include "runtime/compile/assign_units.h"

namespace troupe::runtime {

/// The cost of a layout: bytes of parameters first, then time.
struct LayoutCost {
  double param_bytes = 0;  ///< of a place, if all that is divided were divided evenly
  double seconds = 0;      ///< of one microbatch, forward and backward; without overlap
  bool operator<(const LayoutCost& o) const {
    return param_bytes != o.param_bytes ? param_bytes < o.param_bytes : seconds < o.seconds;
  }
};

struct Deduction {
  /// By node of the graph, then by mesh axis; empty for backward nodes and for nodes that are no ops.
  std::vector<std::vector<kernels::Signature>> signatures;
  LayoutCost cost;            ///< of the programs of a step, all model axes together
  std::int64_t searched = 0;  ///< AxisSearch::searched, added over programs and axes
};

/// Whether a forward op (by node) may take a row of its table on a mesh axis (by index): restricts a search, which
/// then is of the programs of a step only.
using Allowed = std::function<bool(std::int32_t node, std::size_t axis, const kernels::Signature& row)>;

/// Error: hints and signatures that no layout satisfies, by name.
Expected<Deduction> deduce(const Graph& graph, const Staged& staged, const Allowed& allowed = nullptr);

/// An op's SBP table, and the row that is always legal: B for every argument.
std::vector<kernels::Signature> op_rows(const Graph& graph, const Node& node);

/// The rows of an op's table that a model axis may take. Samples (dim 0 of what is made per microbatch) are what dp
/// divides: a model axis that divided them as well would only be another dp.
std::vector<kernels::Signature> model_rows(const Graph& graph, const Node& node);

/// The SBP with which the op's backward pass makes the gradient of an input, where the op takes the row `signature`.
Sbp gradient_sbp(const kernels::Signature& signature, std::size_t input);

}  // namespace troupe::runtime
