// Rings: channels that share memory are accepted only if they can never hold it at the same time.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/verify/verify.h"
#include "tests/runtime/planted.h"

using namespace mlp;

namespace {

Plan ringed(std::int32_t zero, const std::vector<std::int64_t>& dp = {2}) {
  Shape_ s;
  s.layers = 5;
  auto p = plan(kernels::standard_ops(), s, dp, zero);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const Status ok = verify(*p);
  REQUIRE_MESSAGE(ok.ok(), ok.message());
  return *std::move(p);
}

std::string refusal(const Plan& p) {
  const Status s = verify(p);
  CHECK_FALSE(s.ok());
  return s.message();
}

}  // namespace

TEST_CASE("a buffer whose next user waits for no turn is refused by name, whichever turn is missing") {
  for (const std::int32_t zero : {2, 3}) {
    const Plan good = ringed(zero);
    int planted = 0;
    for (std::size_t i = 0; i < good.roles[0].channels.size(); ++i) {
      const PlanChannel& turn = good.roles[0].channels[i];
      if (turn.kind != PlanChannel::Kind::turn || turn.name.rfind("turn.", 0) != 0) continue;
      Plan p = good;
      planted::remove_channel(p.roles[0], static_cast<std::int32_t>(i));
      const auto message = refusal(p);
      CHECK_MESSAGE(message.find("does not pass the turn") != std::string::npos, message);
      CHECK_MESSAGE(message.find("'" + turn.name.substr(5) + "'") != std::string::npos, message);
      ++planted;
    }
    CHECK(planted >= 5);  // a ring over the five layers, and with ZeRO 3 those of what is gathered
  }
}

TEST_CASE("a ring needs exactly one token for each of its buffers") {
  const Plan good = ringed(3);
  int planted = 0;
  for (std::size_t i = 0; i < good.roles[0].channels.size(); ++i) {
    if (good.roles[0].channels[i].kind != PlanChannel::Kind::turn ||
        good.roles[0].channels[i].name.rfind("turn.", 0) != 0)
      continue;
    Plan p = good;
    p.roles[0].channels[i].initial = !p.roles[0].channels[i].initial;
    const auto message = refusal(p);
    CHECK_MESSAGE((message.find("tokens: it needs one") != std::string::npos ||
                   message.find("does not pass") != std::string::npos),
                  message);
    ++planted;
  }
  CHECK(planted > 0);
}

TEST_CASE(
    "channels that are put into a buffer of a ring without its turns, or where another of the same turn lies, are "
    "refused") {
  const Plan good = ringed(3, {2, 2});
  int planted = 0;
  for (std::size_t s = 0; s < good.roles.size(); ++s)
    for (std::size_t i = 0; i < good.roles[s].channels.size(); ++i) {
      const PlanChannel& c = good.roles[s].channels[i];
      if (c.ring < 0) continue;
      Plan p = good;
      p.roles[s].channels[i].buffer = 1 - c.buffer;
      const bool shared = std::any_of(
          good.roles[s].channels.begin(), good.roles[s].channels.end(),
          [&](const auto& other) { return other.ring == c.ring && other.buffer == 1 - c.buffer; });
      if (shared) CHECK(refusal(p).find("stage " + std::to_string(s)) != std::string::npos);
      p = good;
      p.roles[s].channels[i].slots = 2;
      CHECK(refusal(p).find("'" + c.name + "'") != std::string::npos);
      p = good;
      p.roles[s].channels[i].buffer_offset = 4;
      CHECK(refusal(p).find("'" + c.name + "'") != std::string::npos);
      ++planted;
    }
  CHECK(planted > 0);
  for (std::size_t i = 0; i < good.roles[0].channels.size(); ++i) {  // a stash is no member of a ring
    if (good.roles[0].channels[i].kind != PlanChannel::Kind::stash) continue;
    Plan p = good;
    p.roles[0].channels[i].ring = 0;
    CHECK(refusal(p).find("is part of a ring") != std::string::npos);
  }
}

TEST_CASE(
    "exchanges that land in one buffer without a turn between them, or with another number of tokens, are refused by "
    "name") {
  for (const std::int32_t zero : {0, 1, 2}) {
    CAPTURE(zero);
    const Plan good = ringed(zero);
    int shared = 0, planted = 0;
    for (const auto& a : good.roles[0].actors) shared += a.staging_ring >= 0 ? 1 : 0;
    CHECK(shared >= 5);
    for (std::size_t i = 0; i < good.roles[0].channels.size(); ++i) {
      const PlanChannel& turn = good.roles[0].channels[i];
      if (turn.kind != PlanChannel::Kind::turn || turn.name.rfind("staging.", 0) != 0) continue;
      Plan p = good;
      p.roles[0].channels[i].initial = !turn.initial;
      CHECK(refusal(p).find("shares its staging memory in a cycle of") != std::string::npos);
      p = good;
      planted::remove_channel(p.roles[0], static_cast<std::int32_t>(i));
      CHECK(refusal(p).find("'" + good.roles[0].actors[static_cast<std::size_t>(turn.writer)].name +
                            "' shares its staging memory") != std::string::npos);
      ++planted;
    }
    CHECK(planted == shared);
  }
}

TEST_CASE("an op of which a place would have only its share of a gathered parameter is refused by the name of that") {
  const auto ops = kernels::standard_ops();
  const Plan good = ringed(3);
  REQUIRE(check_ops(good, 0, ops).ok());
  int gathered = 0;
  for (std::size_t i = 0; i < good.tensors.size(); ++i) {
    if (good.tensors[i].rate != Rate::round) continue;
    ++gathered;
    Plan p = good;
    p.tensors[i].sbp[static_cast<std::size_t>(dp_axis(p.meshes[0]))] = Sbp::S(0);
    const Status s = check_ops(p, 0, ops);
    CHECK_FALSE(s.ok());
    CHECK(s.message().find("works on '" + p.tensors[i].name + "', of which a place has a part only") !=
          std::string::npos);
  }
  CHECK(gathered > 5);
}
