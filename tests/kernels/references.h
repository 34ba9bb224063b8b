// What the ops compute, in double, written as plainly as possible.
#pragma once

#include "fixture.h"

namespace troupe::kernels::reference {

using Values = OpCase::Values;
using Vec = std::vector<double>;
using std::int64_t;

inline std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }
inline int64_t size(const Vec& v) { return static_cast<int64_t>(v.size()); }

Values embedding(const OpCase&, const Values&);
Values linear(const OpCase&, const Values&);
Values linear_dx(const OpCase&, const Values&);
Values linear_dw(const OpCase&, const Values&);
Values rmsnorm(const OpCase&, const Values&);
Values rope(const OpCase&, const Values&);
Values attention(const OpCase&, const Values&);
Values attention_cached(const OpCase&, const Values&);  ///< of a text of one token
Values attention_grad(const OpCase&, const Values&);
Values swiglu(const OpCase&, const Values&);
Values add(const OpCase&, const Values&);
Values weighted_sum(const OpCase&, const Values&);
Values multiply(const OpCase&, const Values&);
Values adamw(const OpCase&, const Values&);
Values running_average(const OpCase&, const Values&);
Values orthogonalize(const OpCase&, const Values&);
Values accumulate(const OpCase&, const Values&);
Values relu(const OpCase&, const Values&);
Values bias_add(const OpCase&, const Values&);
Values dropout(const OpCase&, const Values&);
Values lm_head_stats(const OpCase&, const Values&);
Values lm_head_loss(const OpCase&, const Values&);
Values lm_head_loss_grad(const OpCase&, const Values&);
Values softmax_cross_entropy(const OpCase&, const Values&);
Values mse_loss(const OpCase&, const Values&);

// Gradients by central differences of the definitions above, for ops whose formula is derived from them. What an op
// takes of its forward pass (rstd, lse) must be that of the other inputs.
Values embedding_grad(const OpCase&, const Values&);
Values rmsnorm_dx(const OpCase&, const Values&);  ///< of eps 1e-5
Values rmsnorm_dw(const OpCase&, const Values&);
Values swiglu_grad(const OpCase&, const Values&);
/// by its definition: there is no difference at the kink
Values relu_grad(const OpCase&, const Values&);
Values bias_grad(const OpCase&, const Values&);
Values softmax_cross_entropy_grad(const OpCase&, const Values&);
Values mse_loss_grad(const OpCase&, const Values&);

}  // namespace troupe::kernels::reference
