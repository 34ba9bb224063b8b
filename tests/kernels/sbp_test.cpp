#include <doctest/doctest.h>

#include <algorithm>

#include "fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

Extent part_of(const Shape& shape, const Sbp& sbp, std::int64_t places, std::int64_t place) {
  Extent e = Extent::whole(shape);
  if (sbp.is_split()) {
    auto& range = e.dims[static_cast<std::size_t>(sbp.dim)];
    range = split_range(range, places, place, sbp.unit);
  }
  return e;
}

/// What place `place` holds of `whole`; `terms` are random partial sums of it.
Tensor part(const Tensor& whole, const Sbp& sbp, std::int64_t places, std::int64_t place, std::vector<float>& rest,
            Random& random) {
  if (!sbp.is_partial()) return whole.slice(part_of(whole.logical.shape, sbp, places, place));
  Tensor term = place + 1 == places ? whole : random_tensor(whole.logical, random);
  if (place == 0) rest.assign(static_cast<std::size_t>(whole.size()), 0.0f);
  for (std::int64_t i = 0; i < whole.size(); ++i) {
    if (place + 1 == places) term.as<float>()[i] -= rest[static_cast<std::size_t>(i)];
    else rest[static_cast<std::size_t>(i)] += term.as<float>()[i];
  }
  return term;
}

std::string text(const Signature& s) {
  NdSbp all = s.in;
  all.insert(all.end(), s.out.begin(), s.out.end());
  return to_string(all);
}

/// What a signature claims, tried: parts on `places` places against the whole. "": it holds; else what differs.
std::string broken_claim(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& in,
                         const std::vector<Tensor>& whole, const Signature& signature, std::int64_t places) {
  Random random(13);
  std::vector<std::vector<float>> rest(in.size());
  std::vector<Tensor> joined = whole;
  for (Tensor& t : joined) std::fill(t.data.begin(), t.data.end(), std::byte{0x5c});
  std::vector<std::vector<double>> sums(whole.size());
  for (std::int64_t place = 0; place < places; ++place) {
    std::vector<Tensor> args, outs;
    for (std::size_t i = 0; i < in.size(); ++i)
      args.push_back(part(in[i], signature.in[i], places, place, rest[i], random));
    for (std::size_t i = 0; i < whole.size(); ++i)
      outs.emplace_back(whole[i].logical, part_of(whole[i].logical.shape, signature.out[i], places, place));
    const auto got = run(op, args, outs, attrs);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (signature.out[i].is_partial()) {
        sums[i].resize(static_cast<std::size_t>(got[i].size()));
        const auto term = got[i].values();
        for (std::size_t e = 0; e < term.size(); ++e) sums[i][e] += term[e];
      } else if (signature.out[i].is_broadcast()) {
        if (!(distance(got[i].values(), whole[i].values()) <= 1e-5)) return "output " + std::to_string(i) + " is not B";
        joined[i] = got[i];
      } else if (got[i].size()) {
        copy_extent(got[i].extent, got[i].data.data(), got[i].extent, joined[i].data.data(), joined[i].extent,
                    size_of(joined[i].logical.dtype));
      }
    }
  }
  const bool has_partial_input = std::any_of(signature.in.begin(), signature.in.end(),
                                             [](auto& s) { return s.is_partial(); });
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto& result = signature.out[i].is_partial() ? sums[i] : joined[i].values();
    if (!(distance(result, whole[i].values()) <= 1e-5)) return "output " + std::to_string(i) + " has other values";
    if (!has_partial_input && !signature.out[i].is_partial() && joined[i].data != whole[i].data)
      return "output " + std::to_string(i) + " has other bits";
  }
  return "";
}

}  // namespace

