#include "devices/base/check.h"
#include "kernels/ops.h"

namespace troupe::kernels {

OpSet standard_ops() {
  OpSet set;
  for (auto* family : {embedding_ops,
                       linear_ops,
                       rmsnorm_ops,
                       rope_ops,
                       attention_ops,
                       attention_cached_ops,
                       swiglu_ops,
                       accumulate_ops,
                       add_ops,
                       weighted_sum_ops,
                       multiply_ops,
                       adamw_ops,
                       running_average_ops,
                       orthogonalize_ops,
                       relu_ops,
                       bias_ops,
                       delay_ops,
                       dropout_ops,
                       lm_head_loss_ops,
                       softmax_cross_entropy_ops,
                       mse_loss_ops})
    for (OpDef& op : family()) {
      const Status added = set.add(std::move(op));
      ASSERT(added.ok(), added.message());
    }
  return set;
}

}  // namespace troupe::kernels
