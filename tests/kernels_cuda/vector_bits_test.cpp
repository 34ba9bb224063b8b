// Every function of kernels/cuda/vector.h against the CPU's, bit by bit, and bodies of ops on sizes that the sample
// calls do not have.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/add_into.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/vector.h"
#include "kernels/digest.h"
#include "kernels/initial.h"
#include "kernels/square_sums.h"
#include "on_device.h"
#include "tests/kernels/fixture.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

/// Calls f(queue, shift) for each order of threads, with arguments at multiples of 256 bytes and `shift` elements
/// behind them.
template <class F>
void each_way(test::Device& gpu, F&& f) {
  for (std::size_t q = 0; q < gpu.queues(); ++q)
    for (const std::size_t shift : {0u, 1u, 2u}) {
      CAPTURE(q);
      CAPTURE(shift);
      f(gpu.queue(q), shift);
      gpu.release();
    }
}

template <class T>
T* put(test::Device& gpu, const std::vector<T>& host, std::size_t shift) {
  const auto* like = reinterpret_cast<const void*>(256 + shift * sizeof(T));
  return reinterpret_cast<T*>(gpu.put(host.data(), host.size() * sizeof(T), like));
}
template <class T>
std::vector<T> get(test::Device& gpu, const T* at, std::size_t n) {
  const std::string wrong = gpu.wait();
  REQUIRE_MESSAGE(wrong.empty(), wrong);
  std::vector<T> host(n);
  gpu.get(host.data(), reinterpret_cast<const std::byte*>(at), n * sizeof(T));
  return host;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Magnitudes up to 2^top, some of them halves of units of 2^-e.
std::vector<float> floats_of_all_sizes(std::size_t n, int top, int e, Random& random) {
  std::uniform_real_distribution<float> mantissa(-1, 1),
      power(static_cast<float>(std::min(-60, top - 40)), static_cast<float>(top));
  std::uniform_int_distribution<int> half(-4000, 4000);
  std::vector<float> list(n);
  for (std::size_t i = 0; i < n; ++i)
    list[i] = i % 3 ? std::ldexp(mantissa(random), static_cast<int>(power(random)))
                    : std::ldexp(static_cast<float>(half(random)) + 0.5f, -e);
  return list;
}
/// Every magnitude: ties of double and of float among them.
std::vector<std::int64_t> counts_of_all_sizes(std::size_t n, Random& random) {
  std::uniform_int_distribution<std::int64_t> any(std::numeric_limits<std::int64_t>::min(),
                                                  std::numeric_limits<std::int64_t>::max());
  std::uniform_int_distribution<int> shift(0, 63);
  std::vector<std::int64_t> list(n);
  for (std::size_t i = 0; i < n; ++i) list[i] = i % 5 == 4 ? (1ll << 53) + 1 : any(random) >> shift(random);
  return list;
}

/// A gradient of n elements on both sides: `uses` arrays of sums, or f32 where there is none.
struct BothGradients {
  std::vector<std::vector<std::int64_t>> sums;
  std::vector<float> rounded;
  std::vector<const std::int64_t*> here, there;
  Gradient cpu, gpu;

  BothGradients(test::Device& device, std::size_t n, std::size_t uses, std::int32_t exponent, std::size_t shift,
                Random& random) {
    if (uses == 0) {
      rounded = floats_of_all_sizes(n, 3, 20, random);
      cpu.rounded = rounded.data();
      gpu.rounded = put(device, rounded, shift);
    }
    for (std::size_t u = 0; u < uses; ++u) sums.push_back(counts_of_all_sizes(n, random));
    for (const auto& use : sums) {
      here.push_back(use.data());
      there.push_back(put(device, use, shift));
    }
    cpu.sums = here;
    gpu.sums = there;
    cpu.exponent = gpu.exponent = exponent;
  }
};

constexpr std::size_t sizes[] = {0, 1, 3, 4, 31, 1029};

/// Parts of a tensor of up to five dims.
struct RandomExtents {
  Random random;
  std::int64_t below(std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); }
  Shape shape() {
    Shape s;
    for (std::int64_t d = below(6); d > 0; --d) s.push_back(1 + below(s.size() < 2 ? 9 : 5));
    return s;
  }
  /// Not empty; all of many a dim.
  Extent inside(const Extent& whole) {
    Extent e = whole;
    for (Range& r : e.dims) {
      if (below(2) == 0) continue;
      const auto lo = r.lo + below(r.size());
      r = {lo, lo + 1 + below(r.hi - lo)};
    }
    return e;
  }
  /// Holds `part`.
  Extent around(const Extent& part, const Extent& whole) {
    Extent e = whole;
    for (std::size_t d = 0; d < e.dims.size(); ++d) {
      if (below(2) == 0) continue;
      e.dims[d].lo += below(part.dims[d].lo - e.dims[d].lo + 1);
      e.dims[d].hi -= below(e.dims[d].hi - part.dims[d].hi + 1);
    }
    return e;
  }
};

