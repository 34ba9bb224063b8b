// The norm of a gradient whose parts lie on several places: each row once, rows along the fixed tree.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "actors/optimizer.h"
#include "devices/parallel.h"
#include "placement/tree.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

struct Matrix {
  std::int64_t rows = 13, cols = 7;
  std::vector<std::int64_t> values;  // counts of 2^-exponent
  std::int32_t exponent = 40;

  explicit Matrix(unsigned seed) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < rows * cols; ++i)
      values.push_back(std::llrint(std::ldexp(static_cast<float>(random() % 2000) / 999 - 1, exponent)));
  }

  /// The square sums that the norm actor of a place with this part tells.
  std::vector<double> told(const Extent& part) const {
    std::vector<std::int64_t> own(static_cast<std::size_t>(part.elements()));
    const Extent whole = Extent::whole({rows, cols});
    copy_extent(part, reinterpret_cast<const std::byte*>(values.data()), whole,
                reinterpret_cast<std::byte*>(own.data()), part, 8);
    ParamPart p;
    p.extent = part;
    p.nodes = nodes(part);
    p.grads = {{0, 0}};
    ParamPart elsewhere = p;  // another place tells of it
    elsewhere.nodes.clear();
    std::vector<double> out;
    std::int32_t slot = exponent;  // of the parameters: the exponent is all that a norm reads there
    NormBody body(
        {elsewhere, p},
        {{reinterpret_cast<std::byte*>(own.data()), part.elements() * 8}, {reinterpret_cast<std::byte*>(&slot), 4}}, 1,
        5, [&](GradientPart g) {
          CHECK(out.empty());  // one message, however many nodes
          CHECK(g.first_square_sum == 5);
          CHECK(g.told.peaks.empty());
          out = std::move(g.told.square_sums);
        });
    ActContext context;
    context.act.in.resize(2);
    SerialParallel serial;
    REQUIRE(body.run(context, serial).ok());
    return out;
  }
  std::vector<Term> nodes(const Extent& part) const {
    return tree_cover({static_cast<std::int32_t>(part.dims[0].lo), static_cast<std::int32_t>(part.dims[0].hi)},
                      static_cast<std::int32_t>(rows));
  }
  /// What the session makes of what places with these rows of some columns tell.
  double sum(const std::vector<Range>& of_rows, Range of_cols) const {
    std::vector<Term> all;
    std::vector<double> sums;
    for (const Range r : of_rows) {
      const Extent part{{r, of_cols}};
      const auto own = nodes(part);
      const auto values = told(part);
      REQUIRE(values.size() == own.size());
      all.insert(all.end(), own.begin(), own.end());
      sums.insert(sums.end(), values.begin(), values.end());
    }
    const auto tree = TreeSum::over(all, static_cast<std::int32_t>(rows));
    REQUIRE_MESSAGE(tree.ok(), tree.status().message());
    return (*tree)(sums.data());
  }
};

}  // namespace

TEST_CASE(
    "NU-2 (topologies): square sums of a gradient have the same bits wherever its rows, or those of some of its "
    "columns, are split") {
  const Matrix m(1);
  double exact = 0;
  for (auto v : m.values)
    exact += std::ldexp(static_cast<double>(v), -m.exponent) * std::ldexp(static_cast<double>(v), -m.exponent);
  CHECK(m.sum({{0, 13}}, {0, 7}) == doctest::Approx(exact).epsilon(1e-6));  // elements are rounded to f32
  for (const Range cols : {Range{0, 7}, Range{0, 3}, Range{3, 7}}) {
    const double whole = m.sum({{0, 13}}, cols);
    for (std::int64_t cut = 1; cut < 13; ++cut) {
      CHECK(m.sum({{0, cut}, {cut, 13}}, cols) == whole);
      for (std::int64_t next = cut + 1; next < 13; ++next)
        CHECK(m.sum({{0, cut}, {cut, next}, {next, 13}}, cols) == whole);
    }
  }
}

namespace {

/// An update of one parameter with two uses, whose slot ends with the exponent of its sums.
struct Update {
  static constexpr std::int64_t n = 11;
  std::vector<float> slot = std::vector<float>(n + 1), moments = std::vector<float>(2 * n, 0.0f);
  std::vector<std::vector<std::int64_t>> sums{std::vector<std::int64_t>(n), std::vector<std::int64_t>(n)};
  std::vector<std::byte> commit = std::vector<std::byte>(static_cast<std::size_t>(commit_bytes(3)));

  explicit Update(std::int32_t exponent) {
    std::mt19937 random(4);
    for (std::int64_t i = 0; i < n; ++i) {
      slot[i] = static_cast<float>(i) / 3;
      for (auto& use : sums) use[i] = static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31);
    }
    std::memcpy(&slot[n], &exponent, 4);
  }
  void run(bool void_step) {
    const Commit c{.grad_scale = 0.5, .lr = 0.125, .update = 3, .void_step = void_step};
    const std::int32_t exponents[3] = {101, 102, 103};
    std::memcpy(commit.data(), &c, sizeof c);
    std::memcpy(commit.data() + sizeof c, exponents, sizeof exponents);
    ParamPart part;
    part.extent = Extent::whole({n});
    part.grads = {{0, 0}, {1, 0}};
    part.exponent_offset = n * 4;
    part.index = 1;
    UpdateBody body({part},
                    {{reinterpret_cast<std::byte*>(sums[0].data()), n * 8},
                     {reinterpret_cast<std::byte*>(sums[1].data()), n * 8},
                     {commit.data(), 64}},
                    2, {reinterpret_cast<std::byte*>(slot.data()), (n + 1) * 4},
                    reinterpret_cast<std::byte*>(moments.data()), {});
    ActContext context;
    context.act.in.resize(3);
    context.act.out.resize(1);
    SerialParallel serial;
    REQUIRE(body.run(context, serial).ok());
  }
  std::int32_t exponent() const {
    std::int32_t e;
    std::memcpy(&e, &slot[n], 4);
    return e;
  }
};

}  // namespace

TEST_CASE(
    "an update adds the uses of a parameter as integers, rounds once, and leaves the commit's exponent in the slot") {
  Update u(20);
  auto expected = u.slot;
  std::vector<float> gradient, moments(u.moments);
  for (std::int64_t i = 0; i < Update::n; ++i)
    gradient.push_back(static_cast<float>(std::ldexp(static_cast<double>(u.sums[0][i] + u.sums[1][i]), -20)));
  kernels::AdamW hyper;
  hyper.lr = 0.125f;
  hyper.grad_scale = 0.5;
  hyper.step = 3;
  SerialParallel serial;
  kernels::adamw_update(expected.data(), {.rounded = gradient.data()}, moments.data(), moments.data() + Update::n,
                        Update::n, hyper, serial);
  u.run(false);
  CHECK(std::equal(expected.begin(), expected.end() - 1, u.slot.begin()));
  CHECK(u.moments == moments);
  CHECK(u.exponent() == 102);
}

TEST_CASE("the update of a void step changes nothing but the exponent") {
  Update u(20);
  for (std::size_t i = 0; i < u.moments.size(); ++i) u.moments[i] = 0.25f + 0.01f * static_cast<float>(i);
  const auto slot = u.slot, moments = u.moments;
  u.run(true);
  CHECK(std::equal(slot.begin(), slot.end() - 1, u.slot.begin()));
  CHECK(u.moments == moments);
  CHECK(u.exponent() == 102);
}
