// attention_cached(q (1, 1, H D), k (1, 1, KV D), v (1, 1, KV D), position i32 (1)){head_dim: D, window} -> o (1, 1, H
// D)
//
// Attention of one token to itself and to earlier tokens, as a decoder needs it: keys and values of the newest `window`
// tokens are the op's state, a ring. Position 0 begins a text, and the position behind the previous call's continues
// it: any other is an error (OpDef::check). q and k are rotated (rope_at). While a text fits into the window, the bits
// are those that `attention` gives for it as a whole. Heads are divided as attention's are, and the state with its
// key-value heads.
#include <fmt/format.h>

#include "kernels/cpu/kernels.h"
#include "kernels/heads.h"
#include "kernels/ops.h"

namespace troupe::kernels {
namespace {

Inferred infer_attention_cached(Types in, const Attrs& attrs) {
  TROUPE_TRY(expect_inputs("attention_cached", in, 4, {3}));
  TROUPE_TRY(expect_heads("attention_cached", in, 0, attrs));
  TROUPE_TRY(
      expect(in[0].shape[0] == 1 && in[0].shape[1] == 1 && in[3].shape == Shape{1} && attrs.integer("window") > 0,
             "attention_cached", "one token: q, k and v (1, 1, ...), position (1), and a window above 0", in));
  return std::vector<TensorType>{in[0]};
}

std::int64_t state_bytes(Types in, Types, const Attrs& attrs) {
  const auto D = attrs.integer("head_dim");
  return cpu::attention_state_bytes(attrs.integer("window"), in[1].shape[2] / D, D);
}

Status check_position(const Call& call) {
  const std::int64_t position = call.in[3].as<std::int32_t>()[0], next = cpu::attention_next_position(call.state);
  if (position == 0 || position == next) return {};
  const std::string or_next = next == 0 ? "" : fmt::format(", or {}, which continues this one", next);
  return invalid(fmt::format("attention_cached: position {}: expected 0, which begins a text{}", position, or_next));
}

}  // namespace

std::vector<OpDef> attention_cached_ops() {
  OpDef op{.name = "attention_cached", .inputs = 4, .outputs = 1, .infer = infer_attention_cached};
  op.attributes = {integer_attribute("head_dim"), integer_attribute("window")};
  op.signatures = [](Types in, const Attrs& attrs) {
    const HeadSplit h(in[0], in[1], attrs);
    std::vector<Signature> table = {row({h.q, h.kv, h.kv, Sbp::B()}, {h.q})};
    if (h.one != h.q) table.push_back(row({h.one, Sbp::B(), Sbp::B(), Sbp::B()}, {h.one}));
    return table;
  };
  op.cost = [](Types in, Types out, const Attrs& attrs) {  // the window is full
    const double window = static_cast<double>(attrs.integer("window"));
    return OpCost{2 * 2 * window * static_cast<double>(last(in[0])),
                  bytes_of(in, out) + static_cast<double>(state_bytes(in, out, attrs))};
  };
  op.state_bytes = state_bytes;
  op.check = check_position;
  op.cpu = cpu::attention_cached;
  return {op};
}

}  // namespace troupe::kernels