View placed_view(const TensorType& type, const Extent& part, void* data) {
  return {static_cast<std::byte*>(data), type.dtype, part.shape(), type.shape, part};
}

}  // namespace

TEST_CASE("a device adds terms and sums, and rounds them, to the CPU's bits") {
  auto* gpu = device();
  if (!gpu) return;
  OneThread one;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    Random random(3);
    for (const std::size_t count : sizes)
      for (const std::int32_t exponent : {30, -7, 140}) {
        CAPTURE(count);
        CAPTURE(exponent);
        const auto n = static_cast<std::int64_t>(count);
        const auto terms = floats_of_all_sizes(count, 45 - exponent, exponent, random);
        const auto* there = put(*gpu, terms, shift);
        for (const bool accumulate : {false, true}) {
          auto sums = counts_of_all_sizes(count, random);
          auto* at = put(*gpu, sums, shift);
          add_terms(sums.data(), terms.data(), n, exponent, accumulate, one);
          cuda::add_terms(at, there, n, exponent, accumulate, queue);
          CHECK(same_bits(sums, get(*gpu, at, count)));
          const auto more = counts_of_all_sizes(count, random);
          add_sums(sums.data(), more.data(), n, one);
          cuda::add_sums(at, put(*gpu, more, shift), n, queue);
          CHECK(same_bits(sums, get(*gpu, at, count)));
        }
        for (const std::size_t uses : {0, 1, 3, 32}) {
          CAPTURE(uses);
          const BothGradients g(*gpu, count, uses, exponent, shift, random);
          std::vector<float> out(count);
          auto* at = put(*gpu, out, shift);
          round_sums(out.data(), g.cpu, n, one);
          cuda::round_sums(at, g.gpu, n, queue);
          CHECK(same_bits(out, get(*gpu, at, count)));
        }
      }
  });
}

TEST_CASE("threads of a device go on beyond what it runs at a time") {
  auto* gpu = device();
  if (!gpu) return;
  OneThread one;
  Random random(5);
  const std::size_t n = 132 * 8 * 256 + 1000;
  auto sums = counts_of_all_sizes(n, random);
  const auto more = counts_of_all_sizes(n, random);
  auto* at = put(*gpu, sums, 1);
  cuda::add_sums(at, put(*gpu, more, 1), static_cast<std::int64_t>(n), gpu->queue(0));
  add_sums(sums.data(), more.data(), static_cast<std::int64_t>(n), one);
  CHECK(same_bits(sums, get(*gpu, at, n)));
  gpu->release();
}

TEST_CASE("a device updates by AdamW, and adds vectors, to the CPU's bits") {
  auto* gpu = device();
  if (!gpu) return;
  OneThread one;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    Random random(4);
    for (const std::size_t count : sizes)
      for (const std::size_t uses : {0, 1, 3}) {
        CAPTURE(count);
        CAPTURE(uses);
        const auto n = static_cast<std::int64_t>(count);
        AdamW hyper{.lr = 3e-2f, .beta2 = 0.95f, .weight_decay = 0.1f, .grad_scale = 0.3};
        const BothGradients g(*gpu, count, uses, 40, shift, random);
        auto p = floats_of_all_sizes(count, 2, 20, random), m = floats_of_all_sizes(count, 2, 20, random),
             v = floats_of_all_sizes(count, 2, 20, random);
        for (float& x : v) x *= x;
        const AdamWState here{p.data(), m.data(), v.data()};
        const AdamWState there{put(*gpu, p, shift), put(*gpu, m, shift), put(*gpu, v, shift)};
        const std::vector<float> garbage(count, NAN);
        const AdamWState other{put(*gpu, garbage, shift), put(*gpu, garbage, shift), put(*gpu, garbage, shift)};
        AdamWState from = there, to = there;
        for (const std::int64_t step : {1, 2, 100'003}) {
          CAPTURE(step);
          hyper.step = step;
          to = step == 2 ? other : from;  // in place, elsewhere, in place
          adamw_update(here, here, g.cpu, n, hyper, one);
          cuda::adamw_update(from, to, g.gpu, n, hyper, queue);
          CHECK(same_bits(p, get(*gpu, to.p, count)));
          CHECK(same_bits(m, get(*gpu, to.m, count)));
          CHECK(same_bits(v, get(*gpu, to.v, count)));
          from = to;
        }
        add_into(p.data(), m.data(), n, one);
        cuda::add_into(to.p, to.m, n, queue);
        CHECK(same_bits(p, get(*gpu, to.p, count)));
      }
  });
}

