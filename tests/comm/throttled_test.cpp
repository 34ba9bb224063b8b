// TH-1..3 of comm/throttled/throttled_transport.h: times to the nanosecond in virtual time, threads over shared memory.
#include <pthread.h>

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/comm/pair.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

namespace {

/// Sends and receives on a pair without any delay of its own; notes when each ended.
struct TimedPair {
  explicit TimedPair(const std::vector<Throttle>& links)
      : pair(1, 1, links, {.latency_ns = 0, .bytes_per_second = 0}) {}
  void recv(Rank at, std::uint32_t sequence, std::size_t n) {
    pair.at(at).recv(1 - at, {3, 0, sequence}, std::span(into[at]).first(n),
                     [this, sequence](const Status& s, const Header&) {
                       CHECK(s.ok());
                       received[sequence] = pair.now_ns();
                     });
  }
  void send(Rank from, std::uint32_t sequence, std::size_t n) {
    pair.at(from).send(1 - from, header(sequence), std::span(data).first(n), [this, sequence](const Status& s) {
      CHECK(s.ok());
      sent[sequence] = pair.now_ns();
    });
  }
  std::vector<std::byte> data = payload(4000, 1),
                         into[2] = {std::vector<std::byte>(4000), std::vector<std::byte>(4000)};
  std::map<std::uint32_t, std::int64_t> sent, received;
  ThrottledSimPair pair;
};

}  // namespace