TEST_CASE("every SBP signature holds: parts on 2 and 3 places give the whole within 1e-5, and without P its bits") {
  const OpSet ops = standard_ops();
  int signatures = 0, lies = 0;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.signatures) continue;
    const auto in = c.inputs(11);
    const auto whole = run(op, in, c.attrs);
    for (const auto& signature : op.signatures(c.in, c.attrs)) {
      ++signatures;
      REQUIRE(signature.in.size() == in.size());
      REQUIRE(signature.out.size() == whole.size());
      for (const std::int64_t places : {2, 3}) {
        CAPTURE(c.name);
        CAPTURE(text(signature));
        CAPTURE(places);
        CHECK(broken_claim(op, c.attrs, in, whole, signature, places) == "");
        // The same row with B and P exchanged in one output lies, and is found out.
        for (std::size_t o = 0; o < whole.size(); ++o) {
          const auto values = whole[o].values();
          if (signature.out[o].is_split() || std::all_of(values.begin(), values.end(), [](auto v) { return v == 0; }))
            continue;
          Signature lie = signature;
          lie.out[o] = lie.out[o].is_partial() ? Sbp::B() : Sbp::P();
          CAPTURE(text(lie));
          CHECK(broken_claim(op, c.attrs, in, whole, lie, places) != "");
          ++lies;
        }
      }
    }
  }
  CHECK(signatures > 100);
  CHECK(lies > 40);
}

TEST_CASE("a signature that splits what an op adds up along is found out") {
  OpDef op;  // y[i, j] = x[i, 0] + ... + x[i, j]
  op.name = "running_sum";
  op.infer = [](auto in, const Attrs&) -> Expected<std::vector<TensorType>> { return std::vector<TensorType>{in[0]}; };
  op.cpu = [](const Call& c) {
    const auto columns = c.in[0].shape[1];
    for (std::int64_t i = 0; i < c.in[0].size(); ++i)
      c.out[0].as<float>()[i] = c.in[0].as<float>()[i] + (i % columns ? c.out[0].as<float>()[i - 1] : 0);
  };
  Random random(3);
  const std::vector<Tensor> in{random_tensor({DType::f32, {6, 6}}, random)};
  const auto whole = run(op, in, {});
  for (const std::int64_t places : {2, 3}) {
    CHECK(broken_claim(op, {}, in, whole, {{Sbp::S(0)}, {Sbp::S(0)}}, places) == "");
    CHECK(broken_claim(op, {}, in, whole, {{Sbp::P()}, {Sbp::P()}}, places) == "");  // it is linear
    CHECK(broken_claim(op, {}, in, whole, {{Sbp::S(1)}, {Sbp::S(1)}}, places) == "output 0 has other values");
  }
}

TEST_CASE("exact sums of parts are those of the whole, wherever no argument is partial") {
  const OpSet ops = standard_ops();
  int signatures = 0;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.accumulates || !op.signatures) continue;
    const auto in = c.inputs(11);
    RunOptions options;
    options.sums = true;
    const auto whole = run(op, in, c.attrs, options);
    for (const auto& signature : op.signatures(c.in, c.attrs)) {
      const auto partial = [](const Sbp& s) { return s.is_partial(); };
      if (std::any_of(signature.in.begin(), signature.in.end(), partial)) continue;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        if (!(op.accumulates >> i & 1) || signature.out[i].is_partial()) continue;
        ++signatures;
        for (const std::int64_t places : {2, 3})
          for (std::int64_t place = 0; place < places; ++place) {
            CAPTURE(c.name);
            CAPTURE(text(signature));
            CAPTURE(places);
            std::vector<Tensor> args, outs;
            for (std::size_t a = 0; a < in.size(); ++a)
              args.push_back(in[a].slice(part_of(in[a].logical.shape, signature.in[a], places, place)));
            for (std::size_t o = 0; o < whole.size(); ++o)
              outs.emplace_back(whole[o].logical, part_of(whole[o].logical.shape, signature.out[o], places, place));
            CHECK(run(op, args, outs, c.attrs, options)[i].data == whole[i].slice(outs[i].extent).data);
          }
      }
    }
  }
  CHECK(signatures >= 18);
}
