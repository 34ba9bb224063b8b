// Attention with state, token by token, against attention over whole texts.
#include <doctest/doctest.h>

#include <algorithm>

#include "fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

/// A text of T tokens, H query heads on KV key-value heads of D elements.
struct Text {
  std::int64_t T, H, KV, D;
  std::vector<Tensor> qkv;  // (1, T, heads D)

  Text(std::int64_t T_, std::int64_t H_, std::int64_t KV_, std::int64_t D_, unsigned seed = 1)
      : T(T_), H(H_), KV(KV_), D(D_) {
    Random random(seed);
    for (const auto heads : {H, KV, KV}) qkv.push_back(random_tensor({DType::f32, {1, T, heads * D}}, random));
  }
  /// Tokens [from, from + count) as a text of their own.
  std::vector<Tensor> tokens(std::int64_t from, std::int64_t count) const {
    std::vector<Tensor> out;
    for (const auto& whole : qkv) {
      Tensor t({DType::f32, {1, count, whole.logical.shape[2]}});
      const auto row = static_cast<std::size_t>(whole.logical.shape[2]) * sizeof(float);
      std::copy_n(whole.data.begin() + from * row, count * row, t.data.begin());
      out.push_back(std::move(t));
    }
    return out;
  }
};

/// The last row of attention over tokens [from, from + count).
std::vector<double> attended(const Text& text, std::int64_t from, std::int64_t count) {
  const OpSet ops = standard_ops();
  const auto o = run(*ops.find("attention"), text.tokens(from, count), {{"head_dim", text.D}})[0].values();
  return {o.end() - text.H * text.D, o.end()};
}

/// How the whole is divided, and which part this is.
struct Part {
  Signature signature;
  std::int64_t places = 1, place = 0;
  Extent of(const Shape& shape, const Sbp& sbp) const {
    Extent e = Extent::whole(shape);
    if (sbp.is_split()) e.dims[sbp.dim] = split_range(e.dims[sbp.dim], places, place, sbp.unit);
    return e;
  }
};

/// The results for tokens 0, 1, ..., one after the other.
std::vector<Tensor> decode(const Text& text, std::int64_t window, RunOptions options = {}, const Part* part = nullptr) {
  const OpSet ops = standard_ops();
  const OpDef& op = *ops.find("attention_cached");
  const Attrs attrs{{"head_dim", text.D}, {"window", window}};
  std::vector<std::byte> state;
  if (!options.state) options.state = &state;
  std::vector<Tensor> out;
  for (std::int64_t t = 0; t < text.T; ++t) {
    auto in = text.tokens(t, 1);
    in.emplace_back(TensorType{DType::i32, {1}});
    in[3].as<std::int32_t>()[0] = static_cast<std::int32_t>(t);
    Tensor o(in[0].logical);
    if (part) {
      o = Tensor(o.logical, part->of(o.logical.shape, part->signature.out[0]));
      for (std::size_t i = 0; i < in.size(); ++i)
        in[i] = in[i].slice(part->of(in[i].logical.shape, part->signature.in[i]));
    }
    out.push_back(run(op, in, {o}, attrs, options)[0]);
  }
  return out;
}

// Tails, several blocks of keys, uneven groups, a group of more rows than a panel has.
const std::vector<Text> texts = {{14, 4, 2, 10}, {230, 4, 2, 32}, {100, 3, 1, 65}, {40, 15, 1, 8}, {35, 3, 3, 64}};

}  // namespace

TEST_CASE(
    "token by token, attention gives the bits that it gives for the whole text, while that fits into the window") {
  const OpSet ops = standard_ops();
  for (const Text& text : texts)
    for (const std::int64_t window : {text.T, text.T + 37}) {
      CAPTURE(text.T);
      CAPTURE(window);
      const auto whole = run(*ops.find("attention"), text.qkv, {{"head_dim", text.D}})[0];
      const auto got = decode(text, window);
      const auto row = static_cast<std::size_t>(text.H * text.D);
      for (std::int64_t t = 0; t < text.T; ++t)
        REQUIRE(std::equal(got[t].as<float>(), got[t].as<float>() + row, whole.as<float>() + t * row));
    }
}

