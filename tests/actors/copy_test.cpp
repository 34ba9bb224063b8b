// Copies: what lies in their memory while one is taken, and which slot each takes.
#include "actors/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "actors/version_word.h"

using namespace troupe;
using namespace troupe::actors;

namespace {

constexpr std::int64_t bytes = 4, slot_bytes = 128, version_offset = 64;

/// Calls `look` before each run of bytes, and stops after `most` of them.
struct Looking final : Parallel {
  std::function<void()> look;
  std::int64_t most = 1000, done = 0;
  int threads() const override { return 1; }
  bool stopping() const override { return done >= most; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t i = 0; i < n; ++i, ++done) {
      if (look) look();
      body(i);
    }
  }
};

struct Copies {
  std::vector<std::byte> params = std::vector<std::byte>(2 * bytes), memory = std::vector<std::byte>(2 * slot_bytes);
  VersionWord word(int slot) { return VersionWord(memory.data() + slot * slot_bytes + version_offset); }
  bool holds(int slot, std::int64_t version) {
    const auto* at = memory.data() + slot * slot_bytes;
    return word(slot).version() == version &&
           std::all_of(at, at + 2 * bytes, [&](std::byte b) { return b == static_cast<std::byte>(version); });
  }
  CopyBody body(std::int32_t kept) {
    // The second run first: offsets of both sides count.
    return CopyBody({{bytes, 0, bytes}, {0, bytes, bytes}}, {params.data(), 2 * bytes},
                    {memory.data(), slot_bytes, version_offset}, kept);
  }
  Status run(CopyBody& body, std::int64_t version, Looking& parallel) {
    std::fill(params.begin(), params.end(), static_cast<std::byte>(version));
    ActContext context;
    context.step = version;
    context.act.in.resize(1);
    return body.run(context, parallel);
  }
};

}  // namespace

TEST_CASE("a slot holds no version while a copy is written there, and the other slot keeps the copy before it") {
  Copies c;
  CopyBody body = c.body(-1);
  for (std::int64_t version = 5; version < 9; ++version) {
    const int slot = static_cast<int>(version - 5) % 2;
    Looking looking;
    looking.look = [&] {
      CHECK(c.word(slot).version() == -1);
      CHECK((version == 5 || c.holds(1 - slot, version - 1)));
    };
    REQUIRE(c.run(body, version, looking).ok());
    CHECK(looking.done == 2);
    CHECK(c.holds(slot, version));
  }
}

TEST_CASE("a copy that is stopped leaves no version in its slot, and the other slot as it was") {
  Copies c;
  CopyBody body = c.body(-1);
  Looking whole, cut;
  REQUIRE(c.run(body, 1, whole).ok());
  cut.most = 1;
  CHECK_FALSE(c.run(body, 2, cut).ok());
  CHECK(c.word(1).version() == -1);
  CHECK(c.holds(0, 1));
}

TEST_CASE("the first copy leaves the slot that the job goes on from") {
  for (const std::int32_t kept : {0, 1}) {
    Copies c;
    CopyBody before = c.body(1 - kept);
    Looking looking;
    REQUIRE(c.run(before, 3, looking).ok());
    CopyBody body = c.body(kept);
    REQUIRE(c.run(body, 4, looking).ok());
    CHECK(c.holds(kept, 3));
    CHECK(c.holds(1 - kept, 4));
  }
}
