#include "kernels/cuda/bodies.h"

#include "devices/base/check.h"

namespace troupe::kernels::cuda {

OpSet with_cuda_bodies(const OpSet& ops) {
  const std::map<std::string, CudaBody> bodies = {
      {"add", {add}},
      {"attention", {attention}},
      {"attention_cached", {attention_cached, attention_cached_scratch}},
      {"attention_grad", {attention_grad, attention_grad_scratch}},
      {"linear", {linear}},
      {"linear_dw", {linear_dw}},
      {"linear_dx", {linear_dx}},
      {"multiply", {multiply}},
      {"relu", {relu}},
      {"relu_grad", {relu_grad}},
      {"running_average", {running_average}},
      {"scale", {scale}},
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
