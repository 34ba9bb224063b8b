// Gradients along lanes: what a place has added up after its microbatches is what the tree of tree.h says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <tuple>

#include "actors/segment.h"
#include "devices/parallel.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

constexpr std::int64_t kElements = 37;
using Values = std::vector<float>;

/// Values whose sum depends on the order of addition.
std::vector<Values> random_gradients(std::int64_t microbatches, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Values> all(static_cast<std::size_t>(microbatches), Values(kElements));
  for (auto& g : all)
    for (auto& v : g) v = std::ldexp(static_cast<float>(static_cast<int>(random() % 20001) - 10000), static_cast<int>(random() % 24) - 20);
  return all;
}

Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// One owner's sum of lanes [lo, hi): inside a lane in index order, lanes split at the largest power of two below
/// their number. Written down without tree.h.
Values tree_sum(const std::vector<Values>& gradients, int lo, int hi, int lanes) {
  if (hi - lo == 1) {
    const auto total = static_cast<int>(gradients.size());
    const int base = total / lanes, more = total % lanes;
    const int first = lo * base + std::min(lo, more), count = base + (lo < more ? 1 : 0);
    Values sum = gradients[first];
    for (int m = first + 1; m < first + count; ++m) sum = plus(std::move(sum), gradients[m]);
    return sum;
  }
  int half = 1;
  while (2 * half < hi - lo) half *= 2;
  return plus(tree_sum(gradients, lo, lo + half, lanes), tree_sum(gradients, lo + half, hi, lanes));
}

/// dw (+)= x, honouring Call::accumulate as a weight gradient does.
kernels::OpDef weight_gradient() {
  kernels::OpDef op;
  op.name = "copy_grad";
  op.accumulates = 1;
  op.cpu = [](const kernels::Call& c) {
    for (std::int64_t i = 0; i < c.in[0].size(); ++i) {
      const float x = c.in[0].as<float>()[i];
      c.out[0].as<float>()[i] = c.accumulate ? c.out[0].as<float>()[i] + x : x;
    }
  };
  return op;
}

kernels::View vector_view() {
  kernels::View v;
  v.shape = v.logical = {kElements};
  v.extent = Extent::whole(v.shape);
  return v;
}

}  // namespace

TEST_CASE("TR-1: the copies of every owner are bitwise the tree's sums, for any lanes, microbatches, shares and turns") {
  SerialParallel serial;
  const kernels::OpDef op = weight_gradient();
  int owners = 0;
  for (std::int32_t lanes = 1; lanes <= 9; ++lanes)
    for (std::int64_t total : {std::int64_t{lanes}, std::int64_t{lanes + 1}, std::int64_t{2 * lanes}, std::int64_t{3 * lanes + 2}}) {
      const auto gradients = random_gradients(total, static_cast<unsigned>(lanes * 100 + total));
      for (std::int64_t dp = 1; dp <= lanes; ++dp)
        for (std::int64_t index = 0; index < dp; ++index, ++owners) {
          const Term owned = lanes_of(dp, index, lanes);
          // Lanes in runs of `turn` that take turns, microbatch by microbatch; a turn of all lanes is index order.
          const std::int32_t turn = 1 + owners % (owned.hi - owned.lo);
          std::vector<std::tuple<std::int64_t, std::int32_t, std::int32_t>> order;   // position in the run, run, microbatch
          std::map<std::int32_t, std::int64_t> length;
          for (auto lane = owned.lo; lane < owned.hi; ++lane)
            for (auto r = microbatches_of(lane, lanes, total); r.lo < r.hi; ++r.lo) {
              const auto run = (lane - owned.lo) / turn;
              order.push_back({length[run]++, run, static_cast<std::int32_t>(r.lo)});
            }
          std::sort(order.begin(), order.end());
          std::vector<std::int32_t> mine;
          for (const auto& [position, run, m] : order) mine.push_back(m);
          auto schedule = lane_schedule(mine, lanes, total);
          const auto copies = schedule.copies;
          const std::int64_t copy_bytes = (kElements * 4 + 63) / 64 * 64;
          // One more copy behind the planned ones: nobody may touch it. Garbage inside: nobody may add to it.
          std::vector<std::byte> slot(static_cast<std::size_t>(copy_bytes * (copies + 1)), std::byte{0x7f});
          Values in(kElements);
          SegmentSpec spec;
          spec.ops.resize(1);
          spec.ops[0].def = &op;
          spec.ops[0].in = {{Operand::Where::in, 0, 0, false, vector_view()}};
          spec.ops[0].out = {{Operand::Where::out, 0, 0, true, vector_view()}};
          spec.in = {{reinterpret_cast<std::byte*>(in.data()), kElements * 4}};
          spec.out = {{slot.data(), copy_bytes * copies}};
          spec.copy_bytes = {copy_bytes};
          spec.lanes = {schedule.acts};
          SegmentBody body(std::move(spec));
          for (std::size_t i = 0; i < mine.size(); ++i) {
            in = gradients[static_cast<std::size_t>(mine[i])];
            ActContext c;
            c.act.in = {{{}, true}};
            c.act.out = {{0, i == 0, i + 1 == mine.size()}};
            c.microbatch = mine[i];
            c.local = static_cast<std::int32_t>(i);
            REQUIRE(body.run(c, serial).ok());
          }
          INFO("lanes ", lanes, " microbatches ", total, " dp ", dp, " index ", index);
          std::vector<Term> nodes;
          for (const auto& [node, copy] : schedule.held) {
            nodes.push_back(node);
            REQUIRE(copy < copies);
            const auto expected = tree_sum(gradients, node.lo, node.hi, lanes);
            CHECK(std::memcmp(slot.data() + copy * copy_bytes, expected.data(), kElements * 4) == 0);
          }
          CHECK(nodes == tree_cover(owned, lanes));
          bool clean = true;
          for (auto i = copies * copy_bytes; i < (copies + 1) * copy_bytes; ++i) clean &= slot[static_cast<std::size_t>(i)] == std::byte{0x7f};
          CHECK(clean);
        }
    }
  CHECK(owners > 500);
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
    spec.ops[i].in = {{Operand::Where::in, i, 0, false, v}};
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
