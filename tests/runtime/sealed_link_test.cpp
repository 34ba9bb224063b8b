#include "runtime/agents/sealed_link.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

using namespace troupe;
using namespace troupe::runtime;

namespace {

using Bytes = std::vector<std::byte>;

std::array<std::byte, 32> key(int of) {
  std::array<std::byte, 32> out{};
  out[0] = static_cast<std::byte>(of);
  return out;
}

Bytes message(std::size_t bytes, int value) { return Bytes(bytes, static_cast<std::byte>(value)); }

/// The bytes of a header with the first message, and of each message behind it.
std::vector<Bytes> sealed(Seal& seal, const std::vector<Bytes>& messages) {
  std::vector<Bytes> out;
  for (const Bytes& m : messages) seal.seal(m, out.emplace_back());
  return out;
}

Status unseal(const std::vector<Bytes>& parts, std::deque<Bytes>& out) {
  Unseal unseal(key(1));
  for (const Bytes& part : parts) TROUPE_TRY(unseal.take(part, out));
  return {};
}

constexpr std::size_t header_bytes = 24;

}  // namespace

TEST_CASE("messages of every size arrive in their order, in whatever pieces they come") {
  const std::vector<Bytes> sent{message(0, 0), message(1, 1), message(100, 2), message(70'000, 3), message(1 << 20, 4)};
  for (const std::size_t piece : {std::size_t{997}, std::size_t{65'536}, std::size_t{1} << 22}) {
    CAPTURE(piece);
    Seal seal(key(1));
    Bytes all;
    for (const Bytes& m : sent) seal.seal(m, all);
    Unseal unseal(key(1));
    std::deque<Bytes> got;
    for (std::size_t at = 0; at < all.size(); at += piece)
      REQUIRE(unseal.take(std::span(all).subspan(at, std::min(piece, all.size() - at)), got).ok());
    CHECK(std::equal(got.begin(), got.end(), sent.begin(), sent.end()));
  }
}

TEST_CASE("one byte at a time is enough") {
  Seal seal(key(1));
  Bytes all;
  for (int i = 0; i < 3; ++i) seal.seal(message(50, i), all);
  Unseal unseal(key(1));
  std::deque<Bytes> got;
  for (const std::byte& b : all) REQUIRE(unseal.take(std::span(&b, 1), got).ok());
  CHECK(got == std::deque<Bytes>{message(50, 0), message(50, 1), message(50, 2)});
}

TEST_CASE("a byte that is changed, whichever, ends the link, and its message is not handed on") {
  Seal seal(key(1));
  const auto parts = sealed(seal, {message(20, 1), message(20, 2)});
  for (std::size_t part = 0; part < parts.size(); ++part)
    for (std::size_t at = 0; at < parts[part].size(); ++at) {
      CAPTURE(at);
      auto changed = parts;
      changed[part][at] ^= std::byte{1};
      std::deque<Bytes> got;
      const Status s = unseal(changed, got);
      CHECK(got.size() <= part);
      const std::size_t size_at = part == 0 ? header_bytes : 0;
      if (at < size_at || at >= size_at + 4) CHECK_FALSE(s.ok());  // else more bytes may be awaited
    }
}

TEST_CASE("a message that is left out, repeated, or moved ends the link") {
  Seal seal(key(1));
  const auto p = sealed(seal, {message(20, 1), message(20, 2), message(20, 3)});
  const Bytes again(p[0].begin() + header_bytes, p[0].end());
  for (const auto& parts : {std::vector{p[0], p[2]}, std::vector{p[0], again}, std::vector{p[0], p[1], p[1]},
                            std::vector{p[0], p[2], p[1]}}) {
    std::deque<Bytes> got;
    CHECK_FALSE(unseal(parts, got).ok());
    CHECK(got.size() == parts.size() - 1 - (parts[1] == p[2] && parts.size() == 3 ? 1 : 0));
  }
}

TEST_CASE("what another key has sealed is refused") {
  Seal seal(key(2));
  std::deque<Bytes> got;
  CHECK_FALSE(unseal(sealed(seal, {message(5, 0)}), got).ok());
  CHECK(got.empty());
}

TEST_CASE("a size that no message has is refused before anything is kept for it") {
  Seal seal(key(1));
  const auto parts = sealed(seal, {message(5, 0)});
  for (const std::uint32_t size : {0u, 16u, sealed_bytes_max + 18, ~0u}) {
    CAPTURE(size);
    Bytes bytes(parts[0].begin(), parts[0].begin() + header_bytes);
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(size >> (8 * i)));
    std::deque<Bytes> got;
    const Status s = unseal({bytes}, got);
    CHECK(s.code() == Code::invalid);
    CHECK(s.message().find("a message of " + std::to_string(size) + " bytes") != std::string::npos);
  }
}

TEST_CASE("a link queues what its socket does not take, and says when its peer is gone") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const SessionKeys keys{key(1), key(2)}, mirrored{key(2), key(1)};
  SealedLink one(ends[0], keys);
  auto other = std::make_unique<SealedLink>(ends[1], mirrored);
  std::deque<Bytes> got;
  CHECK(other->receive(got).ok());  // nothing has come
  const Bytes large = message(8 << 20, 9);
  REQUIRE(one.post(large).ok());
  REQUIRE(one.post(message(3, 1)).ok());
  CHECK(one.unsent());
  for (int i = 0; i < 100'000 && got.size() < 2; ++i) {
    REQUIRE(other->receive(got).ok());
    REQUIRE(one.flush().ok());
  }
  CHECK_FALSE(one.unsent());
  CHECK(got == std::deque<Bytes>{large, message(3, 1)});
  REQUIRE(other->post(message(4, 2)).ok());
  got.clear();
  REQUIRE(one.receive(got).ok());
  CHECK(got == std::deque<Bytes>{message(4, 2)});
  other.reset();
  CHECK(one.receive(got).code() == Code::unavailable);
  CHECK(one.post(message(1, 0)).code() == Code::unavailable);
}
