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

/// An update of one parameter with two uses: in place, or from slot 1 to slot 0. A slot has the parameter, the exponent
/// of its sums, both moments.
struct Update {
  static constexpr std::int64_t n = 11, values = 3 * n + 1, moments = n + 1;
  bool keeps_version;
  std::vector<float> memory = std::vector<float>(2 * values, -7.0f);
  std::vector<std::vector<std::int64_t>> sums{std::vector<std::int64_t>(n), std::vector<std::int64_t>(n)};
  std::vector<std::byte> commit = std::vector<std::byte>(static_cast<std::size_t>(commit_bytes(3)));

  Update(bool keeps_version, std::int32_t exponent) : keeps_version(keeps_version) {
    std::mt19937 random(4);
    for (std::int64_t i = 0; i < n; ++i) {
      from()[i] = static_cast<float>(i) / 3;
      for (auto& use : sums) use[i] = static_cast<std::int64_t>(random()) - (std::int64_t{1} << 31);
    }
    std::memcpy(from() + n, &exponent, 4);
    for (std::int64_t i = 0; i < 2 * n; ++i) from()[moments + i] = 0.25f + 0.01f * static_cast<float>(i);
  }
  float* from() { return memory.data() + (keeps_version ? values : 0); }
  float* to() { return memory.data(); }
  /// Of the slot that it has written.
  std::vector<float> parameter() { return {to(), to() + n}; }
  std::vector<float> both_moments() { return {to() + moments, to() + values}; }
  std::int32_t exponent() {
    std::int32_t e;
    std::memcpy(&e, to() + n, 4);
    return e;
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
    part.moments_offset = moments * 4;
    part.index = 1;
    const PortMemory slots{reinterpret_cast<std::byte*>(memory.data()), values * 4};
    UpdateBody body({part},
                    {{reinterpret_cast<std::byte*>(sums[0].data()), n * 8},
                     {reinterpret_cast<std::byte*>(sums[1].data()), n * 8},
                     {commit.data(), 64},
                     slots},
                    2, keeps_version ? 3 : -1, slots, {});
    ActContext context;
    context.act.in.resize(4);
    context.act.in[3].token.slot = 1;
    context.act.out.resize(1);
    SerialParallel serial;
    REQUIRE(body.run(context, serial).ok());
  }
};

}  // namespace

TEST_CASE(
    "an update adds the uses of a parameter as integers, rounds once, and leaves the commit's exponent in the slot; "
    "what it does not write in place it leaves as it was") {
  for (const bool keeps_version : {false, true}) {
    Update u(keeps_version, 20);
    const std::vector<float> before(u.from(), u.from() + Update::values);
    std::vector<float> p(before.begin(), before.begin() + Update::n), gradient,
        m(before.begin() + Update::moments, before.end());
    for (std::int64_t i = 0; i < Update::n; ++i)
      gradient.push_back(static_cast<float>(std::ldexp(static_cast<double>(u.sums[0][i] + u.sums[1][i]), -20)));
    kernels::AdamW hyper;
    hyper.lr = 0.125f;
    hyper.grad_scale = 0.5;
    hyper.step = 3;
    SerialParallel serial;
    kernels::adamw_update(p.data(), {.rounded = gradient.data()}, m.data(), m.data() + Update::n, Update::n, hyper,
                          serial);
    u.run(false);
    CHECK(u.parameter() == p);
    CHECK(u.both_moments() == m);
    CHECK(u.exponent() == 102);
    if (keeps_version) CHECK(std::equal(before.begin(), before.end(), u.from()));
  }
}

TEST_CASE("the update of a void step changes nothing but the exponent") {
  for (const bool keeps_version : {false, true}) {
    Update u(keeps_version, 20);
    const std::vector<float> p(u.from(), u.from() + Update::n),
        m(u.from() + Update::moments, u.from() + Update::values);
    u.run(true);
    CHECK(u.parameter() == p);
    CHECK(u.both_moments() == m);
    CHECK(u.exponent() == 102);
  }
}
