// Deduction of layouts along the model axes of a mesh: which row of its SBP table each forward op takes.
//
// A model axis (tp) is there to divide the model. So of all layouts those come first that leave the fewest
// bytes of parameters on a place (whole heads that do not divide evenly are no loss), and of these the one that costs least time: computing, and the boxings of the
// forward pass and of its mirror image, the backward pass. On a transformer this finds Megatron's layout
// (Shoeybi et al., 2019: column, row, column, row) with sequence-sharded norms between (Korthikanti et al.,
// 2022) without being told. The search is a dynamic program over the ops in order; a state is how the values lie
// that are still to be read. OneFlow (Yuan et al., 2021) decides op by op instead.
//
// dp is no axis of deduction: see docs/decisions/0004.
#pragma once

#include <functional>

#include "runtime/compile/compile.h"

namespace troupe::runtime {

/// What a layout costs.
struct LayoutCost {
  double param_bytes = 0;              ///< of a place that has an even part of what is divided
  double seconds = 0;                  ///< of one microbatch, forward and backward; without overlap
  bool operator<(const LayoutCost& o) const {
    return param_bytes != o.param_bytes ? param_bytes < o.param_bytes : seconds < o.seconds;
  }
};

struct Deduction {
  /// By node of the graph, then by mesh axis; empty for backward nodes and for what is no op.
  std::vector<std::vector<kernels::Signature>> signatures;
  LayoutCost cost;                     ///< of the first program, all model axes together
  std::int64_t searched = 0;           ///< ops of which every row was tried, axis by axis; layers that repeat others are not
};

/// Whether a forward op (by node) may take a row of its table on a mesh axis (by index): restricts a search, which
/// then is of the first program only.
using Allowed = std::function<bool(std::int32_t node, std::size_t axis, const kernels::Signature& row)>;

/// `plan` has meshes, costs and programs. Error: hints and signatures that no layout satisfies, by name.
Expected<Deduction> deduce(const Graph& graph, const std::vector<UnitPlace>& units, const Plan& plan,
                           const Allowed& allowed = nullptr);

/// An op's SBP table with the row that is always legal: everything whole.
std::vector<kernels::Signature> op_rows(const Graph& graph, const Node& node);

/// The rows of an op's table that a model axis may take. Samples (dim 0 of what is made per microbatch) are what dp
/// divides: a model axis that divided them as well would only be another dp.
std::vector<kernels::Signature> model_rows(const Graph& graph, const Node& node);

/// Which row of the table an input's gradient takes: how it lies when the op's backward pass makes it.
Sbp gradient_lies(const kernels::Signature& signature, std::size_t input);

}  // namespace troupe::runtime