TEST_CASE("a device adds squares of rows to the CPU's bits, of long and of short rows") {
  auto* gpu = device();
  if (!gpu) return;
  OneThread one;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    Random random(6);
    for (const auto& [rows, cols] : {std::pair{0, 7}, {5, 0}, {1, 1}, {21, 3}, {3, 129}, {2, 511}, {2, 512}, {3, 2500}})
      for (const std::size_t uses : {0, 1, 3}) {
        CAPTURE(rows);
        CAPTURE(cols);
        CAPTURE(uses);
        const auto count = static_cast<std::size_t>(rows);
        const BothGradients g(*gpu, count * static_cast<std::size_t>(cols), uses, 45, shift, random);
        std::vector<double> sums(count, -1);
        auto* at = put(*gpu, sums, shift);
        row_square_sums(g.cpu, rows, cols, sums.data(), one);
        cuda::row_square_sums(g.gpu, rows, cols, at, queue);
        CHECK(same_bits(sums, get(*gpu, at, count)));
      }
  });
}

TEST_CASE("a device finds what is not finite where the CPU does") {
  auto* gpu = device();
  if (!gpu) return;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const std::size_t n : sizes)
      for (const float value : {1.0f, std::numeric_limits<float>::max(), 1e-45f, NAN, infinity, -infinity}) {
        std::vector<float> list(n, -0.0f);
        if (n > 0) list[n - 1 - n / 3] = value;
        for (const std::uint32_t before : {0u, 2u}) {
          auto* found = put(*gpu, std::vector<std::uint32_t>{before}, shift);
          cuda::all_finite(put(*gpu, list, shift), static_cast<std::int64_t>(n), found, queue);
          const auto after = get(*gpu, found, 1);
          CHECK(after[0] == (before | (all_finite(list.data(), static_cast<std::int64_t>(n)) ? 0u : 1u)));
        }
      }
  });
}

TEST_CASE("digests by a device are the CPU's, and those of parts add up to the whole's") {
  auto* gpu = device();
  if (!gpu) return;
  OneThread one;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    Random random(7);
    const Shape shape = {7, 5, 11};
    for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::sum64}) {
      Tensor whole(TensorType{dtype, shape});
      for (auto& byte : whole.data) byte = static_cast<std::byte>(random());
      const auto item = static_cast<std::size_t>(size_of(dtype));
      // `shift` elements, whatever their size
      const auto placed = [&](const std::vector<std::byte>& data) { return put(*gpu, data, shift * item); };
      auto* words = put(*gpu, std::vector<std::uint64_t>(2, 0), 0);
      Digest sum{};
      const std::vector<Extent> parts = {{{{0, 2}, {0, 5}, {0, 11}}},
                                         {{{2, 7}, {0, 3}, {0, 11}}},
                                         {{{2, 7}, {3, 5}, {0, 4}}},
                                         {{{2, 7}, {3, 5}, {4, 11}}},
                                         {{{7, 7}, {0, 5}, {0, 11}}}};
      for (const Extent& e : parts) {
        Tensor part = whole.slice(e);
        sum = sum + digest(placed_view(whole.logical, e, part.data.data()), one);
        cuda::digest(placed_view(whole.logical, e, placed(part.data)), words, queue);
        const auto now = get(*gpu, words, 2);
        CHECK(Digest{now[0], now[1]} == sum);
      }
      CHECK(sum == digest(placed_view(whole.logical, whole.extent, whole.data.data()), one));
    }
  });
}

TEST_CASE("initial values by a device are the CPU's, of parts too") {
  auto* gpu = device();
  if (!gpu) return;
  OneThread one;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    const TensorType type{DType::f32, {19, 37}};
    const std::vector<Extent> parts = {
        Extent::whole(type.shape), {{{3, 8}, {0, 37}}}, {{{0, 19}, {5, 18}}}, {{{4, 5}, {7, 8}}}, {{{4, 4}, {0, 37}}}};
    for (const Extent& e : parts) {
      CAPTURE(e);
      std::vector<float> values(static_cast<std::size_t>(e.elements()), 5);
      auto* at = put(*gpu, values, shift);
      init_normal(placed_view(type, e, values.data()), 0xfeedull << 40 | 77, 0.02f, one);
      cuda::init_normal(placed_view(type, e, at), 0xfeedull << 40 | 77, 0.02f, queue);
      CHECK(same_bits(values, get(*gpu, at, values.size())));
      init_constant(placed_view(type, e, values.data()), -0.5f, one);
      cuda::init_constant(placed_view(type, e, at), -0.5f, queue);
      CHECK(same_bits(values, get(*gpu, at, values.size())));
    }
  });
}

