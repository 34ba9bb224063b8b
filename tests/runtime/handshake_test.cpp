#include "runtime/agents/handshake.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

using namespace troupe;
using namespace troupe::runtime;

namespace {

using Bytes = std::vector<std::byte>;
using End = Handshake::End;

const TokenKey& token() {
  static const TokenKey key = key_of("a token of thirty-two characters, or more");
  return key;
}

/// Both ends of a handshake, and what each has sent.
struct Both {
  Handshake joins, accepts;
  Bytes of_joins, of_accepts;
  explicit Both(const TokenKey& a = token(), const TokenKey& b = token())
      : joins(End::joins, a), accepts(End::accepts, b) {}
  /// Until both are done, or the first error. `change` sees what is sent, as it travels.
  Status run(const std::function<void(End, Bytes&)>& change = {}) {
    for (int turn = 0; turn < 4; ++turn)
      for (const End from : {End::joins, End::accepts}) {
        Bytes bytes = (from == End::joins ? joins : accepts).take_out();
        if (bytes.empty()) continue;
        if (change) change(from, bytes);
        Bytes& sent = from == End::joins ? of_joins : of_accepts;
        sent.insert(sent.end(), bytes.begin(), bytes.end());
        Handshake& to = from == End::joins ? accepts : joins;
        for (std::size_t at = 0, n = 0; at < bytes.size() && (n = to.awaits()) > 0; at += n) {
          REQUIRE(at + n <= bytes.size());
          TROUPE_TRY(to.take(std::span(bytes).subspan(at, n)));
        }
      }
    return {};
  }
};

}  // namespace

TEST_CASE("two ends with the same token agree on keys, other ones each time") {
  Both a, b;
  REQUIRE(a.run().ok());
  REQUIRE(b.run().ok());
  CHECK(a.joins.awaits() == 0);
  CHECK(a.accepts.awaits() == 0);
  CHECK(a.joins.keys().sends == a.accepts.keys().receives);
  CHECK(a.joins.keys().receives == a.accepts.keys().sends);
  CHECK(a.joins.keys().sends != a.joins.keys().receives);
  CHECK(a.joins.keys().sends != b.joins.keys().sends);
}

TEST_CASE("an end with another token is refused, and is shown no proof (HS-2 who asks proves first)") {
  Both both(key_of("another token of thirty-two characters"), token());
  const Status s = both.run();
  CHECK(s.code() == Code::invalid);
  CHECK(s.message() == "the peer has another token");
  CHECK(both.accepts.awaits() > 0);
  CHECK(both.of_accepts.size() == 64);  // its opening
}

TEST_CASE("an end that joins where no run listens, or one with another token, may try again: a run may come there") {
  for (const bool small_order : {false, true}) {
    Handshake joins(End::joins, token());
    (void)joins.take_out();
    Status s = joins.take(Bytes(64, small_order ? std::byte{0} : std::byte{9}));
    if (s.ok()) s = joins.take(Bytes(32, std::byte{9}));
    CHECK(s.code() == Code::unavailable);
    CHECK(s.message() == "what listens there is no run of Troupe, or one with another token");
  }
}

TEST_CASE("what was heard on one connection proves nothing on another one (HS-1 challenge)") {
  Both heard;
  REQUIRE(heard.run().ok());
  REQUIRE(heard.of_joins.size() == 96);
  Handshake accepts(End::accepts, token());
  (void)accepts.take_out();
  REQUIRE(accepts.take(std::span(heard.of_joins).first(64)).ok());
  CHECK_FALSE(accepts.take(std::span(heard.of_joins).subspan(64)).ok());
  CHECK(accepts.take_out().empty());
  Handshake joins(End::joins, token());
  REQUIRE(joins.take(std::span(heard.of_accepts).first(64)).ok());
  CHECK_FALSE(joins.take(std::span(heard.of_accepts).subspan(64)).ok());
}

TEST_CASE("an end that is sent back what it has sent is not convinced") {
  for (const End end : {End::joins, End::accepts}) {
    Handshake one(end, token());
    REQUIRE(one.take(one.take_out()).ok());
    const Bytes proof = one.take_out();
    CHECK(proof.size() == (end == End::joins ? 32 : 0));
    CHECK_FALSE(one.take(end == End::joins ? proof : Bytes(32)).ok());
  }
}

TEST_CASE("a byte that is changed on its way, whichever, ends the handshake") {
  for (const End from : {End::joins, End::accepts})
    for (std::size_t at = 0; at < 96; ++at) {
      CAPTURE(at);
      Both both;
      std::size_t passed = 0;
      const Status s = both.run([&](End of, Bytes& bytes) {
        if (of != from) return;
        if (at >= passed && at < passed + bytes.size()) bytes[at - passed] ^= std::byte{1};
        passed += bytes.size();
      });
      CHECK_FALSE(s.ok());
    }
}

TEST_CASE("a public key that gives every end the same secret is refused") {
  Handshake accepts(End::accepts, token());
  const Status s = accepts.take(Bytes(64));
  CHECK(s.message() == "the peer has sent no public key");
}

TEST_CASE("a token is a file that its owner alone may read, of enough characters") {
  const auto path = std::filesystem::temp_directory_path() / ("troupe-token-" + std::to_string(::getpid()));
  const auto write = [&](const std::string& text, mode_t mode) {
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return read_token(path);
  };
  const std::string good(32, 'x');
  const auto key = write(good, 0600);
  REQUIRE_MESSAGE(key.ok(), key.status().message());
  CHECK(*key == key_of(good));
  CHECK(*write("\n " + good + "\r\n", 0400) == *key);
  CHECK(*write(good + "y", 0600) != *key);
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0601}) {
    const auto open_to_all = write(good, mode);
    REQUIRE_FALSE(open_to_all.ok());
    CHECK(open_to_all.status().message().find("chmod 600") != std::string::npos);
  }
  CHECK(write(good.substr(1), 0600).status().message().find("has 31 characters, and needs 32") != std::string::npos);
  CHECK(write("", 0600).status().message().find("has 0 characters") != std::string::npos);
  CHECK(write(std::string(4097, 'x'), 0600).status().message().find("more than 4096 bytes") != std::string::npos);
  CHECK(write(std::string(4096, 'x'), 0600).ok());
  std::filesystem::remove(path);
  CHECK(read_token(path).status().code() == Code::io);
  CHECK(read_token("/dev/null").status().message().find("is no file") != std::string::npos);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);  // without a writer: the call must not wait
  CHECK(read_token(path).status().message().find("is no file") != std::string::npos);
  std::filesystem::remove(path);
}
