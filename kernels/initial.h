// Initial values of parameters: element e of a logical tensor is a pure function of (key, e), whichever place holds it.
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace troupe::kernels {

/// Fills the f32 view with normal(0, std) values, each a pure function of (key, its index in the logical tensor).
void init_normal(const View& view, std::uint64_t key, float std, Parallel& par);
/// Fills the f32 view with `value`.
void init_constant(const View& view, float value, Parallel& par);

}  // namespace troupe::kernels
