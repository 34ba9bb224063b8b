// What the attention ops share: the rule of their shapes, and how heads may be divided.
#pragma once

#include "kernels/rules.h"

namespace troupe::kernels {

/// Checks q (B, T, H D), k and v (B, T, KV D), which are all[first] and the next two. Error: `invalid`.
inline Status expect_heads(const std::string& op, Types all, std::size_t first, const Attrs& attrs) {
  const TensorType &q = all[first], &k = all[first + 1], &v = all[first + 2];
  const auto D = attrs.integer("head_dim");
  const bool shapes = rank(q) == 3 && rank(k) == 3 && k == v && q.shape[0] == k.shape[0] && q.shape[1] == k.shape[1];
  const bool heads = shapes && D > 0 && q.shape[2] % D == 0 && k.shape[2] % D == 0 && k.shape[2] > 0 &&
                     q.shape[2] % k.shape[2] == 0;
  return expect(heads, op, "q (B, T, H * head_dim) and k, v (B, T, KV * head_dim) with H a multiple of KV", all);
}

/// Splits of the last dim. q, kv, lse: whole key-value heads, each with its group of query heads; one, one_lse: single
/// query heads.
struct HeadSplit {
  Sbp q, kv, lse, one, one_lse;
  HeadSplit(const TensorType& query, const TensorType& key, const Attrs& attrs) {
    const auto D = attrs.integer("head_dim"), group = query.shape[2] / key.shape[2];
    q = Sbp::S(2, D * group), kv = Sbp::S(2, D), lse = Sbp::S(2, group);
    one = Sbp::S(2, D), one_lse = Sbp::S(2);
  }
};

}  // namespace troupe::kernels
