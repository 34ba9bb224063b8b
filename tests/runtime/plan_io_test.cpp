// The plan on the wire: nothing is lost, nothing that arrives can end the process.
#include <doctest/doctest.h>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstring>
#include <random>

#include "placement/collective.h"
#include "runtime/plan/plan.capnp.h"
#include "runtime/plan/plan_io.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

void check_same(const Plan& a, const Plan& b) {
  CHECK(a.programs == b.programs);
  CHECK(a.owners == b.owners);
  CHECK(a.seed == b.seed);
  CHECK(a.meshes == b.meshes);
  CHECK(a.stages == b.stages);
  CHECK(a.pipeline == b.pipeline);
  CHECK(a.tensors == b.tensors);
  CHECK(a.exchanges == b.exchanges);
  CHECK(a.params == b.params);
  REQUIRE(a.roles.size() == b.roles.size());
  for (std::size_t r = 0; r < a.roles.size(); ++r) {
    CHECK(a.roles[r].stage == b.roles[r].stage);
    CHECK(a.roles[r].units == b.roles[r].units);
    CHECK(a.roles[r].channels == b.roles[r].channels);
    REQUIRE(a.roles[r].actors.size() == b.roles[r].actors.size());
    for (std::size_t i = 0; i < a.roles[r].actors.size(); ++i) {
      INFO(a.roles[r].actors[i].name);
      CHECK(a.roles[r].actors[i] == b.roles[r].actors[i]);
    }
  }
  CHECK(a.costs == b.costs);
}

/// A plan in which every field differs from its default.
Plan odd_plan() {
  Plan p;
  p.programs = {{"train", {7, 3}, true, kernels::AdamW{0.5f, 0.25f, 0.125f, 0.0625f, 0.03f}},
                {"evaluate", {5, 2, true, true}, false, {}}};
  p.owners = {{0, 1, 1, 0}, {2, 0, 1, 1}};
  p.seed = 0xfedcba9876543210ull;
  p.meshes = {Mesh::dense({{"tp", 2}, {"dp", 3}}, 4)};
  p.meshes[0].ranks.edit()[0] = 77;
  p.stages = 1;
  p.tensors = {
      {"x \"quoted\" \xc3\xa9", DType::i64, {3, 0, 5}, 1, {Sbp::S(1, 64), Sbp::P(), Sbp::B()}, Rate::step, true}};
  p.exchanges = {{"box", 1, Rate::step, {{3, 4}, {5, 6}}, Collective::all_to_all, std::int64_t{1} << 41, 1e-9, 2e-10}};
  p.params = {{"w", 2, Init::Kind::normal, 0.02f, false, 3, 5, 9, true}};
  PlanRole role;
  role.stage = 3;
  role.units = {"a", "", "c"};
  PlanChannel c;
  c.kind = PlanChannel::Kind::feed;
  c.name = "prompt";
  c.after = "token";
  c.at_once = 12;
  c.program = 1;
  c.writer = 4;
  c.writer_port = 5;
  c.readers = {{6, 7}, {-8, 9}};
  c.tensors = {1, 2};
  c.offsets = {64, std::int64_t{1} << 40};
  c.bytes = std::int64_t{1} << 42;
  c.slots = 9;
  c.rate = Rate::step;
  c.initial = true;
  c.ring = 3;
  c.buffer = 4;
  c.buffer_offset = std::int64_t{1} << 41;
  c.area = 5;
  c.shift = 2;
  role.channels = {c};
  PlanActor a;
  a.kind = PlanActor::Kind::digest;
  a.name = "actor";
  a.program = 1;
  a.rate = Rate::step;
  a.stream = "host";
  a.priority = -3;
  a.run = 0xffffffff;
  a.pass = Pass::weights;
  a.virtual_stage = 5;
  a.takes_turns = true;
  a.in = {1, 2, 3};
  a.out = {4};
  Attrs attrs{{"i", std::int64_t{-5}},
              {"d", 0.1},
              {"s", std::string("text")},
              {"bytes", std::string("\0a\0", 3)},
              {"l", std::vector<std::int64_t>{1, -2, 3}},
              {"empty", std::vector<std::int64_t>{}},
              {"nothing", std::string()}};
  a.ops = {{"op",
            "name",
            attrs,
            {{PlanOperand::Where::in, 1, 2, 3, 4}},
            {{PlanOperand::Where::out, 5, 6, 7, 8}, {PlanOperand::Where::scratch, 0, 0, 9, 1}},
            128,
            77}};
  a.exchange = 11;
  a.params = {{2, 3, {{4, 5}, {6, 7}}}, {1, 0, {}}};
  a.cost_s = 1.25e-6;
  a.scratch_bytes = 1000;
  a.op_scratch_offset = 640;
  a.op_state_bytes = std::int64_t{1} << 40;
  a.staging_ring = 6;
  a.staging_buffer = 1;
  a.staging_area = 8;
  a.staging_shift = 3;
  a.closes_step = true;
  role.actors = {a};
  p.roles = {role};
  p.pipeline = {Pipeline::Kind::interleaved, 7, 3, true};
  p.costs = {1e12,
             2e11,
             3e-6,
             1e-5,
             {{"op", {{1, 2, 3}, {4, 5, 6}}}, {"other", {{7, 0, 8}}}},
             {4e-6, 5e9, 6e8, 2e-3},
             {6e-5, 7e8},
             16,
             {0, 3, 3, 1},
             {{3, 5, {7e-3, 8e6}}},
             9e7};
  return p;
}

}  // namespace

