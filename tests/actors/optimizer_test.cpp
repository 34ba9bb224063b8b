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
  std::vector<std::int64_t> values;   // counts of 2^-exponent
  std::int32_t exponent = 40;

  explicit Matrix(unsigned seed) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < rows * cols; ++i)
      values.push_back(std::llrint(std::ldexp(static_cast<float>(random() % 2000) / 999 - 1, exponent)));
  }

  /// What the norm actor of a place with this part reports.
  std::vector<double> reported(const Extent& part) const {
    std::vector<std::int64_t> own(static_cast<std::size_t>(part.elements()));
    const Extent whole = Extent::whole({rows, cols});
    copy_extent(part, reinterpret_cast<const std::byte*>(values.data()), whole, reinterpret_cast<std::byte*>(own.data()), part, 8);
    ParamPart p;
    p.name = "w";
    p.extent = part;
    p.rows = rows;
    p.column = part.dims[1].lo;
    p.grads = {{0, 0}};
    std::vector<double> out;
    std::int32_t slot = exponent;   // of the parameters: the exponent is all that a norm reads there
    NormBody body({p}, {{reinterpret_cast<std::byte*>(own.data()), part.elements() * 8}, {reinterpret_cast<std::byte*>(&slot), 4}}, 1,
                  [&](std::uint16_t, Report r) { out = std::move(r.values); });
    ActContext context;
    context.act.in.resize(2);
    SerialParallel serial;
    REQUIRE(body.run(context, serial).ok());
    return out;
  }
};

std::vector<double> joined(std::vector<double> a, const std::vector<double>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("NU-2: a norm has the same bits wherever its rows are split") {
  const Matrix m(1);
  const auto whole = combine_row_sums("w", m.reported({{{0, 13}, {0, 7}}}), 13);
  REQUIRE(whole.ok());
  CHECK(*whole > 0);
  for (std::int64_t cut = 1; cut < 13; ++cut) {
    const auto low = m.reported({{{0, cut}, {0, 7}}}), high = m.reported({{{cut, 13}, {0, 7}}});
    for (const auto& parts : {joined(low, high), joined(high, low)}) {
      const auto sum = combine_row_sums("w", parts, 13);
      REQUIRE_MESSAGE(sum.ok(), sum.status().message());
      CHECK(*sum == *whole);
    }
  }
}

TEST_CASE("NU-2: the norm of columns that lie on several places is the sum of their parts, wherever rows are split") {
  const Matrix m(2);
  const auto whole = combine_row_sums("w", m.reported({{{0, 13}, {0, 7}}}), 13);
  REQUIRE(whole.ok());
  for (std::int64_t cut = 1; cut < 7; ++cut) {
    const auto parts = joined(m.reported({{{0, 13}, {0, cut}}}), m.reported({{{0, 13}, {cut, 7}}}));
    const auto sum = combine_row_sums("w", parts, 13);
    REQUIRE_MESSAGE(sum.ok(), sum.status().message());
    CHECK(*sum == doctest::Approx(*whole).epsilon(1e-12));
    for (std::int64_t row = 1; row < 13; ++row) {
      std::vector<double> pieces;
      for (const Range rows : {Range{row, 13}, Range{0, row}})
        for (const Range columns : {Range{cut, 7}, Range{0, cut}}) pieces = joined(std::move(pieces), m.reported({{rows, columns}}));
      CHECK(*combine_row_sums("w", pieces, 13) == *sum);
    }
  }
}

TEST_CASE("norms that leave rows out, overlap or are of other rows are refused, and the message names the rows") {
  auto refused = [](const std::vector<double>& reported, const std::string& part) {
    const auto sum = combine_row_sums("w", reported, 6);
    REQUIRE_FALSE(sum.ok());
    CHECK_MESSAGE(sum.status().message().find("'w'") != std::string::npos, sum.status().message());
    CHECK_MESSAGE(sum.status().message().find(part) != std::string::npos, sum.status().message());
  };
  // The tree over 6 rows: [0, 6) = [0, 4) + [4, 6).
  CHECK(*combine_row_sums("w", {0, 4, 6, 2, 0, 0, 4, 1}, 6) == 3);
  CHECK(*combine_row_sums("w", {0, 4, 6, 2, 9, 0, 6, 10, 0, 0, 4, 1}, 6) == 13);
  CHECK(*combine_row_sums("w", {}, 0) == 0);
  refused({}, "no norm is of rows [0, 6) of the 6");
  refused({0, 4, 6, 2}, "no norm is of rows [0, 4)");
  refused({0, 0, 4, 1}, "no norm is of rows [4, 6)");
  refused({0, 0, 6, 1, 3, 0, 4, 1}, "no norm is of rows [4, 6)");
  refused({0, 0, 2, 1, 0, 4, 6, 2}, "no norm is of rows [2, 4)");
  refused({0, 0, 4, 1, 0, 4, 6, 2, 0, 2, 4, 1}, "overlap in rows [2, 4)");
  refused({0, 0, 6, 1, 0, 4, 6, 2}, "overlap in rows [4, 6)");
  refused({0, 0, 6, 1, 0, 0, 6, 1}, "two norms are of rows [0, 6)");
  refused({0, 0, 3, 1, 0, 3, 6, 2}, "rows [0, 3)");
  refused({0, 0, 8, 1}, "does not have");
  refused({0, -1, 2, 1}, "does not have");
  refused({0, 2, 2, 1}, "does not have");
  refused({-1, 0, 6, 1}, "does not have");
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
    part.name = "w";
    part.extent = Extent::whole({n});
    part.grads = {{0, 0}, {1, 0}};
    part.exponent_offset = n * 4;
    part.index = 1;
    UpdateBody body({part}, {{reinterpret_cast<std::byte*>(sums[0].data()), n * 8}, {reinterpret_cast<std::byte*>(sums[1].data()), n * 8}, {commit.data(), 64}}, 2,
                    {reinterpret_cast<std::byte*>(slot.data()), (n + 1) * 4}, reinterpret_cast<std::byte*>(moments.data()), {});
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

TEST_CASE("an update adds the uses of a parameter as integers, rounds once, and leaves the commit's exponent in the slot") {
  Update u(20);
  auto expected = u.slot;
  std::vector<float> gradient, moments(u.moments);
  for (std::int64_t i = 0; i < Update::n; ++i) gradient.push_back(static_cast<float>(std::ldexp(static_cast<double>(u.sums[0][i] + u.sums[1][i]), -20)));
  kernels::AdamW hyper;
  hyper.lr = 0.125f;
  hyper.grad_scale = 0.5;
  hyper.step = 3;
  SerialParallel serial;
  kernels::adamw_update(expected.data(), {.rounded = gradient.data()}, moments.data(), moments.data() + Update::n, Update::n, hyper, serial);
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
