// The families of ops, one file each; standard_ops() collects them.
#pragma once

#include <vector>

#include "kernels/op.h"

namespace troupe::kernels {

// Of each op that a graph names: inputs, attributes in braces, outputs. f32 where nothing is said; shapes are those of
// a microbatch. No value depends on the attributes with "unit" in their names, which say what a model axis keeps
// together: `unit` rows of an embedding's table, elements of the last dim elsewhere (a head, say), 1 by default; of
// linear, where `in_unit` is that of K, `subunit` and `in_subunit` are smaller ones that an axis may divide too.

/// embedding(tokens i32 (B, T), weight (V, C)){unit} -> rows of weight (B, T, C); zeros for a token below 0
std::vector<OpDef> embedding_ops();
/// linear(x (..., K), w (N, K)){unit, subunit, in_unit, in_subunit} -> x w^T (..., N)
std::vector<OpDef> linear_ops();
/// rmsnorm(x (..., C), w (C)){eps} -> x / sqrt(mean(x^2) + eps) * w, 1 / that root (...)
std::vector<OpDef> rmsnorm_ops();
/// rope(x (B, T, H D)){head_dim: D, theta, inverse, unit} -> x rotated by its index along dim 1;
/// rope_at(x (B, T, H D), position i32 (1)){...}: by that index plus the position
std::vector<OpDef> rope_ops();
/// attention(q (B, T, H D), k (B, T, KV D), v (B, T, KV D)){head_dim: D} -> o (B, T, H D), lse (B, T, H): causal, scale
/// 1 / sqrt(D)
std::vector<OpDef> attention_ops();
/// attention_cached(q (1, 1, H D), k (1, 1, KV D), v (1, 1, KV D), position i32 (1)){head_dim: D, window} -> o: of one
/// token, to itself and to those before, whose keys and values the op keeps
std::vector<OpDef> attention_cached_ops();
/// swiglu(gate, up){unit} -> silu(gate) * up
std::vector<OpDef> swiglu_ops();
/// accumulate(x){unit} -> x: a gradient as a term of its sum; autodiff adds it
std::vector<OpDef> accumulate_ops();
/// add(a, b){unit} -> a + b
std::vector<OpDef> add_ops();
/// weighted_sum(a, b){a: A, b: B, unit} -> a A + b B
std::vector<OpDef> weighted_sum_ops();
/// multiply(a, b){unit} -> a b, element by element; scale(x, s (1)){unit} -> x s, of what an update makes: no gradient
std::vector<OpDef> multiply_ops();
/// adamw(w, m, v, g, lr (1), number (1)){beta1, beta2, eps, weight_decay, unit} -> w, m, v as AdamW makes them in its
/// update of this number; no gradient
std::vector<OpDef> adamw_ops();
/// running_average(average, x, number (1)){decay, unit} -> x at number 1, later decay average + (1 - decay) x; no
/// gradient
std::vector<OpDef> running_average_ops();
/// orthogonalize(x (M, N)){steps} -> x with all its singular values about 1, after 5 steps by default; no gradient
std::vector<OpDef> orthogonalize_ops();
/// relu(x){unit} -> max(x, 0)
std::vector<OpDef> relu_ops();
/// bias_add(x (..., N), b (N)){unit} -> x + b
std::vector<OpDef> bias_ops();
/// delay(x) -> x, of any type: at both ends of a Graph::delay. Zeros where x has no memory (View::data is null), as
/// before the first microbatch that is read late; no gradient.
/// keep_microbatch(x){microbatches} -> all (microbatches, ...x), of which it writes the part of its microbatch, and
/// kept_microbatch(all) -> x, that part, of any type: at both ends of a Graph::step_delay; no gradient
std::vector<OpDef> delay_ops();
/// dropout(x){p, rng, unit} -> x / (1 - p) with probability 1 - p, else 0
std::vector<OpDef> dropout_ops();
/// lm_head_stats(x (B, T, C), w (V, C), targets i32 (B, T)){groups} -> stats;
/// lm_head_loss(stats, x, w, targets){groups, scale} -> the sum over rows of -log softmax(x w^T)[target], f64 (1), and
/// lse (B, T); rows with a target below 0 count for nothing; the gradient is that of scale times the sum
std::vector<OpDef> lm_head_loss_ops();
/// softmax_cross_entropy(logits (..., V), targets i32 (...)){scale} -> the sum over rows of
/// -log softmax(logits)[target], f64 (1), lse (...); rows with a target below 0 count for nothing; the gradient is that
/// of scale times the sum
std::vector<OpDef> softmax_cross_entropy_ops();
/// mse_loss(y, target){scale, unit} -> the sum of (y - target)^2, f64 (1); the gradient is that of scale times the sum:
/// 2 scale (y - target)
std::vector<OpDef> mse_loss_ops();

/// Returns the unit in which a model axis splits a table of `vocabulary` rows: u = ceil(vocabulary / groups), the rows
/// of one group of lm_head_stats, whose attribute "groups" (8 by default) is in `attrs`. The lm_head ops split by u; an
/// embedding that reads the same table needs u as its attribute "unit": then all ops cut the table at the same rows.
std::int64_t vocabulary_unit(std::int64_t vocabulary, const Attrs& attrs = {});

}  // namespace troupe::kernels
