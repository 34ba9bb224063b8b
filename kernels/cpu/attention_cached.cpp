// Attention of one token to a ring of keys and values, which lie packed as attention.cpp packs them for a whole text:
// each token adds a column of the keys and a row of the values. So the same tiles run over them, in the same order of
// additions.
#include "devices/base/check.h"
#include "kernels/cpu/attention_blocks.h"

namespace troupe::kernels::cpu {

using namespace simd;

namespace {

/// The state: this header, then for each key-value head its packed keys and values.
struct alignas(64) Ring {
  std::int64_t next = 0;  // the position that continues the text
};

std::int64_t head_floats(std::int64_t window, std::int64_t D) {
  return HeadShape::packed_floats(window, D) + HeadShape::packed_floats(D, window);
}

}  // namespace

std::int64_t attention_state_bytes(std::int64_t window, std::int64_t kv_heads, std::int64_t head_dim) {
  return static_cast<std::int64_t>(sizeof(Ring)) + kv_heads * head_floats(window, head_dim) * size_of(DType::f32);
}

std::int64_t attention_next_position(std::span<const std::byte> state) {
  return reinterpret_cast<const Ring*>(state.data())->next;
}

void attention_cached(const Call& call) {
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2];  // (1, 1, H D), (1, 1, KV D), (1, 1, KV D)
  float* const o = call.out[0].as<float>();                      // (1, 1, H D)
  const std::int64_t position = call.in[3].as<std::int32_t>()[0], window = call.attrs->integer("window");
  const auto s = HeadShape::of(q, k, call.attrs->integer("head_dim"), window);
  auto& ring = *reinterpret_cast<Ring*>(call.state.data());
  REQUIRE(position == 0 || position == ring.next, position, ring.next);  // OpDef::check
  ring.next = position + 1;
  const std::int64_t slot = position % window, n = std::min(position + 1, window);
  float* const heads_kept = reinterpret_cast<float*>(call.state.data() + sizeof(Ring));
  call.par->for_each(s.KV, [&](std::int64_t kv) {
    float* const keys = heads_kept + kv * head_floats(window, s.D);
    float* const values = keys + s.by_position;
    s.put_position(k.as<float>() + kv * s.D, slot, keys);
    s.put_elements(v.as<float>() + kv * s.D, slot, values);

    float* const qp = workspace(2 * panel_rows * s.D + width);
    float* const acc = qp + panel_rows * s.D + width;
    const Range heads = s.queries_of(kv);
    // the group's query heads are rows of one panel
    for (std::int64_t h = heads.lo; h < heads.hi; h += panel_rows) {
      const auto rows = std::min(panel_rows, heads.hi - h);
      float max[width], sum[width];
      std::fill_n(max, width, -INFINITY);
      std::fill_n(sum, width, 0.0f);
      pack<panel_rows>(false, q.as<float>() + h * s.D, s.D, rows, rows, s.D, qp);
      for (std::int64_t k0 = 0; k0 < n; k0 += seq_block)
        attend(s, rows, std::min(seq_block, n - k0), 0, qp, keys, values, k0, max, sum, acc);
      for (std::int64_t r = 0; r < rows; ++r) {
        const v16 f = splat(1.0f / sum[r]);
        map(
            s.D, o + (h + r) * s.D, [f](v16 x) { return x * f; }, acc + r * s.D);
      }
    }
  });
}

}  // namespace troupe::kernels::cpu
