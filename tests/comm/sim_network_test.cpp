#include <doctest/doctest.h>

#include <memory>

#include "comm/sim/sim_network.h"

using namespace troupe;
using namespace troupe::comm;

namespace {

/// A network with its clock, and a log of what happened when.
struct World {
  explicit World(SimNetworkOptions options) : net(clock, options) {
    for (Rank r = 0; r < options.ranks; ++r) ends.push_back(net.open(r));
  }
  void run(std::int64_t until_ns = 1'000'000'000'000) {
    while (net.next_due_ns() && *net.next_due_ns() <= until_ns) {
      clock.advance_to(*net.next_due_ns());
      net.run_due(clock.now_ns());
    }
    if (until_ns < 1'000'000'000'000) clock.advance_to(until_ns);
  }
  void send(Rank from, Rank to, std::uint32_t sequence, std::size_t n = 0) {
    Header h;
    h.sequence = sequence;
    ends[from]->send(to, h, std::span(buffer).first(n), [this, sequence](const Status& s) {
      log.push_back({"sent", sequence, clock.now_ns(), s.code()});
    });
  }
  void recv(Rank at, Rank from, std::uint32_t sequence, std::size_t n = 0) {
    ends[at]->recv(from, {0, 0, sequence}, std::span(into).first(n), [this, sequence](const Status& s, const Header&) {
      log.push_back({"received", sequence, clock.now_ns(), s.code()});
    });
  }
  struct Entry {
    std::string what;
    std::uint32_t sequence;
    std::int64_t at_ns;
    Code code;
    bool operator==(const Entry&) const = default;
  };
  /// When it happened; -1: it did not.
  std::int64_t when(const std::string& what, std::uint32_t sequence, Code code = Code::ok) const {
    for (const Entry& e : log)
      if (e.what == what && e.sequence == sequence && e.code == code) return e.at_ns;
    return -1;
  }

