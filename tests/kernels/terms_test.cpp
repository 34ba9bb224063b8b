// Ops whose outputs add up as exact sums: what a term is, where it goes, and the peak.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "fixture.h"
#include "kernels/exact_sum.h"
#include "tests/last_words.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

/// One accumulating output of a sample call.
struct Accumulating {
  const OpCase& c;
  const OpDef& op;
  std::size_t out;

  std::int64_t terms(const std::vector<Tensor>& in) const {
    std::vector<TensorType> types;
    for (const auto& t : in) types.push_back(t.logical);
    return op.terms ? op.terms(types, c.attrs) : 1;
  }
  Tensor run(const std::vector<Tensor>& in, const RunOptions& options) const {
    return kernels::run(op, in, c.attrs, options)[out];
  }
};

std::vector<Accumulating> accumulating(const OpSet& ops) {
  std::vector<Accumulating> list;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    for (std::size_t out = 0; out < 32; ++out)
      if (op.accumulates >> out & 1) list.push_back({c, op, out});
  }
  return list;
}

/// Indices [lo, hi) of dim d, as tensors of their own, of those inputs that the signature "dim d divided" divides; none
/// where the output then has no terms from everywhere.
std::vector<Tensor> rows(const Accumulating& a, const std::vector<Tensor>& in, int d, std::int64_t lo,
                         std::int64_t hi) {
  std::vector<TensorType> types;
  for (const auto& t : in) types.push_back(t.logical);
  for (const auto& signature : a.op.signatures(types, a.c.attrs)) {
    if (!signature.out[a.out].is_partial() || !signature.in[0].is_split() || signature.in[0].dim != d) continue;
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < in.size(); ++i) {
      Extent extent = in[i].extent;
      if (signature.in[i].is_split()) extent.dims[static_cast<std::size_t>(d)] = {lo, hi};
      Tensor t(TensorType{in[i].logical.dtype, extent.shape()});
      t.data = in[i].slice(extent).data;
      parts.push_back(std::move(t));
    }
    return parts;
  }
  return {};
}

/// The same call as calls of one sample each; empty where these have other terms.
std::vector<std::vector<Tensor>> samples(const Accumulating& a, const std::vector<Tensor>& in) {
  std::vector<std::vector<Tensor>> list;
  std::int64_t terms = 0;
  for (std::int64_t b = 0; b < in[0].logical.shape[0]; ++b) {
    auto sample = rows(a, in, 0, b, b + 1);
    if (sample.empty()) return {};
    terms += a.terms(sample);
    list.push_back(std::move(sample));
  }
  return terms == a.terms(in) ? list : std::vector<std::vector<Tensor>>{};
}

/// The same call as calls of one term each; empty where there is no such cut.
std::vector<std::vector<Tensor>> single_terms(const Accumulating& a, const std::vector<Tensor>& in) {
  if (a.terms(in) == 1) return {in};
  std::vector<std::vector<Tensor>> list;
  for (const auto& sample : samples(a, in)) {
    const auto terms = a.terms(sample);
    for (std::int64_t t = 0; t < terms; ++t) list.push_back(terms == 1 ? sample : rows(a, sample, 1, t, t + 1));
  }
  return list;
}

float largest(const Tensor& t) {
  float most = 0;
  for (std::int64_t i = 0; i < t.size(); ++i) most = std::max(most, std::abs(t.as<float>()[i]));
  return most;
}

}  // namespace

