#include <doctest/doctest.h>

#include "actors/control_channel.h"
#include "tests/last_words.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

struct Bench {
  std::vector<std::byte> memory = std::vector<std::byte>(64);
  std::vector<std::pair<std::int32_t, Token>> sent;
  ControlChannel port;
  explicit Bench(std::int32_t slots, int readers = 2)
      : port("commit", slots,
             [&] {
               std::vector<Reader> r;
               for (int i = 0; i < readers; ++i) r.push_back({i, 0, 0, false});
               return r;
             }(),
             {memory.data(), 16}) {}
  auto send() {
    return [this](const Reader& r, const Token& t) { sent.push_back({r.actor, t}); };
  }
  void push(std::int64_t step, unsigned char value) {
    Token t;
    t.step = step;
    port.push(t, std::vector<std::byte>(16, std::byte{value}), send());
  }
};

}  // namespace

TEST_CASE("a control token reaches every reader with its payload in the slot, numbered in order") {
  Bench b(2);
  b.push(4, 0xaa);
  REQUIRE(b.sent.size() == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(b.sent[i].first == i);
    CHECK(b.sent[i].second.step == 4);
    CHECK(b.sent[i].second.sequence == 0);
  }
  CHECK(b.memory[16 * b.sent[0].second.slot] == std::byte{0xaa});
  b.push(5, 0xbb);
  REQUIRE(b.sent.size() == 4);
  CHECK(b.sent[2].second.sequence == 1);
  CHECK(b.sent[2].second.slot != b.sent[0].second.slot);
}

TEST_CASE("the session may speak at any time: tokens wait, in order, until all readers have acked a slot") {
  Bench b(1);
  for (int s = 0; s < 3; ++s) b.push(s, static_cast<unsigned char>(s));
  CHECK(b.sent.size() == 2);
  CHECK(b.port.waiting() == 2);
  b.port.ack(0, b.send());
  CHECK(b.sent.size() == 2);
  CHECK(b.memory[0] == std::byte{0});  // nothing is overwritten while an actor reads it
  b.port.ack(0, b.send());
  CHECK(b.sent.size() == 4);
  CHECK(b.sent[2].second.step == 1);
  CHECK(b.memory[0] == std::byte{1});
  b.port.ack(0, b.send());
  b.port.ack(0, b.send());
  CHECK(b.sent.back().second.step == 2);
  CHECK(b.port.waiting() == 0);
}

TEST_CASE("a control channel without readers swallows its tokens") {
  Bench b(1, 0);
  for (int s = 0; s < 5; ++s) b.push(s, 1);
  CHECK(b.port.waiting() == 0);
  CHECK(b.sent.empty());
}

TEST_CASE("SL-6 (strict acks): a control channel's ack too many ends the process") {
  CHECK(last_words([] {
          Bench b(1, 1);
          b.push(0, 1);
          b.port.ack(0, b.send());
          b.port.ack(0, b.send());
        }).find("commit") != std::string::npos);
}
