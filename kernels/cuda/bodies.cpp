#include "kernels/cuda/bodies.h"

#include "devices/base/check.h"

namespace troupe::kernels::cuda {

OpSet with_cuda_bodies(const OpSet& ops) {
  const std::map<std::string, CudaBody> bodies = {
      {"accumulate", {accumulate}},
      {"adamw", {adamw}},
      {"add", {add}},
      {"attention", {attention}},
      {"attention_cached", {attention_cached, attention_cached_scratch}},
      {"attention_grad", {attention_grad, attention_grad_scratch}},
      {"bias_add", {bias_add}},
      {"bias_grad", {bias_grad, column_sums_scratch}},
      {"delay", {delay}},
      {"keep_microbatch", {keep_microbatch}},
      {"kept_microbatch", {kept_microbatch}},
      {"dropout", {dropout}},
      {"embedding", {embedding}},
      {"embedding_grad", {embedding_grad}},
      {"linear", {linear}},
      {"linear_dw", {linear_dw}},
      {"linear_dx", {linear_dx}},
      {"lm_head_loss", {lm_head_loss}},
      {"lm_head_loss_grad", {lm_head_loss_grad, lm_head_loss_grad_scratch}},
      {"lm_head_stats", {lm_head_stats}},
      {"mse_loss", {mse_loss}},
      {"mse_loss_grad", {mse_loss_grad}},
      {"multiply", {multiply}},
      {"orthogonalize", {orthogonalize, orthogonalize_scratch_bytes}},
      {"relu", {relu}},
      {"relu_grad", {relu_grad}},
      {"rmsnorm", {rmsnorm}},
      {"rmsnorm_dw", {rmsnorm_dw, column_sums_scratch}},
      {"rmsnorm_dx", {rmsnorm_dx}},
      {"rope", {rope}},
      {"rope_at", {rope}},
      {"running_average", {running_average}},
      {"scale", {scale}},
      {"softmax_cross_entropy", {softmax_cross_entropy}},
      {"softmax_cross_entropy_grad", {softmax_cross_entropy_grad}},
      {"swiglu", {swiglu}},
      {"swiglu_grad", {swiglu_grad}},
      {"weighted_sum", {weighted_sum}},
  };
  OpSet with;
  for (const auto& name : ops.names()) {
    OpDef op = *ops.find(name);
    if (const auto body = bodies.find(name); body != bodies.end()) op.cuda = body->second;
    const Status added = with.add(std::move(op));
    ASSERT(added.ok(), added.message());
  }
  return with;
}

}  // namespace troupe::kernels::cuda