TEST_CASE("OpDef::terms counts what one call adds to an element") {
  const OpSet ops = standard_ops();
  const auto f = [](Shape shape) { return TensorType{DType::f32, std::move(shape)}; };
  const auto i = [](Shape shape) { return TensorType{DType::i32, std::move(shape)}; };
  const auto terms = [&](const char* op, std::vector<TensorType> in) { return ops.find(op)->terms(in, {}); };
  CHECK(terms("linear_dw", {f({2, 256, 7}), f({2, 256, 9})}) == 1);
  CHECK(terms("linear_dw", {f({3, 171, 7}), f({3, 171, 9})}) == 2);
  CHECK(terms("embedding_grad", {f({4, 5, 75}), i({4, 5})}) == 20);
  // 256, 134
  CHECK(terms("lm_head_loss_grad", {f({3, 130, 20}), f({1100, 20}), i({3, 130}), f({3, 130})}) == 2);
  // 1024, 1024
  CHECK(terms("lm_head_loss_grad", {f({2, 1024, 20}), f({256, 20}), i({2, 1024}), f({2, 1024})}) == 4);
  // 1024, 513
  CHECK(terms("lm_head_loss_grad", {f({1, 1537, 20}), f({256, 20}), i({1, 1537}), f({1, 1537})}) == 4);
  for (const char* op : {"rmsnorm_dw", "bias_grad", "accumulate"}) CHECK(!ops.find(op)->terms);
}

TEST_CASE("exact sums: one call of all samples, or calls in any order and grouping: the same bits") {
  const OpSet ops = standard_ops();
  OneThread one;
  int cases = 0;
  for (const auto& a : accumulating(ops)) {
    CAPTURE(a.c.name);
    const auto in = a.c.inputs();
    const auto calls = samples(a, in);
    if (calls.empty()) continue;
    ++cases;
    RunOptions options;
    options.sums = true;
    const Tensor whole = a.run(in, options);
    std::vector<std::size_t> order(calls.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      Tensor grouped;  // the first calls add to one another, the rest is added at the end
      for (std::size_t first : order) {
        RunOptions next = options;
        next.accumulate = !grouped.data.empty();
        if (next.accumulate)
          for (const auto& t : kernels::run(a.op, calls[first], a.c.attrs, options)) next.before.push_back(t);
        if (next.accumulate) next.before[a.out] = grouped;
        grouped = a.run(calls[first], next);
      }
      REQUIRE(grouped.data == whole.data);
    } while (std::next_permutation(order.begin(), order.end()));
    Tensor added = a.run(calls.back(), options);
    for (std::size_t s = 0; s + 1 < calls.size(); ++s) {
      const Tensor other = a.run(calls[s], options);
      add_sums(added.as<std::int64_t>(), other.as<std::int64_t>(), added.size(), one);
    }
    CHECK(added.data == whole.data);
  }
  CHECK(cases >= 4);
}

TEST_CASE("exact sums are the rounded f32 gradients of calls of one term; the peak is the largest of these") {
  const OpSet ops = standard_ops();
  OneThread one;
  int cases = 0;
  for (const auto& a : accumulating(ops)) {
    CAPTURE(a.c.name);
    const auto in = a.c.inputs();
    const auto calls = single_terms(a, in);
    if (calls.empty()) continue;
    ++cases;
    float peak = 0, expected_peak = 0, f32_peak = 0;
    RunOptions options;
    options.exponent = 33;
    options.peak = &f32_peak;
    Tensor expected;
    for (const auto& call : calls) {
      const Tensor term = a.run(call, options);
      if (expected.data.empty()) expected = Tensor(TensorType{DType::sum64, term.logical.shape});
      add_terms(expected.as<std::int64_t>(), term.as<float>(), term.size(), 33, true, one);
      expected_peak = std::max(expected_peak, largest(term));
    }
    options.peak = &peak;
    options.sums = true;
    CHECK(a.run(in, options).data == expected.data);
    CHECK(peak == expected_peak);
    CHECK(f32_peak == expected_peak);
    peak = 1e30f;
    a.run(in, options);
    CHECK(peak == 1e30f);
    options.peak = nullptr;
    CHECK(a.run(in, options).data == expected.data);
  }
  CHECK(cases >= 10);
}

