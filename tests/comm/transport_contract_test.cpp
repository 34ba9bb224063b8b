// The promises of comm/transport.h, on every implementation.
#include <algorithm>
#include <cstring>

#include "tests/comm/pair.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

namespace {
const std::size_t kSizes[] = {0, 1, 8, 4096, 4097, 65536, 1 << 20, 17 << 20};
}

TEST_CASE_TEMPLATE("every size arrives unchanged, with its header", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  std::uint32_t sequence = 0;
  for (const std::size_t n : kSizes) {
    CAPTURE(n);
    const auto data = payload(n, sequence);
    std::vector<std::byte> into(n);
    Outcome s, r;
    Header h = header(++sequence);
    h.step = 12, h.microbatch = 5, h.term_lo = 2, h.term_hi = 4, h.slot = 9;
    pair.at(1).recv(0, {3, 0, sequence}, into, r.received());
    pair.at(0).send(1, h, data, s.sent());
    REQUIRE(pair.wait([&] { return s.done() && r.done(); }));
    CHECK(s.status.message() == "");
    CHECK(r.status.message() == "");
    CHECK(into == data);
    h.bytes = n;
    CHECK(std::memcmp(&r.header, &h, sizeof h) == 0);
  }
  CHECK(pair.at(0).stats().sent_messages == std::size(kSizes));
  CHECK(pair.at(1).stats().received_bytes == pair.at(0).stats().sent_bytes);
}

TEST_CASE_TEMPLATE("TR-1 (rendezvous): a send is done only after its receive was posted, whatever its size", Pair,
                   TROUPE_ALL_PAIRS) {
  Pair pair;
  std::vector<Outcome> s(std::size(kSizes)), r(std::size(kSizes));
  std::vector<std::vector<std::byte>> data, into;
  for (std::uint32_t i = 0; i < s.size(); ++i) {
    data.push_back(payload(kSizes[i], i));
    into.emplace_back(kSizes[i]);
    pair.at(0).send(1, header(i), data[i], s[i].sent());
  }
  REQUIRE(pair.wait([&] { return pair.at(1).stats().unexpected_max == s.size(); }));  // all are announced
  pair.settle();
  for (std::size_t i = 0; i < s.size(); ++i) {
    CAPTURE(kSizes[i]);
    CHECK_FALSE(s[i].done());
  }
  for (std::uint32_t i = 0; i < s.size(); ++i) pair.at(1).recv(0, {3, 0, i}, into[i], r[i].received());
  for (std::size_t i = 0; i < s.size(); ++i) {
    REQUIRE(pair.wait([&] { return s[i].done() && r[i].done(); }));
    CHECK(into[i] == data[i]);
  }
}

TEST_CASE_TEMPLATE("TR-2 (matching): receives posted in any order get their own messages", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  constexpr std::uint32_t n = 64;
  std::vector<Outcome> s(n), r(n);
  std::vector<std::vector<std::byte>> data, into(n);
  for (std::uint32_t i = 0; i < n; ++i) data.push_back(payload(i % 3 == 0 ? 9000 + i : i, i));
  for (std::uint32_t i = 0; i < n; ++i) into[i].resize(data[i].size());
  const auto post = [&](std::uint32_t i) { pair.at(1).recv(0, {i % 5, i % 2, i}, into[i], r[i].received()); };
  for (std::uint32_t i = 0; i < n; i += 2) post(n - 2 - i);  // half of them early, backwards
  for (std::uint32_t i = 0; i < n; ++i) {
    Header h = header(i, i % 5);
    h.part = i % 2;
    pair.at(0).send(1, h, data[i], s[i].sent());
  }
  pair.settle();
  for (std::uint32_t i = 1; i < n; i += 2) post((i * 37) % n);  // half of them late, shuffled
  for (std::uint32_t i = 0; i < n; ++i) {
    REQUIRE(pair.wait([&] { return s[i].done() && r[i].done(); }));
    CHECK(r[i].header.sequence == i);
    CHECK(into[i] == data[i]);
  }
}

