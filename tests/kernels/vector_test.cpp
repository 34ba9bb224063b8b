#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "fixture.h"
#include "kernels/add_into.h"
#include "kernels/digest.h"
#include "kernels/initial.h"
#include "kernels/optimizer.h"
#include "kernels/square_sums.h"

using namespace troupe;
using namespace troupe::kernels;

namespace {

View view_of(Tensor& t) { return {t.data.data(), t.logical.dtype, t.extent.shape(), t.logical.shape, t.extent}; }

/// Rectangles that cover (rows, cols) once.
std::vector<Extent> cuts(std::int64_t rows, std::int64_t cols) {
  const auto r = rows / 3, c = cols / 2 + 1;
  return {{{{0, r}, {0, cols}}}, {{{r, rows}, {0, c}}}, {{{r, rows}, {c, cols}}}};
}

std::vector<float> randoms(std::size_t n, unsigned seed) {
  Random random(seed);
  std::uniform_real_distribution<float> real(-1, 1);
  std::vector<float> v(n);
  for (auto& x : v) x = real(random);
  return v;
}

}  // namespace

TEST_CASE("adamw_update does what PyTorch's AdamW does, step after step") {
  OneThread one;
  const std::size_t n = 53;
  auto p = randoms(n, 1);
  std::vector<float> m(n, 0), v(n, 0);
  std::vector<double> P(p.begin(), p.end()), M(n, 0), V(n, 0);
  AdamW a{.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 0.25};
  for (a.step = 1; a.step <= 5; ++a.step) {
    const auto g = randoms(n, static_cast<unsigned>(a.step + 10));
    adamw_update(p.data(), {.rounded = g.data()}, m.data(), v.data(), static_cast<std::int64_t>(n), a, one);
    for (std::size_t i = 0; i < n; ++i) {
      const double x = 0.25 * static_cast<double>(g[i]);
      P[i] *= 1 - 1e-2 * 0.1;
      M[i] = 0.9 * M[i] + 0.1 * x;
      V[i] = 0.95 * V[i] + 0.05 * x * x;
      const double correct1 = 1 - std::pow(0.9, static_cast<double>(a.step));
      const double correct2 = 1 - std::pow(0.95, static_cast<double>(a.step));
      P[i] -= 1e-2 / correct1 * M[i] / (std::sqrt(V[i]) / std::sqrt(correct2) + 1e-8);
    }
  }
  CHECK(distance({p.begin(), p.end()}, P) <= 1e-5);
  CHECK(distance({m.begin(), m.end()}, M) <= 1e-5);
  CHECK(distance({v.begin(), v.end()}, V) <= 1e-5);
}

TEST_CASE("NU-0 (kernels): add_into and adamw_update give an element the same bits wherever the vector is cut") {
  OneThread one;
  TwoThreads two;
  const std::int64_t n = 40000;
  const auto g = randoms(n, 1), p0 = randoms(n, 2), m0 = randoms(n, 3);
  auto v0 = randoms(n, 4);
  for (auto& x : v0) x = std::abs(x);
  auto p = p0, m = m0, v = v0, sum = p0;
  const AdamW a{.grad_scale = 0.3, .step = 7};
  adamw_update(p.data(), {.rounded = g.data()}, m.data(), v.data(), n, a, one);
  add_into(sum.data(), g.data(), n, one);
  for (const std::int64_t piece : {13, 16, 16385, 39999}) {  // 13: every element is once in a tail
    auto p1 = p0, m1 = m0, v1 = v0, sum1 = p0;
    for (std::int64_t i = 0; i < n; i += piece) {
      const auto w = std::min(piece, n - i);
      Parallel& par = piece > 100 ? static_cast<Parallel&>(two) : one;
      adamw_update(p1.data() + i, {.rounded = g.data() + i}, m1.data() + i, v1.data() + i, w, a, par);
      add_into(sum1.data() + i, g.data() + i, w, par);
    }
    CHECK(p1 == p);
    CHECK(m1 == m);
    CHECK(v1 == v);
    CHECK(sum1 == sum);
  }
}

