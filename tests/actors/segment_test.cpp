// Gradients in a segment: what it has added up after its microbatches, and what it tells of their terms.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "actors/segment.h"
#include "devices/parallel.h"
#include "kernels/exact_sum.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

constexpr std::int64_t kElements = 37;
constexpr std::int32_t kExponent = 30;
using Values = std::vector<float>;

/// Values whose sum in floating point depends on the order of addition.
std::vector<Values> random_gradients(std::int64_t microbatches, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Values> all(static_cast<std::size_t>(microbatches), Values(kElements));
  for (auto& g : all)
    for (auto& v : g)
      v = std::ldexp(static_cast<float>(static_cast<int>(random() % 20001) - 10000),
                     static_cast<int>(random() % 24) - 20);
  return all;
}

/// dw = or += x, as a weight gradient does: sums or terms, and the largest of them.
kernels::OpDef weight_gradient() {
  kernels::OpDef op;
  op.name = "copy_grad";
  op.accumulates = 1;
  op.cpu = [](const kernels::Call& c) {
    const auto* x = c.in[0].as<float>();
    const auto n = c.in[0].size();
    REQUIRE(c.out[0].peak);
    CHECK(*c.out[0].peak == 0);
    for (std::int64_t i = 0; i < n; ++i)
      if (!(std::abs(x[i]) <= *c.out[0].peak) && !std::isnan(*c.out[0].peak)) *c.out[0].peak = std::abs(x[i]);
    if (c.out[0].dtype == DType::sum64)
      kernels::add_terms(c.out[0].as<std::int64_t>(), x, n, c.out[0].exponent, c.accumulate, *c.par);
    else std::copy_n(x, n, c.out[0].as<float>());
    CHECK((c.out[0].dtype == DType::sum64 || !c.accumulate));
  };
  return op;
}

kernels::View vector_view(DType dtype = DType::f32) {
  kernels::View v;
  v.dtype = dtype;
  v.shape = v.logical = {kElements};
  v.extent = Extent::whole(v.shape);
  return v;
}

/// One segment that makes one gradient, and what it tells of it.
struct Maker {
  kernels::OpDef op = weight_gradient();
  Values in = Values(kElements);
  std::vector<std::int32_t> params = {7, kExponent};  // the exponent lies behind something else
  std::vector<std::byte> slot;
  std::vector<GradientPart> told;
  std::unique_ptr<SegmentBody> body;
  std::shared_ptr<std::atomic<std::int64_t>> progress = std::make_shared<std::atomic<std::int64_t>>(0);

  Maker(DType dtype, std::int32_t acts, int term_bits = 50)
      : slot(static_cast<std::size_t>(kElements * size_of(dtype) + 64), std::byte{0x7f}) {
    SegmentSpec spec;
    spec.ops.resize(1);
    spec.ops[0].def = &op;
    spec.ops[0].name = "the.op";
    spec.ops[0].in = {{Operand::Where::in, 0, 0, -1, vector_view()}};
    spec.ops[0].out = {{Operand::Where::out, 0, 0, 0, vector_view(dtype)}};
    spec.in = {{reinterpret_cast<std::byte*>(in.data()), kElements * 4},
               {reinterpret_cast<std::byte*>(params.data()), 8}};
    spec.out = {{slot.data(), kElements * size_of(dtype)}};
    spec.gradients = {{"w", 1, 4, term_bits}};
    spec.acts_per_step = acts;
    spec.progress = progress;
    spec.first_peak = 3;
    spec.tell = [this](GradientPart part) { told.push_back(std::move(part)); };
    body = std::make_unique<SegmentBody>(std::move(spec));
  }
  void act(const Values& gradient, std::int32_t microbatch, std::int32_t local, bool first, bool last) {
    const Status s = try_act(gradient, microbatch, local, first, last);
    REQUIRE_MESSAGE(s.ok(), s.message());
  }
  Status try_act(const Values& gradient, std::int32_t microbatch, std::int32_t local, bool first, bool last) {
    in = gradient;
    ActContext c;
    c.act.in = {{{}, true}, {{}, true}};
    c.act.out = {{0, first, last}};
    c.step = 5;
    c.microbatch = microbatch;
    c.local = local;
    SerialParallel serial;
    return body->run(c, serial);
  }
};

}  // namespace

