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
std::vector<OpDef> attention_cached_ops();
std::vector<OpDef> swiglu_ops();
std::vector<OpDef> accumulate_ops();
std::vector<OpDef> add_ops();
std::vector<OpDef> relu_ops();
std::vector<OpDef> bias_ops();
std::vector<OpDef> dropout_ops();
std::vector<OpDef> lm_head_loss_ops();
std::vector<OpDef> softmax_cross_entropy_ops();
std::vector<OpDef> mse_loss_ops();

/// Returns the unit in which a model axis splits a table of `vocabulary` rows: u = ceil(vocabulary / groups), the rows
/// of one group of lm_head_stats, whose attribute "groups" (8 by default) is in `attrs`. The lm_head ops split by u; an
/// embedding that reads the same table needs u as its attribute "unit": then all ops cut the table at the same rows.
std::int64_t vocabulary_unit(std::int64_t vocabulary, const Attrs& attrs = {});

}  // namespace troupe::kernels
