// Pings between places, and links that are cut.
#include "comm/link_watch.h"

#include <doctest/doctest.h>

#include <memory>

#include "comm/sim/sim_network.h"
#include "comm/throttled/cut_transport.h"
#include "tests/comm/pair.h"

using namespace troupe;
using namespace troupe::comm;

namespace {

constexpr std::int64_t beat = 250'000'000, limit = 3 * beat;

/// Three places that ping each other in a simulated network.
struct Watched {
  explicit Watched(std::uint32_t generation_of_2 = 5) : net(clock, {.ranks = 3, .link = {.latency_ns = 1000}}) {
    clock.advance_to(100 * beat);
    for (Rank r = 0; r < 3; ++r) {
      const std::uint32_t generation = r == 2 ? generation_of_2 : 5;
      ends.push_back(net.open(r, 7, generation));
      std::vector<Rank> peers;
      for (Rank p = 0; p < 3; ++p)
        if (p != r) peers.push_back(p);
      watches.push_back(std::make_unique<LinkWatch>(*ends.back(), clock, peers, 7, generation));
    }
  }
  /// So many beats of the places that are not stopped.
  void beats(int n, Rank stopped = -1) {
    for (int i = 0; i < n; ++i) {
      for (Rank r = 0; r < 3; ++r)
        if (r != stopped) watches[static_cast<std::size_t>(r)]->beat(beat);
      const std::int64_t until = clock.now_ns() + beat;
      while (net.next_due_ns() && *net.next_due_ns() <= until) {
        clock.advance_to(*net.next_due_ns());
        net.run_due(clock.now_ns());
      }
      clock.advance_to(until);
    }
  }
  void cut(Rank a, Rank b) { net.cut(a, b), net.cut(b, a); }
  std::vector<Rank> unheard(Rank of) const { return watches[static_cast<std::size_t>(of)]->unheard(limit); }

  ManualClock clock;
  SimNetwork net;
  std::vector<std::unique_ptr<Transport>> ends;
  std::vector<std::unique_ptr<LinkWatch>> watches;
};

using PeerList = std::vector<Rank>;

}  // namespace

TEST_CASE("peers that live are heard, however long nothing else is sent") {
  Watched w;
  w.beats(40);
  for (Rank r = 0; r < 3; ++r) CHECK(w.unheard(r).empty());
  CHECK(w.ends[0]->stats().received_messages >= 70);
  CHECK(w.ends[0]->stats().received_bytes == 0);
  CHECK(w.ends[0]->stats().unexpected_max <= 2);
}

TEST_CASE(
    "the two ends of a link that is cut miss each other after the limit; no other pair does, and neither end once it "
    "is healed") {
  Watched w;
  w.beats(4);
  w.cut(0, 2);
  w.beats(2);
  for (Rank r = 0; r < 3; ++r) CHECK(w.unheard(r).empty());
  w.beats(2);
  const auto sent = w.ends[0]->stats().sent_messages;
  w.beats(8);
  CHECK(w.ends[0]->stats().sent_messages == sent + 8);  // to the other one: none piles up
  CHECK(w.unheard(0) == PeerList{2});
  CHECK(w.unheard(1).empty());
  CHECK(w.unheard(2) == PeerList{0});
  w.net.heal(0, 2), w.net.heal(2, 0);
  w.beats(3);
  for (Rank r = 0; r < 3; ++r) CHECK(w.unheard(r).empty());
}

TEST_CASE("where messages pass one way only, the end that hears nothing says so") {
  Watched w;
  w.beats(4);
  w.net.cut(1, 2);
  w.beats(5);
  CHECK(w.unheard(2) == PeerList{1});
  CHECK(w.unheard(0).empty());
}

TEST_CASE("a place that was stopped itself misses no peer for that time") {
  Watched w;
  w.beats(4);
  w.cut(0, 1), w.cut(1, 2);  // a stopped process takes no message
  w.beats(20, 1);
  CHECK(w.unheard(0) == PeerList{1});
  CHECK(w.unheard(1) == PeerList{0, 2});
  CHECK(w.unheard(2) == PeerList{1});
  w.watches[1]->beat(beat);
  CHECK(w.unheard(1).empty());
  for (const Rank r : {0, 2}) w.net.heal(1, r), w.net.heal(r, 1);
  w.beats(3);
  for (Rank r = 0; r < 3; ++r) CHECK(w.unheard(r).empty());
}

TEST_CASE("a peer of another generation is not heard") {
  Watched w(6);
  w.beats(5);
  CHECK(w.unheard(0) == PeerList{2});
  CHECK(w.unheard(2) == PeerList{0, 1});
}

TEST_CASE("a peer whose process has ended is not heard, and pings to it do no harm") {
  Watched w;
  w.beats(2);
  w.net.kill(2);
  w.beats(6);
  CHECK(w.unheard(0) == PeerList{2});
  CHECK(w.unheard(1) == PeerList{2});
}

TEST_CASE("a watch may go before its transport, whose callbacks come later") {
  Watched w;
  w.beats(2);
  w.watches[1]->beat(beat);
  w.watches[1].reset();
  while (w.net.next_due_ns()) {
    w.clock.advance_to(*w.net.next_due_ns());
    w.net.run_due(w.clock.now_ns());
  }
  CHECK(w.ends[1]->stats().received_messages > 0);
}

TEST_CASE(
    "over UCX: peers hear each other until the way is cut (CutTransport), and neither end learns of it otherwise") {
  const SteadyClock clock;
  std::vector<std::unique_ptr<UcxTransport>> ucx;
  std::map<Rank, std::string> addresses;
  for (Rank r = 0; r < 2; ++r) {
    UcxOptions o;
    o.rank = r;
    o.job = 7;
    o.generation = 1;
    auto opened = UcxTransport::open(o);
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    addresses[r] = (*opened)->address();
    ucx.push_back(*std::move(opened));
  }
  for (auto& t : ucx) t->connect(addresses);
  std::atomic<int> downs = 0;
  CutTransport cut(std::move(ucx[0]));
  std::vector<Transport*> ends{&cut, ucx[1].get()};
  for (Transport* t : ends) t->on_peer_down([&](Rank, const Status&) { ++downs; });
  std::vector<std::unique_ptr<LinkWatch>> watches;
  for (Rank r = 0; r < 2; ++r) watches.push_back(std::make_unique<LinkWatch>(*ends[r], clock, PeerList{1 - r}, 7, 1));
  constexpr std::int64_t ucx_beat = 20'000'000;
  const auto run = [&](const std::function<bool()>& until) {
    for (int i = 0; i < 1000 && !until(); ++i) {
      for (auto& w : watches) w->beat(1000 * ucx_beat);  // this process may get no time for long
      std::this_thread::sleep_for(std::chrono::nanoseconds(ucx_beat));
    }
    return until();
  };
  const auto pings = [&](Rank r) { return ends[static_cast<std::size_t>(r)]->stats().received_messages; };
  CHECK(run([&] { return pings(0) >= 5 && pings(1) >= 5; }));
  CHECK(ends[0]->stats().received_bytes == 0);
  cut.cut(1);
  CHECK(
      run([&] { return !watches[0]->unheard(20 * ucx_beat).empty() && !watches[1]->unheard(20 * ucx_beat).empty(); }));
  const auto heard = pings(0) + pings(1);
  run([&, n = 0]() mutable { return ++n > 10; });
  CHECK(pings(0) + pings(1) == heard);
  CHECK(downs == 0);
  for (Transport* t : ends) t->abort();
}