TEST_CASE(
    "NU-2 (topologies): the sums of places that share the microbatches in any way, in any order, add up to the same "
    "bits") {
  std::mt19937 random(1);
  for (int draw = 0; draw < 60; ++draw) {
    const auto total = static_cast<std::int32_t>(1 + random() % 13);
    const auto gradients = random_gradients(total, 100 + static_cast<unsigned>(draw));
    std::vector<std::int64_t> expected(kElements, 0);
    for (const auto& g : gradients)
      for (std::int64_t i = 0; i < kElements; ++i)
        expected[i] += std::llrint(std::ldexp(static_cast<double>(g[i]), kExponent));
    const auto places = 1 + random() % static_cast<unsigned>(total);
    std::vector<std::vector<std::int32_t>> owned(places);
    for (std::int32_t m = 0; m < total; ++m)
      owned[static_cast<std::size_t>(m) < places ? static_cast<std::size_t>(m) : random() % places].push_back(m);
    std::vector<std::int64_t> sum(kElements, 0);
    for (auto& mine : owned) {
      std::shuffle(mine.begin(), mine.end(), random);
      Maker maker(DType::sum64, static_cast<std::int32_t>(mine.size()));
      for (std::size_t i = 0; i < mine.size(); ++i)
        maker.act(gradients[mine[i]], mine[i], static_cast<std::int32_t>(i), i == 0, i + 1 == mine.size());
      for (std::int64_t i = 0; i < kElements; ++i) sum[i] += reinterpret_cast<std::int64_t*>(maker.slot.data())[i];
      CHECK(std::all_of(maker.slot.end() - 64, maker.slot.end(), [](std::byte b) { return b == std::byte{0x7f}; }));
    }
    CHECK(sum == expected);
  }
}

TEST_CASE("a gradient that leaves microbatch by microbatch is that microbatch's alone") {
  const auto gradients = random_gradients(3, 9);
  Maker maker(DType::f32, 3);
  for (std::int32_t m = 0; m < 3; ++m) {
    maker.act(gradients[m], m, m, true, true);
    CHECK(std::memcmp(maker.slot.data(), gradients[m].data(), kElements * 4) == 0);
    CHECK(*maker.progress == m + 1);  // an op that begins is progress
  }
}

TEST_CASE(
    "a segment tells once a step the largest term, and the lowest microbatch with one that its sum has no room for") {
  // by act: microbatch, its largest term
  const auto told = [](const std::vector<std::pair<std::int32_t, float>>& largest, int term_bits = 50) {
    Maker maker(DType::sum64, static_cast<std::int32_t>(largest.size()), term_bits);
    for (std::size_t i = 0; i < largest.size(); ++i) {
      Values g(kElements, 0.25f);
      g[11] = -largest[i].second;
      maker.act(g, largest[i].first, static_cast<std::int32_t>(i), i == 0, i + 1 == largest.size());
      CHECK(maker.told.size() == (i + 1 == largest.size() ? 1 : 0));
    }
    const GradientPart& part = maker.told.at(0);
    CHECK(part.first_peak == 3);
    CHECK(part.told.square_sums.empty());
    REQUIRE(part.told.peaks.size() == 1);
    REQUIRE(part.told.bad.size() <= 1);
    if (part.told.bad.empty()) return std::vector<double>{part.told.peaks[0], 0};
    CHECK(part.told.bad[0].peak == 0);
    return std::vector<double>{part.told.peaks[0], 1.0 + part.told.bad[0].microbatch};
  };
  using V = std::vector<double>;
  CHECK(told({{0, 1}, {1, 3}, {2, 2}}) == V{3, 0});
  // 2^(35 - 30) = 32 is the bound.
  CHECK(told({{0, 1}, {1, std::nextafter(32.0f, 0.0f)}}, 35) == V{std::nextafter(32.0f, 0.0f), 0});
  CHECK(told({{0, 1}, {1, 32}}, 35) == V{32, 2});
  CHECK(told({{4, 40}, {0, 1}, {2, 33}, {3, 64}}, 35) == V{64, 3});
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(told({{0, 1}, {3, inf}, {1, 2}}) == V{inf, 4});
  const auto with_nan = told({{0, inf}, {2, nan}, {1, 2}});
  CHECK(std::isnan(with_nan[0]));
  CHECK(with_nan[1] == 1);
  // 1e7 exceeds the sum; the segment tells the microbatch of the NaN
  const auto later_nan = told({{2, 1e7f}, {5, nan}});
  CHECK(std::isnan(later_nan[0]));
  CHECK(later_nan[1] == 6);
}

