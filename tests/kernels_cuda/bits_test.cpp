// Every CUDA body against the CPU's, bit by bit, on every sample call of every op. The CPU's are held to float64 by
// tests/kernels/.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/bodies.h"
#include "on_device.h"
#include "tests/kernels/fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

OpSet all_ops() { return cuda::with_cuda_bodies(standard_ops()); }

/// Runs f(case, op) for each sample call whose op has a CUDA body; returns how many.
template <class F>
int each_case(const OpSet& ops, F&& f) {
  int count = 0;
  for (const auto& c : op_cases()) {
    const OpDef& op = *ops.find(c.op);
    if (!op.cuda.issue) continue;
    CAPTURE(c.name);
    f(c, op);
    ++count;
  }
  return count;
}

/// Where two lists of tensors differ, in words; empty: nowhere.
std::string difference(const std::vector<Tensor>& cpu, const std::vector<Tensor>& gpu) {
  for (std::size_t o = 0; o < cpu.size(); ++o) {
    if (cpu[o].data == gpu[o].data) continue;
    const auto a = cpu[o].values(), b = gpu[o].values();
    std::size_t differ = 0, first = a.size();
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::bit_cast<std::uint64_t>(a[i]) == std::bit_cast<std::uint64_t>(b[i])) continue;
      if (differ++ == 0) first = i;
    }
    if (first == a.size()) return "output " + std::to_string(o) + " differs in the bits of a NaN";
    char text[200];
    std::snprintf(text, sizeof text, "output %zu: %zu of %zu differ, the first at %zu: CPU %.17g, device %.17g", o,
                  differ, a.size(), first, a[first], b[first]);
    return text;
  }
  return "";
}

Extent part_of(const Shape& shape, const Sbp& sbp, std::int64_t places, std::int64_t place) {
  Extent e = Extent::whole(shape);
  if (sbp.is_split()) {
    auto& range = e.dims[static_cast<std::size_t>(sbp.dim)];
    range = split_range(range, places, place, sbp.unit);
  }
  return e;
}

}  // namespace

TEST_CASE("every op that has a CPU body has a CUDA body") {
  const OpSet ops = all_ops();
  for (const auto& name : ops.names()) {
    CHECK_MESSAGE(ops.find(name)->cuda.issue, name);
    CHECK_MESSAGE(std::any_of(op_cases().begin(), op_cases().end(), [&](const OpCase& c) { return c.op == name; }),
                  name);
  }
}

TEST_CASE("a CUDA body gives the bits of the CPU's, in every order of threads, at odd addresses too") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = all_ops();
  const int count = each_case(ops, [&](const OpCase& c, const OpDef& op) {
    const auto in = c.inputs();
    for (const int shift : {0, 1, 2}) {
      RunOptions options;
      options.shift = shift;
      options.first_sample = 5 * shift;
      const auto cpu = run(op, in, c.attrs, options);
      for (std::size_t q = 0; q < gpu->queues(); ++q) {
        CAPTURE(shift);
        CAPTURE(q);
        CHECK(difference(cpu, run(on_device(op, *gpu, q), in, c.attrs, options)) == "");
      }
    }
  });
  MESSAGE(count << " sample calls");
}

TEST_CASE("exact sums and their peak have the CPU's bits, begun and added to") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = all_ops();
  int outputs = 0;
  each_case(ops, [&](const OpCase& c, const OpDef& op) {
    if (!op.accumulates) return;
    ++outputs;
    for (const auto& [sums, exponent] :
         std::vector<std::pair<bool, std::int32_t>>{{true, 30}, {true, -7}, {true, 45}, {false, 30}}) {
      std::vector<Tensor> cpu, other;
      for (const unsigned seed : {3u, 4u}) {  // the second is added where the sums are exact
        const auto in = c.inputs(seed);
        float cpu_peak = -0.0f, peak = -0.0f;
        RunOptions options;
        options.sums = sums;
        options.exponent = exponent;
        options.accumulate = sums && seed == 4;
        if (options.accumulate) options.before = cpu;
        options.peak = &cpu_peak;
        cpu = run(op, in, c.attrs, options);
        options.peak = &peak;
        other = run(on_device(op, *gpu), in, c.attrs, options);
        CAPTURE(sums);
        CAPTURE(exponent);
        CAPTURE(seed);
        CHECK(difference(cpu, other) == "");
        CHECK(std::bit_cast<std::uint32_t>(cpu_peak) == std::bit_cast<std::uint32_t>(peak));
      }
    }
  });
  CHECK(outputs > 0);
}

TEST_CASE("parts of tensors, empty ones too, have the CPU's bits on every row of every SBP table") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = all_ops();
  int rows = 0;
  each_case(ops, [&](const OpCase& c, const OpDef& op) {
    if (!op.signatures) return;
    const auto in = c.inputs(7);
    const auto types = op.infer(c.in, c.attrs);
    for (const auto& row : op.signatures(c.in, c.attrs))
      for (const std::int64_t places : {2, 5})
        for (std::int64_t place = 0; place < places; ++place) {
          ++rows;
          std::vector<Tensor> parts, out;
          for (std::size_t i = 0; i < in.size(); ++i)
            parts.push_back(in[i].slice(part_of(in[i].logical.shape, row.in[i], places, place)));
          for (std::size_t o = 0; o < types->size(); ++o) {
            const bool sums = op.accumulates >> o & 1;
            const TensorType type{sums ? DType::sum64 : (*types)[o].dtype, (*types)[o].shape};
            out.emplace_back(type, part_of(type.shape, row.out[o], places, place));
          }
          RunOptions options;
          options.first_sample = place;
          CAPTURE(places);
          CAPTURE(place);
          CHECK(difference(run(op, parts, out, c.attrs, options),
                           run(on_device(op, *gpu), parts, out, c.attrs, options)) == "");
        }
  });
  CHECK(rows > 0);
}