TEST_CASE(
    "TH-1 (delay): a message leaves after bytes / bandwidth and arrives a latency later; the link carries one at a "
    "time") {
  TimedPair w({{-1, -1, 500, 1'000'000'000}});  // a byte a nanosecond
  for (std::uint32_t i : {0u, 1u, 2u}) {
    w.recv(1, i, 1000 * (i + 1));
    w.send(0, i, 1000 * (i + 1));
  }
  w.recv(0, 7, 100);  // the way back is another link
  w.send(1, 7, 100);
  w.pair.settle();
  CHECK(w.sent == std::map<std::uint32_t, std::int64_t>{{0, 1000}, {1, 3000}, {2, 6000}, {7, 100}});
  CHECK(w.received == std::map<std::uint32_t, std::int64_t>{{0, 1500}, {1, 3500}, {2, 6500}, {7, 600}});
}

TEST_CASE("TH-1: a message that waits for its receive occupies no link") {
  TimedPair w({{-1, -1, 500, 1'000'000'000}});
  w.send(0, 0, 4000);
  w.send(0, 1, 1000);
  w.recv(1, 1, 1000);
  w.pair.settle();
  CHECK(w.sent == std::map<std::uint32_t, std::int64_t>{{1, 1000}});
  CHECK(w.received.at(1) == 1500);
  w.recv(1, 0, 4000);
  w.pair.settle();
  CHECK(w.sent.at(0) == 1500 + 4000);
  CHECK(w.received.at(0) == 1500 + 4000 + 500);
}

TEST_CASE("TH-1: without a bandwidth a message takes the latency, without a throttle no time") {
  TimedPair latency({{0, 1, 700, 0}});
  TimedPair elsewhere({{0, 2, 700, 1}});
  for (TimedPair* w : {&latency, &elsewhere}) {
    w->recv(1, 0, 4000);
    w->send(0, 0, 4000);
    w->pair.settle();
    CHECK(w->sent.at(0) == 0);
  }
  CHECK(latency.received.at(0) == 700);
  CHECK(elsewhere.received.at(0) == 0);
}

TEST_CASE("a throttle concerns the link it names, both ways; the last that fits counts") {
  const Throttle all{}, from_two{2, -1}, pair{0, 1};
  CHECK(all.concerns(4, 5));
  CHECK(from_two.concerns(2, 7));
  CHECK(from_two.concerns(7, 2));
  CHECK_FALSE(from_two.concerns(0, 1));
  CHECK(pair.concerns(1, 0));
  CHECK_FALSE(pair.concerns(0, 2));
  TimedPair w({{-1, -1, 9'000, 0}, {1, 0, 40, 0}});
  w.recv(1, 0, 8);
  w.send(0, 0, 8);
  w.pair.settle();
  CHECK(w.received.at(0) == 40);
}

TEST_CASE("TH-2 (no delay): errors are not delayed, nor what a rank sends to itself") {
  TimedPair w({{-1, -1, 1'000'000, 1}});  // a second a byte
  Outcome s, r, refused;
  w.pair.at(0).recv(0, {3, 0, 0}, std::span(w.into[0]).first(64), r.received());
  w.pair.at(0).send(0, header(0), std::span(w.data).first(64), s.sent());
  w.pair.at(0).recv(1, {3, 0, 1}, std::span(w.into[0]).first(8), refused.received());
  w.pair.at(1).send(0, header(1), std::span(w.data).first(16), [](const Status&) {});
  REQUIRE(w.pair.wait([&] { return s.done() && r.done() && refused.done(); }));
  CHECK(w.pair.now_ns() == 0);
  CHECK(s.status.ok());
  CHECK(refused.status.code() == Code::invalid);
}

TEST_CASE("TH-2: a dead peer is reported at once, what waits for it ends, and what it had sent still takes its time") {
  std::vector<std::int64_t> downs, ended;
  TimedPair w({{-1, -1, 500, 1'000'000'000}});
  w.pair.at(1).on_peer_down([&](Rank lost, const Status& s) {
    CHECK(lost == 0);
    CHECK(s.code() == Code::unavailable);
    downs.push_back(w.pair.now_ns());
  });
  w.recv(1, 0, 1000);
  w.send(0, 0, 1000);
  w.pair.settle();
  REQUIRE(w.pair.now_ns() == 1500);
  w.recv(1, 1, 4000);
  w.send(0, 1, 4000);
  REQUIRE(w.pair.wait([&] { return w.pair.at(1).stats().received_messages == 2; }));
  std::vector<std::byte> never(8);
  w.pair.at(1).recv(0, {3, 0, 2}, never, [&](const Status& s, const Header&) {
    CHECK(s.code() == Code::unavailable);
    ended.push_back(w.pair.now_ns());
  });
  w.pair.at(0).shutdown();
  CHECK(downs.empty());
  w.pair.settle();
  CHECK(downs == std::vector<std::int64_t>{1500});
  CHECK(ended == std::vector<std::int64_t>{1500});
  CHECK(w.received == std::map<std::uint32_t, std::int64_t>{{0, 1500}, {1, 1500 + 4000 + 500}});
}

TEST_CASE(
    "TH-3 (alarm): over shared memory every callback runs on the alarm's thread: of a send, a receive, a message to "
    "oneself, an error and a dead peer") {
  if (const auto why = no_lost_peers(); !why.empty()) return troupe::test::skip(why);
  const auto data = payload(1 << 20, 1);
  std::vector<std::byte> into(1 << 20), own(1 << 20), never(8);
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> threads;  // that have made each callback, by name
  const auto note = [&](const char* what) {
    char name[16] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    const std::lock_guard lock(mutex);
    threads[what].insert(name);
  };
  const auto sent = [&](const char* what) { return [&note, what](const Status&) { note(what); }; };
  const auto received = [&](const char* what) { return [&note, what](const Status&, const Header&) { note(what); }; };
  const auto heard = [&](std::size_t callbacks) {
    const std::lock_guard lock(mutex);
    return threads.size() == callbacks;
  };
  ThrottledPair pair;
  pair.at(1).on_peer_down([&](Rank, const Status&) { note("peer down"); });
  pair.at(0).recv(1, {3, 0, 0}, into, received("receive"));
  pair.at(1).send(0, header(0), data, sent("send"));
  pair.at(1).send(0, header(1, 3, 9), {}, sent("refused send"));
  pair.at(1).recv(1, {3, 0, 2}, own, received("own receive"));
  pair.at(1).send(1, header(2), data, sent("own send"));
  REQUIRE(pair.wait([&] { return heard(5); }));
  pair.at(1).recv(0, {3, 0, 3}, never, received("receive from a peer that dies"));
  pair.at(1).send(0, header(4), data, sent("send to a peer that dies"));
  pair.settle();
  pair.at(0).shutdown();
  REQUIRE(pair.wait([&] { return heard(8); }));
  pair.at(1).recv(0, {3, 0, 5}, never, received("receive from a dead peer"));
  REQUIRE(pair.wait([&] { return heard(9); }));
  pair.at(1).shutdown();
  for (const auto& [what, names] : threads) CHECK_MESSAGE(names == std::set<std::string>{"alarm"}, what);
}

TEST_CASE(
    "TR-4 (shutdown): what has been moved and is still under way when the transport shuts down makes no callback") {
  TimedPair w({{-1, -1, 500, 1'000'000}});
  w.recv(1, 0, 1000);
  w.send(0, 0, 1000);
  REQUIRE(w.pair.wait([&] { return w.pair.at(1).stats().received_messages == 1; }));
  w.pair.at(0).shutdown();
  w.pair.at(1).shutdown();
  w.pair.settle();
  CHECK(w.sent.empty());
  CHECK(w.received.empty());
}