  std::vector<std::byte> buffer = std::vector<std::byte>(1 << 20), into = std::vector<std::byte>(1 << 20);
  ManualClock clock;
  SimNetwork net;
  std::vector<std::unique_ptr<Transport>> ends;
  std::vector<Entry> log;
};

const SimLink kLink{.latency_ns = 1000, .bytes_per_second = 1'000'000'000};  // 1 byte a nanosecond

}  // namespace

TEST_CASE("latency and bandwidth are exact, and payloads share their link one after the other") {
  World w({.ranks = 2, .link = kLink});
  w.recv(1, 0, 1, 500);
  w.recv(1, 0, 2, 300);
  w.recv(0, 1, 3, 200);
  w.send(0, 1, 1, 500);
  w.send(0, 1, 2, 300);
  w.send(1, 0, 3, 200);  // the other direction is another link
  w.run();
  CHECK(w.when("received", 1) == 1000 + 500);
  CHECK(w.when("sent", 1) == 1000 + 500 + 1000);
  CHECK(w.when("received", 2) == 1000 + 500 + 300);
  CHECK(w.when("received", 3) == 1000 + 200);
  World third({.ranks = 2, .link = {.latency_ns = 10, .bytes_per_second = 3'000'000'000}});
  third.recv(1, 0, 1, 100);
  third.send(0, 1, 1, 100);
  third.run();
  CHECK(third.when("received", 1) == 10 + 34);  // 33.3 rounded up
}

TEST_CASE("TR-1 (rendezvous): a late receive holds the sender back, and costs only the transfer once it is posted") {
  World w({.ranks = 2, .link = kLink});
  w.send(0, 1, 1, 500);
  w.run(5000);
  CHECK(w.log.empty());
  w.recv(1, 0, 1, 500);
  w.run();
  CHECK(w.when("received", 1) == 5500);
  CHECK(w.when("sent", 1) == 6500);
}

TEST_CASE("SN-1 (same seed): the same seed gives the same order and times, another seed another order") {
  const auto play = [](std::uint64_t seed) {
    World w({.ranks = 3, .link = kLink, .seed = seed, .jitter_ns = 5000});
    for (std::uint32_t i = 0; i < 60; ++i) {
      w.recv(static_cast<Rank>(1 + i % 2), 0, i, 64);
      w.send(0, static_cast<Rank>(1 + i % 2), i, 64);
    }
    w.run();
    REQUIRE(w.log.size() == 120);
    return w.log;
  };
  CHECK(play(1) == play(1));
  CHECK(play(1) != play(2));
}

TEST_CASE(
    "SN-2 (callbacks): a callback runs in run_due() only, also where the network knows at once how it ends: a refused "
    "header, a message to oneself, one that has come, a dead peer") {
  World w({.ranks = 2, .link = kLink, .detect_ns = 0});
  w.ends[1]->on_peer_down([&](Rank lost, const Status& s) {
    w.log.push_back({"down", static_cast<std::uint32_t>(lost), 0, s.code()});
  });
  const auto calls_back = [&](std::size_t times) {  // at this instant, but not before the network runs
    CHECK(w.log.empty());
    w.net.run_due(w.clock.now_ns());
    CHECK(w.log.size() == times);
    w.log.clear();
  };
  bool done = false;
  Header other;
  other.generation = 9;
  w.ends[0]->send(1, other, {}, [&](const Status& s) { done = s.code() == Code::invalid; });
  CHECK_FALSE(done);
  w.net.run_due(w.clock.now_ns());
  CHECK(done);
  w.recv(1, 1, 1, 8);
  w.send(1, 1, 1, 8);
  calls_back(2);
  w.send(0, 1, 2);
  w.run(5000);
  w.recv(1, 0, 2);  // without bytes: it takes no time
  calls_back(1);
  w.run();
  CHECK(w.when("sent", 2) == 6000);
  w.log.clear();
  w.recv(1, 0, 3, 8);
  w.net.kill(0);
  calls_back(2);  // the receive ends, and the peer is down
  w.recv(1, 0, 4, 8);
  calls_back(1);
  w.send(1, 0, 5, 8);
  calls_back(1);
}

TEST_CASE("on_delivery sees each message that arrives, with its time, ends, header and bytes; none that is lost") {
  struct Seen {
    std::int64_t at_ns;
    Rank from, to;
    std::uint32_t sequence;
    std::vector<std::byte> bytes;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen;
  World w({.ranks = 3, .link = kLink, .on_delivery = [&](const SimDelivery& d) {
             seen.push_back({d.at_ns, d.from, d.to, d.header.sequence, {d.payload.begin(), d.payload.end()}});
           }});
  for (std::size_t i = 0; i < w.buffer.size(); ++i) w.buffer[i] = static_cast<std::byte>(i * 7);
  w.recv(1, 0, 1, 500);
  w.recv(2, 0, 2, 0);
  w.recv(2, 1, 3, 8);
  w.send(0, 1, 1, 500);
  w.send(0, 2, 2, 0);
  w.net.cut(1, 2);
  w.send(1, 2, 3, 8);  // never arrives
  w.send(1, 1, 4, 3);  // to itself
  w.recv(1, 1, 4, 3);
  w.run();
  const auto bytes = [&](std::size_t n) {
    return std::vector<std::byte>(w.buffer.begin(), w.buffer.begin() + static_cast<std::ptrdiff_t>(n));
  };
  CHECK(seen == std::vector<Seen>{{0, 1, 1, 4, bytes(3)}, {1000, 0, 2, 2, {}}, {1500, 0, 1, 1, bytes(500)}});
}

TEST_CASE("SN-3 (cut links): a cut holds messages one way until it heals") {
  World w({.ranks = 2, .link = kLink});
  w.net.cut(0, 1);
  w.recv(1, 0, 1, 100);
  w.recv(0, 1, 2, 100);
  w.send(0, 1, 1, 100);
  w.send(1, 0, 2, 100);
  w.run(50'000);
  CHECK(w.when("received", 1) == -1);
  CHECK(w.when("received", 2) == 1100);  // the other way works,
  CHECK(w.when("sent", 2) == -1);        // but its acknowledgement travels on the cut one
  w.net.heal(0, 1);
  w.run();
  CHECK(w.when("received", 1) == 50'100);
  CHECK(w.when("sent", 2) == 50'000);
}

TEST_CASE("SN-3: a clog holds messages for its time") {
  World w({.ranks = 2, .link = kLink});
  w.net.clog(0, 1, 30'000);
  w.recv(1, 0, 1, 100);
  w.send(0, 1, 1, 100);
  w.run();
  CHECK(w.when("received", 1) == 30'100);
}

TEST_CASE("SN-4 (killed rank): a killed rank is silent at once and reported after detect_ns") {
  World w({.ranks = 3, .link = kLink, .detect_ns = 70'000});
  std::vector<std::int64_t> downs;
  for (Rank r : {1, 2})
    w.ends[r]->on_peer_down([&](Rank lost, const Status& s) {
      CHECK(lost == 0);
      CHECK(s.code() == Code::unavailable);
      downs.push_back(w.clock.now_ns());
    });
  w.recv(1, 0, 1, 1000);  // under way when the sender dies
  w.recv(1, 0, 2, 8);     // never sent
  w.send(1, 0, 3, 8);     // never received
  w.recv(0, 2, 4, 8);     // the dead rank's own: never called back
  w.send(0, 1, 1, 1000);
  w.run(1500);
  w.net.kill(0);
  w.run();
  CHECK(downs == std::vector<std::int64_t>{71'500, 71'500});
  CHECK(w.when("received", 1, Code::unavailable) == 71'500);
  CHECK(w.when("received", 2, Code::unavailable) == 71'500);
  CHECK(w.when("sent", 3, Code::unavailable) == 71'500);
  CHECK(w.log.size() == 3);
  w.recv(1, 0, 9, 8);
  w.run();
  CHECK(w.when("received", 9, Code::unavailable) == 71'500);
  w.ends[0].reset();
  w.ends[0] = w.net.open(0, 0, 1);  // a new incarnation, of the next generation
}

TEST_CASE("a callback may shut its transport down") {
  World w({.ranks = 2, .link = kLink});
  w.ends[1]->recv(0, {0, 0, 0}, {}, [&](const Status&, const Header&) { w.ends[1].reset(); });
  w.recv(1, 0, 1);
  w.send(0, 1, 0);
  w.send(0, 1, 1);
  w.run();
  CHECK(w.when("received", 1) == -1);
  CHECK(w.when("sent", 1, Code::unavailable) >= 0);
}