TEST_CASE_TEMPLATE("TR-3 (generations): a message of another generation is dropped, counted and never matched", Pair,
                   TROUPE_ALL_PAIRS) {
  Pair pair(1, 2);
  Outcome s, big, r;
  std::vector<std::byte> into(8);
  const auto data = payload(8, 1), large = payload(100'000, 2);
  pair.at(1).recv(0, {3, 0, 0}, into, r.received());
  pair.at(0).send(1, header(0, 3, 1), data, s.sent());
  pair.at(0).send(1, header(1, 3, 1), large, big.sent());
  REQUIRE(pair.wait([&] { return pair.at(1).stats().stale_dropped == 2; }));
  pair.settle();
  CHECK_FALSE(r.done());
  CHECK(pair.at(1).stats().received_messages == 0);
  for (Rank a : {0, 1}) pair.at(a).shutdown();  // before what the callbacks refer to goes
}

TEST_CASE_TEMPLATE("TR-3: a header of another generation is refused by its own sender", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  Outcome s;
  pair.at(0).send(1, header(0, 3, 9), {}, s.sent());
  REQUIRE(pair.wait([&] { return s.done(); }));
  CHECK(s.status.code() == Code::invalid);
}

TEST_CASE_TEMPLATE(
    "TR-4 (shutdown): after shutdown there is no callback, no buffer is touched, and sends and receives do nothing",
    Pair, TROUPE_ALL_PAIRS) {
  if (const auto why = no_lost_peers_of<Pair>(); !why.empty()) return troupe::test::skip(why);
  Pair pair;
  std::atomic<int> calls{0};
  std::vector<std::byte> into(1 << 20), data = payload(1 << 20, 1);
  const auto count = [&](auto&&...) { ++calls; };
  pair.at(0).on_peer_down(count);
  for (std::uint32_t i = 0; i < 20; ++i) {
    // held by the peer
    pair.at(0).send(1, header(i), std::span(data).first(i % 2 == 0 ? 64 : data.size()), count);
    pair.at(0).recv(1, {3, 1, i}, into, count);  // never sent
    pair.at(0).recv(0, {3, 2, i}, into, count);
  }
  pair.settle();
  CHECK(calls == 0);
  const auto begin = std::chrono::steady_clock::now();
  pair.at(0).shutdown();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  Outcome late;
  pair.at(0).send(1, header(99), data, late.sent());
  pair.at(0).recv(1, {3, 1, 0}, into, late.received());
  pair.at(1).send(
      0,
      [] {
        Header h = header(0);
        h.part = 1;
        return h;
      }(),
      data, [](Status) {});
  pair.settle();
  CHECK(calls == 0);
  CHECK_FALSE(late.done());
  CHECK(into == std::vector<std::byte>(1 << 20));
  pair.at(0).shutdown();  // idempotent
  pair.at(1).shutdown();
}

TEST_CASE_TEMPLATE(
    "TR-4 (shutdown): after abort, too, with transfers of any size under way, and twice, there is no callback and no "
    "buffer is touched",
    Pair, TROUPE_ALL_PAIRS) {
  if (const auto why = no_lost_peers_of<Pair>(); !why.empty()) return troupe::test::skip(why);
  Pair pair;
  std::atomic<int> calls{0};
  std::vector<std::vector<std::byte>> into(6, std::vector<std::byte>(2 << 20));
  const auto data = payload(2 << 20, 1);
  const auto count = [&](auto&&...) { ++calls; };
  pair.at(0).on_peer_down(count);
  Outcome first;
  pair.at(0).recv(1, {3, 0, 0}, std::span(into[0]).first(8), first.received());
  pair.at(1).send(0, header(0), std::span(data).first(8), [](Status) {});
  REQUIRE(pair.wait([&] { return first.done(); }));
  pair.settle();
  for (std::uint32_t i = 1; i < 4; ++i) {
    pair.at(1).send(0, header(i), data, [](Status) {});
    pair.at(1).recv(0, {3, 0, i}, into[3], [](Status, const Header&) {});
    pair.at(0).send(1, header(i), data, count);
    pair.at(0).recv(1, {3, 0, i}, into[i - 1], count);
    pair.at(0).recv(0, {3, 2, i}, into[4], count);
    pair.at(0).send(1, header(100 + i), std::span(data).first(64), count);
  }
  const auto begin = std::chrono::steady_clock::now();
  pair.at(0).abort();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
  const int called = calls;
  std::vector<std::vector<std::byte>> then(into.size());
  for (const int i : {0, 1, 2, 4, 5}) then[i] = into[i];  // into[3] is the other end's, which goes on
  Outcome late, late_sent;
  pair.at(0).send(1, header(99), data, late_sent.sent());
  pair.at(0).recv(1, {3, 1, 0}, into[5], late.received());
  pair.settle();
  CHECK(calls == called);
  CHECK_FALSE(late.done());
  CHECK_FALSE(late_sent.done());
  for (const int i : {0, 1, 2, 4, 5}) CHECK(into[i] == then[i]);
  pair.at(0).abort();
  pair.at(0).shutdown();
  pair.at(1).shutdown();
  pair.at(1).abort();
}

TEST_CASE_TEMPLATE("a transport that is opened with a new generation at once after abort works", Pair,
                   TROUPE_ALL_PAIRS) {
  if (const auto why = no_lost_peers_of<Pair>(); !why.empty()) return troupe::test::skip(why);
  Pair pair;
  const auto data = payload(4 << 20, 1), other = payload(4 << 20, 2);
  std::vector<std::byte> into(data.size());
  std::vector<std::byte> old[2] = {std::vector<std::byte>(data.size()), std::vector<std::byte>(data.size())};
  for (std::uint32_t generation = 2; generation < 6; ++generation) {
    for (Rank r : {0, 1}) {
      pair.at(r).send(1 - r, header(0, 3, generation - 1), data, [](Status) {});
      if (generation % 2 == 0) pair.at(r).recv(1 - r, {3, 0, 0}, old[r], [](Status, const Header&) {});
    }
    for (Rank r : {0, 1}) pair.at(r).abort();
    pair.reopen(generation);
    Outcome s, r;
    pair.at(1).recv(0, {3, 0, 0}, into, r.received());
    pair.at(0).send(1, header(0, 3, generation), other, s.sent());
    REQUIRE(pair.wait([&] { return s.done() && r.done(); }));
    CHECK(r.status.message() == "");
    CHECK(into == other);
  }
  for (Rank r : {0, 1}) pair.at(r).shutdown();
}

TEST_CASE_TEMPLATE("a peer that shut down is reported once, and what is pending with it ends", Pair, TROUPE_ALL_PAIRS) {
  if (const auto why = no_lost_peers_of<Pair>(); !why.empty()) return troupe::test::skip(why);
  Pair pair;
  std::atomic<int> downs{0};
  pair.at(1).on_peer_down([&](Rank r, const Status& s) { downs += r == 0 && s.code() == Code::unavailable ? 1 : 100; });
  Outcome small, large, receive, later, ok, ok2;
  const auto data = payload(1 << 20, 3);
  std::vector<std::byte> into(16);
  pair.at(0).recv(1, {3, 0, 7}, into, ok.received());  // one exchange, so that both are connected
  pair.at(1).send(0, header(7), std::span(data).first(16), ok2.sent());
  REQUIRE(pair.wait([&] { return ok.done() && ok2.done(); }));
  pair.at(1).send(0, header(0), std::span(data).first(16), small.sent());
  pair.at(1).send(0, header(1), data, large.sent());
  pair.at(1).recv(0, {3, 0, 2}, into, receive.received());
  pair.settle();
  pair.at(0).shutdown();
  REQUIRE(pair.wait([&] { return downs > 0 && small.done() && large.done() && receive.done(); }));
  CHECK(small.status.code() == Code::unavailable);
  CHECK(large.status.code() == Code::unavailable);
  CHECK(receive.status.code() == Code::unavailable);
  pair.at(1).recv(0, {3, 0, 3}, into, later.received());
  REQUIRE(pair.wait([&] { return later.done(); }));
  CHECK(later.status.code() == Code::unavailable);
  pair.settle();
  CHECK(downs == 1);
}

TEST_CASE_TEMPLATE("both directions at once, many outstanding", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  constexpr std::uint32_t n = 48;
  std::vector<Outcome> s[2] = {std::vector<Outcome>(n), std::vector<Outcome>(n)};
  std::vector<Outcome> r[2] = {std::vector<Outcome>(n), std::vector<Outcome>(n)};
  std::vector<std::vector<std::byte>> data[2], into[2];
  for (Rank a : {0, 1})
    for (std::uint32_t i = 0; i < n; ++i) {
      data[a].push_back(payload(i % 4 == 0 ? 300'000 : 1000 + i, 1000 * a + i));
      into[a].emplace_back(data[a][i].size());
    }
  for (std::uint32_t i = 0; i < n; ++i)
    for (Rank a : {0, 1}) {
      pair.at(a).send(1 - a, header(i), data[a][i], s[a][i].sent());
      pair.at(1 - a).recv(a, {3, 0, i}, into[a][i], r[a][i].received());
    }
  for (Rank a : {0, 1})
    for (std::uint32_t i = 0; i < n; ++i) {
      REQUIRE(pair.wait([&] { return s[a][i].done() && r[a][i].done(); }));
      CHECK(into[a][i] == data[a][i]);
    }
}

TEST_CASE_TEMPLATE("a payload of the wrong size is an error that names both sizes", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  for (const bool late : {false, true})
    for (const auto& [sent, expected] :
         {std::pair<std::size_t, std::size_t>{16, 8}, {8, 16}, {0, 8}, {70'000, 80'000}, {80'000, 70'000}}) {
      CAPTURE(sent);
      CAPTURE(late);
      const auto data = payload(sent, 1);
      std::vector<std::byte> into(expected);
      Outcome s, r;
      if (!late) pair.at(1).recv(0, {3, 0, 0}, into, r.received());
      pair.at(0).send(1, header(0), data, s.sent());
      if (late) {
        pair.settle();
        pair.at(1).recv(0, {3, 0, 0}, into, r.received());
      }
      REQUIRE(pair.wait([&] { return s.done() && r.done(); }));
      CHECK(r.status.code() == Code::invalid);
      CHECK(r.status.message().find(std::to_string(sent)) != std::string::npos);
      CHECK(r.status.message().find(std::to_string(expected)) != std::string::npos);
      CHECK(into == std::vector<std::byte>(expected));
    }
}

TEST_CASE_TEMPLATE("a ragged message may be shorter than its receive, not longer", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  for (const std::size_t n : {std::size_t{0}, std::size_t{100}, std::size_t{50'000}, std::size_t{60'001}}) {
    CAPTURE(n);
    const auto data = payload(n, 1);
    std::vector<std::byte> into(60'000);
    Outcome s, r;
    Header h = header(0);
    h.rows = static_cast<std::int64_t>(n);
    pair.at(1).recv(0, {3, 0, 0}, into, r.received());
    pair.at(0).send(1, h, data, s.sent());
    REQUIRE(pair.wait([&] { return s.done() && r.done(); }));
    CHECK(r.status.ok() == (n <= into.size()));
    if (r.status.ok()) CHECK(std::equal(data.begin(), data.end(), into.begin()));
  }
}

TEST_CASE_TEMPLATE("a send to oneself obeys the same rules", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  for (const std::size_t n : {std::size_t{0}, std::size_t{64}, std::size_t{1} << 20}) {
    const auto data = payload(n, 1);
    std::vector<std::byte> into(n);
    Outcome s, r;
    pair.at(0).send(0, header(0), data, s.sent());
    pair.settle();
    CHECK_FALSE(s.done());
    pair.at(0).recv(0, {3, 0, 0}, into, r.received());
    REQUIRE(pair.wait([&] { return s.done() && r.done(); }));
    CHECK(into == data);
  }
}

TEST_CASE_TEMPLATE("callbacks may call back: a ping-pong that lives in them", Pair, TROUPE_ALL_PAIRS) {
  Pair pair;
  std::atomic<std::uint32_t> turns{0};
  std::byte ball[2]{};
  std::function<void(Rank, std::uint32_t)> play = [&](Rank me, std::uint32_t i) {
    pair.at(me).recv(1 - me, {3, 0, i}, std::span(&ball[me], 1), [&, me, i](const Status& s, const Header&) {
      if (!s.ok() || ++turns == 2000) return;
      play(me, i + 2);
      pair.at(me).send(1 - me, header(i + 1), std::span(&ball[me], 1), [](Status) {});
    });
  };
  play(1, 0);
  play(0, 1);
  pair.at(0).send(1, header(0), std::span(&ball[0], 1), [](Status) {});
  CHECK(pair.wait([&] { return turns >= 2000; }));
  pair.at(0).shutdown();
  pair.at(1).shutdown();
}

TEST_CASE_TEMPLATE("100000 small messages, none lost, none mixed up", Pair, SimPair, ShmPair, TcpPair) {
  Pair pair;
  constexpr std::uint32_t n = 100'000;
  std::vector<std::uint32_t> data(n), into(n, 0xffffffff);
  std::atomic<std::uint32_t> sent{0}, received{0}, failed{0};
  for (std::uint32_t i = 0; i < n; ++i) {
    data[i] = i * 7;
    const auto post = [&, i] {
      pair.at(1).recv(0, {3, 0, i}, std::as_writable_bytes(std::span(&into[i], 1)),
                      [&](const Status& s, const Header&) {
                        ++received;
                        if (!s.ok()) ++failed;
                      });
    };
    if (i % 2 == 0) post();
    pair.at(0).send(1, header(i), std::as_bytes(std::span(&data[i], 1)), [&](const Status& s) {
      ++sent;
      if (!s.ok()) ++failed;
    });
    if (i % 2 == 1) post();
  }
  REQUIRE(pair.wait([&] { return sent == n && received == n; }));
  CHECK(failed == 0);
  CHECK(into == data);
}
