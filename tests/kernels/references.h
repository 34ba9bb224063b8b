// What the ops compute, in double, written as plainly as possible.
#pragma once

#include "fixture.h"

namespace troupe::kernels::reference {

using Values = OpCase::Values;

Values embedding(const OpCase&, const Values&);
Values linear(const OpCase&, const Values&);
Values linear_dx(const OpCase&, const Values&);
Values linear_dw(const OpCase&, const Values&);
Values rmsnorm(const OpCase&, const Values&);
Values rope(const OpCase&, const Values&);
Values attention(const OpCase&, const Values&);
Values attention_cached(const OpCase&, const Values&);   ///< of a text of one token
Values attention_grad(const OpCase&, const Values&);
Values swiglu(const OpCase&, const Values&);
Values add(const OpCase&, const Values&);
Values accumulate(const OpCase&, const Values&);
Values relu(const OpCase&, const Values&);
Values bias_add(const OpCase&, const Values&);
Values dropout(const OpCase&, const Values&);
Values lm_head_stats(const OpCase&, const Values&);
Values lm_head_loss(const OpCase&, const Values&);
Values lm_head_loss_grad(const OpCase&, const Values&);
Values softmax_cross_entropy(const OpCase&, const Values&);
Values mse_loss(const OpCase&, const Values&);

}  // namespace troupe::kernels::reference