TEST_CASE("a plan survives the wire field by field") {
  const auto odd = read_plan(write_plan(odd_plan()));
  REQUIRE_MESSAGE(odd.ok(), odd.status().message());
  check_same(odd_plan(), *odd);
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.tied = true;
  s.dropout = 0.1;
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {3}, {2, 1, 2}}) {
    const auto p = plan(ops, s, dp);
    REQUIRE(p.ok());
    const auto again = read_plan(write_plan(*p));
    REQUIRE_MESSAGE(again.ok(), again.status().message());
    check_same(*p, *again);
    CHECK(write_plan(*again) == write_plan(*p));
  }
}

TEST_CASE("a plan of a newer version is refused by its number") {
  auto bytes = write_plan(odd_plan());
  std::vector<capnp::word> words(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  capnp::FlatArrayMessageReader reader(kj::ArrayPtr<const capnp::word>(words.data(), words.size()));
  capnp::MallocMessageBuilder message;
  message.setRoot(reader.getRoot<wire::Plan>());
  message.getRoot<wire::Plan>().setVersion(plan_version + 41);
  const auto flat = capnp::messageToFlatArray(message);
  const auto* first = reinterpret_cast<const std::byte*>(flat.asBytes().begin());
  const auto read = read_plan({first, flat.asBytes().size()});
  REQUIRE_FALSE(read.ok());
  CHECK(read.status().code() == Code::invalid);
  CHECK(read.status().message().find("version " + std::to_string(plan_version + 41)) != std::string::npos);
  CHECK(read.status().message().find(std::to_string(plan_version)) != std::string::npos);
}

TEST_CASE("10,000 corrupted or truncated plans are each an error or a plan, never the end of the process") {
  const auto ops = kernels::standard_ops();
  Shape_ s;
  s.layers = 1;
  const auto p = plan(ops, s, {2});
  REQUIRE(p.ok());
  const auto good = write_plan(*p);
  std::mt19937 random(17);
  int errors = 0, plans = 0;
  for (int i = 0; i < 10'000; ++i) {
    auto bad = good;
    for (auto n = 1 + random() % 8; n > 0; --n) {
      // Half of the damage goes where the pointers and sizes are.
      const auto at = random() % 2 ? random() % bad.size() : random() % std::min<std::size_t>(bad.size(), 256);
      if (random() % 2) bad[at] ^= static_cast<std::byte>(1u << random() % 8);
      else bad[at] = static_cast<std::byte>(random());
    }
    if (random() % 10 == 0) bad.resize(random() % bad.size());
    const auto read = read_plan(bad);
    read.ok() ? ++plans : ++errors;
    if (!read.ok()) CHECK(read.status().code() == Code::invalid);
  }
  MESSAGE(errors << " errors, " << plans << " plans");
  CHECK(errors > 100);
  CHECK(plans > 100);
}

TEST_CASE("a short message that claims a vast list is refused, not believed") {
  // A list whose elements take no bytes on the wire: four million tensors in ten words.
  std::vector<std::uint64_t> words(10, 0);
  words[0] = std::uint64_t{9} << 32;                      // one segment of nine words
  words[1] = std::uint64_t{8} << 48;                      // the root: no data, eight pointers
  words[2 + 4] = std::uint64_t{1u << 22 << 3} << 32 | 1;  // `tensors`: a list of 2^22 elements of no size
  const auto* first = reinterpret_cast<const std::byte*>(words.data());
  const auto read = read_plan({first, words.size() * 8});
  CHECK_FALSE(read.ok());
}

TEST_CASE("nothing, noise and another message are not plans") {
  CHECK_FALSE(read_plan({}).ok());
  std::vector<std::byte> noise(1000);
  std::mt19937 random(3);
  for (auto& b : noise) b = static_cast<std::byte>(random());
  CHECK_FALSE(read_plan(noise).ok());
  CHECK_FALSE(read_plan(std::vector<std::byte>(7, std::byte{1})).ok());
}