TEST_CASE("an op that stores a gradient and tells of no term of it is an error by name, unless the gradient is zero") {
  for (const auto dtype : {DType::f32, DType::sum64})
    for (const bool zero : {true, false}) {
      CAPTURE(zero);
      Maker maker(dtype, 2);
      maker.op.cpu = [](const kernels::Call& c) {
        for (std::int64_t i = 0; i < c.out[0].size(); ++i)
          if (c.out[0].dtype == DType::f32) c.out[0].as<float>()[i] = c.in[0].as<float>()[i];
          else c.out[0].as<std::int64_t>()[i] = static_cast<std::int64_t>(c.in[0].as<float>()[i]);
      };
      Values g(kElements, 0);
      // a sum is whole with the last act of its slot
      Status s = maker.try_act(g, 0, 0, true, dtype == DType::f32);
      REQUIRE(s.ok());
      if (!zero) g[30] = 8;
      s = maker.try_act(g, 1, 1, dtype == DType::f32, true);
      CHECK(s.ok() == zero);
      if (!zero) CHECK(s.message().find("op 'copy_grad' has stored a gradient of 'w' and told of no term of it") == 0);
    }
}

TEST_CASE("an op that refuses the values of a call fails the act with its error and the op's name, and does not run") {
  Maker maker(DType::f32, 1);
  int runs = 0;
  maker.op.check = [](const kernels::Call& c) -> Status {
    if (c.in[0].as<float>()[3] == 8) return invalid("token 8 is beyond the table");
    return {};
  };
  maker.op.cpu = [&runs](const kernels::Call& c) {
    ++runs;
    kernels::put_terms(c.out[0], c.in[0].as<float>(), c.accumulate, *c.par);
  };
  maker.act(Values(kElements, 1), 0, 0, true, true);
  CHECK(runs == 1);
  Values wrong(kElements, 1);
  wrong[3] = 8;
  const Status s = maker.try_act(wrong, 0, 0, true, true);
  CHECK(s.code() == Code::invalid);
  CHECK(s.message() == "op 'the.op': token 8 is beyond the table");
  CHECK(runs == 1);
}

TEST_CASE("a segment's report carries the values of its input, of any number type, with step and microbatch") {
  SerialParallel serial;
  std::vector<Report> reports;
  double loss = 2.5;
  std::int64_t token = 123456789012;
  SegmentSpec spec;
  spec.ops.resize(2);
  spec.ops[0].name = "loss";
  spec.ops[1].name = "token";
  for (int i = 0; i < 2; ++i) {
    kernels::View v;
    v.shape = v.logical = {1};
    v.extent = Extent::whole(v.shape);
    v.dtype = i ? DType::i64 : DType::f64;
    spec.ops[i].in = {{Operand::Where::in, i, 0, -1, v}};
  }
  spec.in = {{reinterpret_cast<std::byte*>(&loss), 8}, {reinterpret_cast<std::byte*>(&token), 8}};
  spec.report = [&](std::uint16_t program, Report r) {
    CHECK(program == 2);
    reports.push_back(std::move(r));
  };
  SegmentBody body(std::move(spec));
  ActContext c;
  c.program = 2;
  c.step = 9;
  c.microbatch = 4;
  c.act.in.resize(2);
  REQUIRE(body.run(c, serial).ok());
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].name == "loss");
  CHECK(reports[0].values == std::vector<double>{2.5});
  CHECK(reports[0].step == 9);
  CHECK(reports[0].microbatch == 4);
  CHECK(reports[1].values == std::vector<double>{123456789012.0});
}
