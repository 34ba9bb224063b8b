// The families of ops, one file each; standard_ops() collects them.
#pragma once

#include <vector>

#include "kernels/op.h"

namespace troupe::kernels {

std::vector<OpDef> embedding_ops();
std::vector<OpDef> linear_ops();
std::vector<OpDef> rmsnorm_ops();
std::vector<OpDef> rope_ops();
std::vector<OpDef> attention_ops();
std::vector<OpDef> swiglu_ops();
std::vector<OpDef> accumulate_ops();
std::vector<OpDef> add_ops();
std::vector<OpDef> relu_ops();
std::vector<OpDef> bias_ops();
std::vector<OpDef> dropout_ops();
std::vector<OpDef> lm_head_loss_ops();
std::vector<OpDef> softmax_cross_entropy_ops();
std::vector<OpDef> mse_loss_ops();

}  // namespace troupe::kernels
