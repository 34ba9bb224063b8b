// Sample calls of every op. Sizes are odd on purpose: tails, several blocks, uneven and empty parts.
#include <algorithm>

#include "references.h"

namespace troupe::kernels {

namespace {

TensorType f(Shape shape) { return {DType::f32, std::move(shape)}; }
TensorType i(Shape shape) { return {DType::i32, std::move(shape)}; }

/// stats of x, w and targets.
void with_stats(const OpCase& c, std::vector<Tensor>& in) {
  in[0] = run(*standard_ops().find("lm_head_stats"), {in[1], in[2], in[3]}, c.attrs)[0];
}

/// rstd of x, the op's inputs being dy, x, (w,) rstd.
void with_rstd(const OpCase& c, std::vector<Tensor>& in) {
  Tensor ones(TensorType{DType::f32, {c.in[1].shape.back()}});
  std::fill_n(ones.as<float>(), ones.size(), 1.0f);
  in.back() = run(*standard_ops().find("rmsnorm"), {in[1], ones}, {{"eps", 1e-5}})[1];
}

/// lse of x and targets.
void with_lse(const OpCase&, std::vector<Tensor>& in) {
  in[2] = run(*standard_ops().find("softmax_cross_entropy"), {in[0], in[1]}, {{"scale", 0.5}})[1];
}

std::vector<OpCase> build() {
  namespace r = reference;
  using N = std::int64_t;
  std::vector<OpCase> list = {
      {"embedding", "embedding", {i({4, 5}), f({11, 19})}, {}, 0, 11, r::embedding},
      {"embedding, units", "embedding", {i({4, 5}), f({11, 19})}, {{"unit", N{7}}}, 0, 11, r::embedding},
      {"embedding_grad", "embedding_grad", {f({4, 5, 75}), i({4, 5})}, {{"rows", N{11}}}, 0, 11, r::embedding_grad},
      {"embedding_grad, units", "embedding_grad", {f({4, 5, 75}), i({4, 5})}, {{"rows", N{11}}, {"unit", N{7}}}, 0, 11, r::embedding_grad},
      {"linear", "linear", {f({4, 3, 20}), f({18, 20})}, {{"unit", N{3}}, {"in_unit", N{4}}}, 0, 1, r::linear},
      {"linear, rank 2", "linear", {f({7, 33}), f({17, 33})}, {}, 0, 1, r::linear},
      {"linear, blocks", "linear", {f({2, 150, 530}), f({545, 530})}, {}, 0, 1, r::linear, false},
      {"linear_dx", "linear_dx", {f({4, 3, 18}), f({18, 20})}, {{"unit", N{3}}, {"in_unit", N{4}}}, 0, 1, r::linear_dx},
      {"linear_dw", "linear_dw", {f({4, 3, 18}), f({4, 3, 20})}, {{"unit", N{3}}, {"in_unit", N{4}}}, 0, 1, r::linear_dw},
      {"linear_dw, blocks", "linear_dw", {f({3, 250, 130}), f({3, 250, 45})}, {}, 0, 1, r::linear_dw, false},
      {"linear_dw, whole blocks", "linear_dw", {f({3, 512, 50}), f({3, 512, 45})}, {}, 0, 1, r::linear_dw, false},
      {"rmsnorm", "rmsnorm", {f({5, 3, 37}), f({37})}, {{"eps", 1e-5}}, 0, 1, r::rmsnorm},
      {"rmsnorm, wide", "rmsnorm", {f({2, 2, 150}), f({150})}, {{"eps", 1e-5}}, 0, 1, r::rmsnorm},
      {"rmsnorm_dx", "rmsnorm_dx", {f({5, 3, 37}), f({5, 3, 37}), f({37}), f({5, 3})}, {}, 0, 1, r::rmsnorm_dx, true, with_rstd},
      {"rmsnorm_dw", "rmsnorm_dw", {f({5, 30, 75}), f({5, 30, 75}), f({5, 30})}, {}, 0, 1, r::rmsnorm_dw, true, with_rstd},
      {"rope", "rope", {f({3, 5, 24})}, {{"head_dim", N{6}}, {"theta", 10000.0}}, 0, 1, r::rope},
      {"rope, inverse", "rope", {f({2, 7, 128})}, {{"head_dim", N{64}}, {"theta", 500.0}, {"inverse", N{1}}},
       0, 1, r::rope},
      {"rope, long", "rope", {f({1, 1100, 36})}, {{"head_dim", N{36}}, {"theta", 10000.0}}, 0, 1, r::rope, false},
      {"rope_at", "rope_at", {f({3, 5, 24}), i({1})}, {{"head_dim", N{6}}, {"theta", 10000.0}, {"unit", N{12}}}, 100, 1000, r::rope},
      {"rope_at, one token", "rope_at", {f({1, 1, 128}), i({1})}, {{"head_dim", N{64}}, {"theta", 500.0}, {"inverse", N{1}}}, 0, 70, r::rope},
      {"attention", "attention", {f({3, 14, 40}), f({3, 14, 20}), f({3, 14, 20})}, {{"head_dim", N{10}}}, 0, 1, r::attention},
      {"attention, long", "attention", {f({1, 230, 128}), f({1, 230, 64}), f({1, 230, 64})}, {{"head_dim", N{32}}},
       0, 1, r::attention, false},
      {"attention, one key head", "attention", {f({2, 97, 195}), f({2, 97, 65}), f({2, 97, 65})}, {{"head_dim", N{65}}},
       0, 1, r::attention, false},
      // Its first call; attention_cached_test.cpp has the others.
      {"attention_cached", "attention_cached", {f({1, 1, 40}), f({1, 1, 20}), f({1, 1, 20}), i({1})}, {{"head_dim", N{10}}, {"window", N{7}}},
       0, 1, r::attention_cached},
      {"attention_grad", "attention_grad",
       {f({3, 14, 40}), f({3, 14, 40}), f({3, 14, 20}), f({3, 14, 20}), f({3, 14, 40}), f({3, 14, 4})}, {{"head_dim", N{10}}},
       0, 1, r::attention_grad},
      {"attention_grad, long", "attention_grad",
       {f({1, 230, 128}), f({1, 230, 128}), f({1, 230, 64}), f({1, 230, 64}), f({1, 230, 128}), f({1, 230, 4})},
       {{"head_dim", N{32}}}, 0, 1, r::attention_grad, false},
      {"swiglu", "swiglu", {f({3, 7, 29}), f({3, 7, 29})}, {}, 0, 1, r::swiglu},
      {"swiglu_grad", "swiglu_grad", {f({3, 7, 29}), f({3, 7, 29}), f({3, 7, 29})}, {{"unit", N{10}}}, 0, 1, r::swiglu_grad},
      {"add", "add", {f({3, 7, 29}), f({3, 7, 29})}, {}, 0, 1, r::add},
      {"add, blocks", "add", {f({3, 99, 129}), f({3, 99, 129})}, {}, 0, 1, r::add, false},
      {"accumulate", "accumulate", {f({3, 7, 29})}, {}, 0, 1, r::accumulate},
      {"relu", "relu", {f({3, 7, 29})}, {}, 0, 1, r::relu},
      {"relu_grad", "relu_grad", {f({3, 7, 29}), f({3, 7, 29})}, {}, 0, 1, r::relu_grad},
      {"bias_add", "bias_add", {f({3, 4, 21}), f({21})}, {{"unit", N{7}}}, 0, 1, r::bias_add},
      {"bias_grad", "bias_grad", {f({3, 50, 85})}, {}, 0, 1, r::bias_grad},
      {"dropout", "dropout", {f({5, 3, 26})}, {{"p", 0.3}, {"rng", std::string("a")}}, 0, 1, r::dropout},
      {"dropout, blocks", "dropout", {f({2, 130, 131})}, {{"p", 0.5}, {"rng", std::string("a")}}, 0, 1, r::dropout, false},
      // 8 groups of 5 words, the last of 2; 5 groups of 2 and 1; 2 groups for up to 3 places; two chunks of rows.
      {"lm_head_stats", "lm_head_stats", {f({3, 5, 13}), f({37, 13}), i({3, 5})}, {}, -2, 37, r::lm_head_stats},
      {"lm_head_stats, few words", "lm_head_stats", {f({3, 5, 13}), f({9, 13}), i({3, 5})}, {}, -2, 9, r::lm_head_stats},
      {"lm_head_stats, two groups", "lm_head_stats", {f({3, 5, 13}), f({37, 13}), i({3, 5})}, {{"groups", N{2}}}, -2, 37,
       r::lm_head_stats},
      {"lm_head_stats, chunks", "lm_head_stats", {f({3, 130, 20}), f({1100, 20}), i({3, 130})}, {}, -9, 1100,
       r::lm_head_stats},
      {"lm_head_loss", "lm_head_loss", {f({8, 3, 5, 3}), f({3, 5, 13}), f({37, 13}), i({3, 5})}, {{"scale", 0.125}}, -2, 37,
       r::lm_head_loss, true, with_stats},
      {"lm_head_loss, few words", "lm_head_loss", {f({5, 3, 5, 3}), f({3, 5, 13}), f({9, 13}), i({3, 5})},
       {{"scale", 0.125}}, -2, 9, r::lm_head_loss, true, with_stats},
      {"lm_head_loss, two groups", "lm_head_loss", {f({2, 3, 5, 3}), f({3, 5, 13}), f({37, 13}), i({3, 5})},
       {{"scale", 0.125}, {"groups", N{2}}}, -2, 37, r::lm_head_loss, true, with_stats},
      {"lm_head_loss, blocks", "lm_head_loss", {f({8, 3, 130, 3}), f({3, 130, 20}), f({1100, 20}), i({3, 130})},
       {{"scale", 0.01}}, -9, 1100, r::lm_head_loss, false, with_stats},
      {"lm_head_loss_grad", "lm_head_loss_grad", {f({3, 5, 13}), f({37, 13}), i({3, 5}), f({3, 5})}, {{"scale", 0.125}},
       -2, 37, r::lm_head_loss_grad},
      {"lm_head_loss_grad, two groups", "lm_head_loss_grad", {f({3, 5, 13}), f({37, 13}), i({3, 5}), f({3, 5})},
       {{"scale", 0.125}, {"groups", N{2}}}, -2, 37, r::lm_head_loss_grad},
      {"lm_head_loss_grad, chunks", "lm_head_loss_grad", {f({3, 130, 20}), f({1100, 20}), i({3, 130}), f({3, 130})},
       {{"scale", 0.01}}, -9, 1100, r::lm_head_loss_grad, false},
      {"lm_head_loss_grad, whole chunks", "lm_head_loss_grad", {f({3, 256, 20}), f({1100, 20}), i({3, 256}), f({3, 256})},
       {{"scale", 0.01}}, -9, 1100, r::lm_head_loss_grad, false},
      {"softmax_cross_entropy", "softmax_cross_entropy", {f({3, 7, 45}), i({3, 7})}, {{"scale", 0.5}}, -2, 45,
       r::softmax_cross_entropy},
      {"softmax_cross_entropy_grad", "softmax_cross_entropy_grad", {f({3, 7, 45}), i({3, 7}), f({3, 7})}, {{"scale", 0.5}},
       -2, 45, r::softmax_cross_entropy_grad, true, with_lse},
      {"mse_loss", "mse_loss", {f({3, 5, 33}), f({3, 5, 33})}, {{"scale", 0.5}}, 0, 1, r::mse_loss},
      {"mse_loss, blocks", "mse_loss", {f({3, 90, 70}), f({3, 90, 70})}, {{"scale", 0.5}}, 0, 1, r::mse_loss, false},
      {"mse_loss_grad", "mse_loss_grad", {f({3, 5, 33}), f({3, 5, 33})}, {{"scale", 0.5}}, 0, 1, r::mse_loss_grad},
  };
  return list;
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> list = build();
  return list;
}

}  // namespace troupe::kernels