TEST_CASE("a term that is not finite shows in the peak, NaN above all") {
  const OpSet ops = standard_ops();
  TwoThreads two;
  for (const auto& a : accumulating(ops))
    for (const bool sums : {false, true}) {
      CAPTURE(a.c.name);
      CAPTURE(sums);
      auto in = a.c.inputs();
      float peak = 0;
      RunOptions options;
      options.sums = sums;
      options.peak = &peak;
      options.par = &two;
      in[0].as<float>()[in[0].size() / 2] = -INFINITY;
      a.run(in, options);
      CHECK(!std::isfinite(peak));
      in[0].as<float>()[in[0].size() / 2] = NAN;
      a.run(in, options);
      CHECK(std::isnan(peak));
      in = a.c.inputs();
      a.run(in, options);
      CHECK(std::isnan(peak));
    }
}

TEST_CASE("no samples: sums are zero, or stay as they are; the peak stays") {
  const OpSet ops = standard_ops();
  for (const auto& a : accumulating(ops)) {
    CAPTURE(a.c.name);
    const auto in = rows(a, a.c.inputs(), 0, 0, 0);
    if (in.empty()) continue;
    float peak = 0.5f;
    RunOptions options;
    options.sums = true;
    options.peak = &peak;
    const auto zero = run(a.op, in, a.c.attrs, options);
    CHECK(zero[a.out].data == std::vector<std::byte>(zero[a.out].data.size()));
    Random random(4);
    for (const auto& t : zero) options.before.push_back(random_tensor(t.logical, random));
    options.accumulate = true;
    CHECK(a.run(in, options).data == options.before[a.out].data);
    CHECK(peak == 0.5f);
  }
}

TEST_CASE("put_terms stores what an op's body gives, in the type that the output has, and raises its peak") {
  OneThread one;
  const std::vector<float> terms{0.25f, -3.0f, 1.5f};
  std::vector<std::int64_t> sums(3, 7);
  std::vector<float> values(3, 7.0f);
  View out;
  out.shape = out.logical = {3};
  float peak = 1;
  out.peak = &peak;
  out.dtype = DType::sum64;
  out.exponent = 4;
  out.data = reinterpret_cast<std::byte*>(sums.data());
  put_terms(out, terms.data(), false, one);
  CHECK(sums == std::vector<std::int64_t>{4, -48, 24});
  put_terms(out, terms.data(), true, one);
  CHECK(sums == std::vector<std::int64_t>{8, -96, 48});
  CHECK(peak == 3);
  peak = 1;
  out.dtype = DType::f32;
  out.data = reinterpret_cast<std::byte*>(values.data());
  put_terms(out, terms.data(), false, one);
  CHECK(values == terms);
  CHECK(peak == 3);
  put_terms(out, terms.data(), true, one);
  CHECK(values == std::vector<float>{0.5f, -6.0f, 3.0f});
  // 1/2, 3/2 and -1/2 of a unit: to the even one
  const std::vector<float> ties{0.03125f, 0.09375f, -0.03125f};
  out.dtype = DType::sum64;
  out.data = reinterpret_cast<std::byte*>(sums.data());
  put_terms(out, ties.data(), false, one);
  CHECK(sums == std::vector<std::int64_t>{0, 2, 0});
  CHECK(out.holds<std::int64_t>());
  CHECK_FALSE(out.holds<float>());
  CHECK(last_words([&] { (void)out.as<float>(); }).find("another type") != std::string::npos);
  out.dtype = DType::f32;
  CHECK(out.holds<float>());
  CHECK_FALSE(out.holds<std::int64_t>());
  CHECK(last_words([&] { (void)out.as<std::int64_t>(); }).find("another type") != std::string::npos);
}

TEST_CASE("an op that accumulates an output that it does not have is refused by name") {
  for (const std::uint32_t bits : {1u, 2u, 8u}) {
    OpSet ops;
    OpDef op = *standard_ops().find("bias_grad");
    op.name = "mine";
    op.accumulates = bits;
    const Status s = ops.add(op);
    CHECK(s.ok() == (bits == 1));
    if (bits != 1)
      CHECK(s.message().find("op 'mine' accumulates an output that it does not have") != std::string::npos);
  }
}