TEST_CASE("of a longer text the newest `window` tokens are attended") {
  for (const Text& text : texts)
    for (const std::int64_t window : {std::int64_t{1}, std::int64_t{5}, text.T * 2 / 3}) {
      CAPTURE(text.T);
      CAPTURE(window);
      const auto got = decode(text, window);
      for (std::int64_t t = 0; t < text.T; t += 3) {
        const auto count = std::min(t + 1, window);
        REQUIRE(distance(got[t].values(), attended(text, t + 1 - count, count)) <= 1e-6);
      }
    }
}

TEST_CASE("position 0 begins a text: what was attended before changes no bit") {
  for (const Text& text : texts) {
    const Text other(2 * text.T, text.H, text.KV, text.D, 2);
    std::vector<std::byte> state;
    RunOptions options;
    options.state = &state;
    decode(other, text.T, options);
    CHECK(same_bits(decode(text, text.T, options), decode(text, text.T)));
  }
}

TEST_CASE("NU-0 (kernels): with state, too, no bit depends on addresses, neighbours or threads") {
  TwoThreads two;
  for (const Text& text : texts) {
    const auto window = text.T / 2 + 1;
    const auto first = decode(text, window);
    for (int shift = 0; shift < 16; shift += 3) {
      RunOptions options;
      options.shift = shift;
      options.par = shift % 2 ? &two : nullptr;
      options.surroundings = shift % 3 ? 0xFF : 0x3F;
      CHECK(same_bits(decode(text, window, options), first));
    }
  }
}

TEST_CASE("every SBP signature holds with state: parts on 2, 3 and 5 places give the bits of the whole") {
  const OpSet ops = standard_ops();
  const OpDef& op = *ops.find("attention_cached");
  for (const Text& text : texts) {
    const auto window = text.T / 2 + 1;
    const auto whole = decode(text, window);
    std::vector<TensorType> types;
    for (const auto& t : text.tokens(0, 1)) types.push_back(t.logical);
    types.push_back({DType::i32, {1}});
    for (const auto& signature : op.signatures(types, {{"head_dim", text.D}, {"window", window}}))
      for (const std::int64_t places : {2, 3, 5}) {
        CAPTURE(to_string(NdSbp{signature.in[0], signature.in[1]}));
        CAPTURE(places);
        auto joined = whole;
        for (auto& t : joined) std::fill(t.data.begin(), t.data.end(), std::byte{0xFF});
        for (std::int64_t place = 0; place < places; ++place) {
          const Part part{signature, places, place};
          const auto got = decode(text, window, {}, &part);
          for (std::int64_t t = 0; t < text.T; ++t)
            if (got[t].size())
              copy_extent(got[t].extent, got[t].data.data(), got[t].extent, joined[t].data.data(), joined[t].extent,
                          sizeof(float));
        }
        CHECK(same_bits(joined, whole));
      }
  }
}

TEST_CASE("a position that neither begins a text nor continues it is an error that names the op and both positions") {
  const OpSet ops = standard_ops();
  const OpDef& op = *ops.find("attention_cached");
  REQUIRE(op.check);
  const Text text(3, 2, 1, 8);
  std::vector<std::byte> state;
  RunOptions options;
  options.state = &state;
  decode(text, 4, options);
  const auto check_with = [&](std::int32_t position) {
    Call call;
    call.in.resize(4);
    call.in[3] = {reinterpret_cast<std::byte*>(&position), DType::i32, {1}, {1}, Extent::whole({1})};
    call.state = state;
    return op.check(call);
  };
  for (const std::int32_t position : {0, 3}) CHECK(check_with(position).ok());
  for (const std::int32_t position : {-1, 1, 4}) {
    const Status wrong = check_with(position);
    CHECK(wrong.code() == Code::invalid);
    const std::string says = "attention_cached: position " + std::to_string(position) + ": expected 0";
    CHECK_MESSAGE(wrong.message().starts_with(says), wrong.message());
    CHECK_MESSAGE(wrong.message().find("or 3, which continues") != std::string::npos, wrong.message());
  }
  std::fill(state.begin(), state.end(), std::byte{});  // as before the first call
  CHECK(check_with(0).ok());
  CHECK_FALSE(check_with(1).ok());
}
