#include <doctest/doctest.h>

#include <cstring>

#include "comm/match.h"
#include "devices/base/philox.h"

using namespace troupe;
using namespace troupe::comm;

namespace {

Header header_of(std::uint32_t sequence) {
  Header h;
  h.job = 7;
  h.generation = 1;
  h.sequence = sequence;
  return h;
}

std::span<const std::byte> bytes(const Header& h) { return std::as_bytes(std::span(&h, 1)); }

}  // namespace

TEST_CASE("MA-1 (pairs): receive and message meet whichever comes first, and only once") {
  MatchTable table(7, 1);
  bool full = false;
  Posted receive{2, {0, 0, 5}, {}, {}};
  CHECK_FALSE(table.post(receive));
  CHECK_FALSE(table.announce({3, header_of(5), 1}, full));  // another peer
  CHECK_FALSE(table.announce({2, header_of(6), 2}, full));  // another sequence
  CHECK(table.announce({2, header_of(5), 3}, full));
  CHECK_FALSE(table.announce({2, header_of(5), 4}, full));
  CHECK_FALSE(table.announce({2, header_of(5), 5}, full));
  Posted again{2, {0, 0, 5}, {}, {}};
  CHECK(table.post(again)->token == 4);  // equal keys: in the order of arrival
  CHECK(table.post(again)->token == 5);
  CHECK_FALSE(table.post(again));
  CHECK(table.announced_most() == 4);
}

TEST_CASE("MA-2 (garbage): 10000 random byte strings are counted and dropped") {
  MatchTable table(7, 1);
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    std::vector<std::byte> junk(philox(1, i, 0)[0] % 160);
    for (std::size_t k = 0; k < junk.size(); ++k) junk[k] = static_cast<std::byte>(philox(1, i, 1 + k)[0]);
    CHECK_FALSE(table.admit(static_cast<Rank>(i % 4), junk));
  }
  CHECK(table.garbage_dropped() == 10'000);
}

TEST_CASE("MA-2: a good header with any one bit flipped is dropped, or is still a legal header") {
  const Header good = header_of(3);
  MatchTable table(7, 1);
  for (std::size_t bit = 0; bit < 8 * sizeof good; ++bit) {
    Header bad;
    std::vector<std::byte> copy(bytes(good).begin(), bytes(good).end());
    copy[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const auto admitted = table.admit(0, copy);
    if (!admitted) continue;
    std::memcpy(static_cast<void*>(&bad), copy.data(), sizeof bad);
    CHECK(bad.magic == good.magic);
    CHECK(bad.version == good.version);
    CHECK(bad.job == good.job);
    CHECK(bad.generation == good.generation);
    CHECK(bad.microbatch >= -1);
    CHECK(bad.bytes <= MatchTable::Limits().bytes_max);
  }
  CHECK(table.stale_dropped() == 64 + 32);
}

TEST_CASE("TR-3 (generations): other jobs and generations are stale, not garbage") {
  MatchTable table(7, 1);
  Header h = header_of(0);
  CHECK(table.admit(0, bytes(h)));
  h.generation = 0;
  CHECK_FALSE(table.admit(0, bytes(h)));
  h.generation = 1;
  h.job = 8;
  CHECK_FALSE(table.admit(0, bytes(h)));
  CHECK(table.stale_dropped() == 2);
  CHECK(table.garbage_dropped() == 0);
}

TEST_CASE("MA-3 (backlog): the table says when a peer announces more than the limit") {
  MatchTable table(7, 1, {.announced_max = 3});
  bool full = false;
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK_FALSE(table.announce({0, header_of(i), i}, full));
    CHECK_FALSE(full);
  }
  CHECK_FALSE(table.announce({0, header_of(9), 9}, full));
  CHECK(full);
  CHECK(table.announced() == 3);
}

TEST_CASE("take() takes out one peer and leaves the others") {
  MatchTable table(7, 1);
  bool full = false;
  for (Rank r : {0, 1, 2}) {
    Posted receive{r, {0, 0, 1}, {}, {}};
    table.post(receive);
    table.announce({r, header_of(2), 0}, full);
  }
  const auto taken = table.take(1);
  CHECK(taken.posted.size() == 1);
  CHECK(taken.announced.size() == 1);
  CHECK(taken.posted[0].from == 1);
  CHECK(table.posted() == 2);
  CHECK(table.announced() == 2);
}
