// check_op: tries what an op promises (OpDef), for the tests of an application with ops of its own. As OneFlow's SBP
// signatures, a row is a claim about values that no compiler sees: a false one gives other numbers on other meshes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace troupe::kernels {

/// With what an op is tried: types and attributes. Real inputs are drawn from [-1, 1), integers from [low, high).
struct OpSample {
  std::vector<TensorType> in;
  Attrs attrs = {};
  std::int64_t low = 0, high = 2;
  std::uint32_t seed = 1;
  std::vector<int> constant_in = {};   ///< real inputs through which no gradient passes, such as targets
  std::vector<int> constant_out = {};  ///< outputs whose gradient the rule does not take, such as what it reads itself
  /// Writes the inputs that follow from others (name them in constant_in, too); empty: none do.
  std::function<void(std::span<const View> in)> prepare = {};
};

/// Tries the op on drawn inputs, on this thread. Small tensors are enough: the op is called some hundred times.
/// A dim that a row splits should have three units or more.
///
///   shape rule      it gives `outputs` types for the sample;
///   NU-0 (kernels)  the body writes all of its outputs, and nothing else, whatever lay there and in its scratch;
///   rows            what each row of its SBP table claims holds: parts on two and on three places give the bits of the
///                   whole where no input or output is partial, and its values within 1e-5 where one is;
///   gradient        the rule uses ops that there are, with inputs that they take, and gives each real input a gradient
///                   of its shape, within 2 % of the largest one of what finite differences say, or none, where that
///                   input does not move the outputs. Integer inputs, and constant_in, have none.
///
/// Error (`invalid`): the first promise that does not hold: the row or the input, the element, and both values.
Status check_op(const OpSet& ops, const std::string& name, const OpSample& sample);

}  // namespace troupe::kernels