TEST_CASE("a device copies extents as troupe::copy_extent does") {
  auto* gpu = device();
  if (!gpu) return;
  each_way(*gpu, [&](void* queue, std::size_t shift) {
    RandomExtents draw{Random(11)};
    for (int turn = 0; turn < 150; ++turn) {
      const Extent whole = Extent::whole(draw.shape()), part = draw.inside(whole);
      const Extent a = draw.around(part, whole);
      const Extent b = turn % 4 == 0 ? part : turn % 4 == 1 ? whole : draw.around(part, whole);
      const std::size_t item = std::size_t{1} << draw.below(4);
      CAPTURE(part);
      CAPTURE(a);
      CAPTURE(b);
      CAPTURE(item);
      std::vector<std::byte> from(static_cast<std::size_t>(a.elements()) * item),
          to(static_cast<std::size_t>(b.elements()) * item);
      for (auto* list : {&from, &to})
        for (auto& byte : *list) byte = static_cast<std::byte>(draw.random());
      auto* src = put(*gpu, from, shift * item);
      auto* dst = put(*gpu, to, shift * item * static_cast<std::size_t>(draw.below(3)));
      copy_extent(part, from.data(), a, to.data(), b, static_cast<std::int64_t>(item));
      cuda::copy_extent(part, src, a, dst, b, static_cast<std::int64_t>(item), queue);
      CHECK(same_bits(to, get(*gpu, dst, to.size())));
    }
  });
}

TEST_CASE("the gradient of a table has the CPU's bits for many tokens and wide rows, added to as well") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = cuda::with_cuda_bodies(standard_ops());
  const OpDef& op = *ops.find("embedding_grad");
  Random random(9);
  // seven blocks of tokens; more rows than blocks of threads; one row has most of the tokens
  const Tensor dy = random_tensor({DType::f32, {2, 350, 1031}}, random);
  Tensor tokens = random_tensor({DType::i32, {2, 350}}, random, -1, 40);
  for (std::int64_t i = 0; i < tokens.size(); i += 3) tokens.as<std::int32_t>()[i] = 17;
  const Attrs attrs{{"rows", std::int64_t{40}}};
  const TensorType types[] = {{DType::f32, {40, 1031}}, {DType::sum64, {40, 1031}}};
  for (const TensorType& type : types)
    for (const std::int64_t lo : {0, 13}) {
      std::vector<Tensor> out = {Tensor(type, Extent{{{lo, 40 - lo / 2}, {0, 1031}}})};
      float peaks[2] = {-0.0f, -0.0f};
      RunOptions options;
      options.accumulate = type.dtype == DType::sum64 && lo > 0;
      if (options.accumulate) {
        options.before = {random_tensor(type, random).slice(out[0].extent)};
      }
      options.peak = &peaks[0];
      const auto cpu = run(op, {dy, tokens}, out, attrs, options);
      options.peak = &peaks[1];
      const auto other = run(on_device(op, *gpu), {dy, tokens}, out, attrs, options);
      CHECK(cpu[0].data == other[0].data);
      CHECK(std::memcmp(&peaks[0], &peaks[1], sizeof peaks[0]) == 0);
    }
}

TEST_CASE("a device drops the elements of any part of a batch that the CPU drops") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = cuda::with_cuda_bodies(standard_ops());
  const OpDef& op = *ops.find("dropout");
  RandomExtents draw{Random(12)};
  for (int turn = 0; turn < 60; ++turn) {
    Shape shape = draw.shape();
    shape.insert(shape.begin(), 1 + draw.below(4));
    const Tensor whole = random_tensor({DType::f32, shape}, draw.random);
    const Extent part = draw.inside(whole.extent);
    CAPTURE(part);
    RunOptions options;
    options.shift = static_cast<int>(draw.below(3));
    options.first_sample = turn;
    const std::vector<Tensor> in = {whole.slice(part)}, out = {Tensor(whole.logical, part)};
    const auto cpu = run(op, in, out, {{"p", 0.4}}, options);
    const auto queue = static_cast<std::size_t>(turn) % gpu->queues();
    CHECK(cpu[0].data == run(on_device(op, *gpu, queue), in, out, {{"p", 0.4}}, options)[0].data);
  }
}

TEST_CASE("a device makes matrices orthogonal to the CPU's bits where a dim is 0, and beyond a tile of squares") {
  auto* gpu = device();
  if (!gpu) return;
  const OpSet ops = cuda::with_cuda_bodies(standard_ops());
  const OpDef& op = *ops.find("orthogonalize");
  Random random(13);
  for (const Shape& shape : {Shape{0, 5}, Shape{5, 0}, Shape{33, 75}, Shape{75, 33}}) {
    const std::vector<Tensor> in = {random_tensor({DType::f32, shape}, random)};
    const auto cpu = run(op, in, Attrs{}, {});
    CHECK(cpu[0].data == run(on_device(op, *gpu), in, Attrs{}, {})[0].data);
  }
}
