// The CPU bodies of all ops. Each reads and writes exactly what its op's file in kernels/ says.
#pragma once

#include "kernels/op.h"

namespace troupe::kernels::cpu {

void embedding(const Call&);
void embedding_grad(const Call&);
void linear(const Call&);
void linear_dx(const Call&);
void linear_dw(const Call&);
void rmsnorm(const Call&);
void rmsnorm_dx(const Call&);
void rmsnorm_dw(const Call&);
void rope(const Call&);
void attention(const Call&);
void attention_grad(const Call&);
void attention_cached(const Call&);
void swiglu(const Call&);
void swiglu_grad(const Call&);
void add(const Call&);
void weighted_sum(const Call&);
void adamw(const Call&);
void running_average(const Call&);
void orthogonalize(const Call&);
void multiply(const Call&);
void scale(const Call&);
void delay(const Call&);
void keep_microbatch(const Call&);
void kept_microbatch(const Call&);
void relu(const Call&);
void relu_grad(const Call&);
void bias_add(const Call&);
void bias_grad(const Call&);
void dropout(const Call&);
void accumulate(const Call&);
void lm_head_stats(const Call&);
void lm_head_loss(const Call&);
void lm_head_loss_grad(const Call&);
void softmax_cross_entropy(const Call&);
void softmax_cross_entropy_grad(const Call&);
void mse_loss(const Call&);
void mse_loss_grad(const Call&);

/// Rows of logits that lm_head_loss holds at a time: about 1 MiB of them, at least 256, by shape only.
std::int64_t lm_head_chunk(std::int64_t vocabulary);

/// Bytes of attention_cached's state: a ring of `window` keys and values of `kv_heads` heads.
std::int64_t attention_state_bytes(std::int64_t window, std::int64_t kv_heads, std::int64_t head_dim);
/// The position that continues the text in attention_cached's state; 0: there is none.
std::int64_t attention_next_position(std::span<const std::byte> state);

}  // namespace troupe::kernels::cpu