TEST_CASE("row_square_sums adds in the documented order, whatever the address or the threads") {
  OneThread one;
  TwoThreads two;
  for (const std::int64_t cols : {1, 7, 8, 100, 333}) {
    const std::int64_t rows = 131;
    const auto x = randoms(static_cast<std::size_t>(rows * cols), 5);
    std::vector<double> sums(static_cast<std::size_t>(rows)), expected, again(static_cast<std::size_t>(rows));
    row_square_sums({.rounded = x.data()}, rows, cols, sums.data(), one);
    for (std::int64_t r = 0; r < rows; ++r) {
      double s[8] = {};
      for (std::int64_t c = 0; c < cols; ++c) {
        const double v = x[static_cast<std::size_t>(r * cols + c)];
        s[c % 8] += v * v;
      }
      expected.push_back(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
    }
    CHECK(sums == expected);
    std::vector<float> moved(x.size() + 3);
    std::copy(x.begin(), x.end(), moved.begin() + 3);
    row_square_sums({.rounded = moved.data() + 3}, rows, cols, again.data(), two);
    CHECK(again == expected);
  }
}

TEST_CASE("all_finite finds one NaN or infinity wherever it is, and takes no finite value for one") {
  using Float = std::numeric_limits<float>;
  CHECK(all_finite(nullptr, 0));
  for (const std::int64_t n : {1, 4096, 4097, 10000}) {
    CAPTURE(n);
    std::vector<float> values(static_cast<std::size_t>(n) + 1, 1.0f);
    values.back() = Float::quiet_NaN();  // behind the last: not read
    for (const float x : {0.0f, -0.0f, 1.0f, Float::max(), -Float::max(), Float::min(), Float::denorm_min()}) {
      std::fill(values.begin(), values.end() - 1, x);
      CHECK(all_finite(values.data(), n));
    }
    for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = i % 2 ? Float::max() : -Float::max();
    CHECK(all_finite(values.data(), n));
    for (const std::int64_t i : {std::int64_t{0}, n / 2, n - 1})
      for (const float bad : {Float::infinity(), -Float::infinity(), Float::quiet_NaN(), -Float::quiet_NaN()}) {
        CAPTURE(i);
        CAPTURE(bad);
        const float good = std::exchange(values[static_cast<std::size_t>(i)], bad);
        CHECK_FALSE(all_finite(values.data(), n));
        values[static_cast<std::size_t>(i)] = good;
      }
  }
}

TEST_CASE("initial values are a function of key and index: parts agree bitwise with the whole, and are normal") {
  TwoThreads two;
  OneThread one;
  const TensorType type{DType::f32, {301, 203}};
  Tensor whole(type);
  init_normal(view_of(whole), 42, 0.5f, one);
  for (const auto& cut : cuts(301, 203)) {
    Tensor part(type, cut);
    init_normal(view_of(part), 42, 0.5f, two);
    CHECK(part.data == whole.slice(cut).data);
  }
  double sum = 0, squares = 0, fourth = 0;
  const auto values = whole.values();
  for (const double x : values) sum += x, squares += x * x, fourth += x * x * x * x;
  const double n = static_cast<double>(values.size());
  CHECK(std::abs(sum / n) < 0.01);
  CHECK(squares / n == doctest::Approx(0.25).epsilon(0.02));
  CHECK(fourth / n / (squares / n * squares / n) == doctest::Approx(3).epsilon(0.05));
  Tensor other(type);
  init_normal(view_of(other), 43, 0.5f, one);
  CHECK(other.data != whole.data);
  init_constant(view_of(other), 1.5f, two);
  for (const double x : other.values()) REQUIRE(x == 1.5);
}

TEST_CASE("dropout: parts and later samples draw the numbers that the whole batch draws") {
  const OpSet ops = standard_ops();
  const OpDef& op = *ops.find("dropout");
  Random random(1);
  const Attrs attrs{{"p", 0.25}};
  const auto x = random_tensor({DType::f32, {6, 50, 67}}, random);
  const auto whole = run(op, {x}, attrs);
  std::int64_t dropped = 0;
  for (const double v : whole[0].values()) dropped += v == 0;
  CHECK(static_cast<double>(dropped) / static_cast<double>(x.size()) == doctest::Approx(0.25).epsilon(0.05));
  for (const Extent& cut :
       {Extent{{{0, 6}, {3, 50}, {0, 67}}}, Extent{{{1, 4}, {0, 50}, {5, 66}}}, Extent{{{5, 6}, {7, 8}, {1, 2}}}}) {
    const auto part = run(op, {x.slice(cut)}, {Tensor(x.logical, cut)}, attrs);
    CHECK(part[0].data == whole[0].slice(cut).data);
  }
  // Samples 2..5 as a microbatch of their own.
  const auto late = x.slice({{{2, 6}, {0, 50}, {0, 67}}});
  Tensor alone(TensorType{DType::f32, {4, 50, 67}});
  alone.data = late.data;
  RunOptions options;
  options.first_sample = 2;
  CHECK(run(op, {alone}, attrs, options)[0].data == whole[0].slice(late.extent).data);
}

TEST_CASE("digests of parts add up to the whole's, and notice any change") {
  OneThread one;
  TwoThreads two;
  Random random(2);
  for (const DType dtype : {DType::f32, DType::f64, DType::i32}) {
    auto whole = random_tensor({dtype, {61, 43}}, random, -100, 100);
    const Digest d = digest(view_of(whole), one);
    Digest sum{};
    for (const auto& cut : cuts(61, 43)) {
      auto part = whole.slice(cut);
      sum = sum + digest(view_of(part), two);
    }
    CHECK(sum == d);
    for (const std::size_t byte : {std::size_t{0}, whole.data.size() / 2, whole.data.size() - 1}) {
      auto changed = whole;
      changed.data[byte] ^= std::byte{1};
      const Digest e = digest(view_of(changed), one);
      CHECK(e[0] != d[0]);
      CHECK(e[1] != d[1]);
    }
    auto swapped = whole;  // the same values elsewhere
    const auto item = static_cast<std::size_t>(size_of(dtype));
    std::swap_ranges(swapped.data.begin(), swapped.data.begin() + static_cast<std::ptrdiff_t>(item),
                     swapped.data.begin() + static_cast<std::ptrdiff_t>(7 * item));
    CHECK(digest(view_of(swapped), one)[0] != d[0]);
  }
}
