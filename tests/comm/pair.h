// Two transports that know each other: what the contract tests run on. One kind per implementation.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "comm/sim/sim_network.h"
#include "comm/throttled/throttled_transport.h"
#include "comm/ucx/memory_hooks.h"
#include "comm/ucx/ucx_transport.h"
#include "devices/cpu/thread_alarm.h"
#include "devices/sim/sim_alarm.h"
#include "tests/skip.h"

namespace troupe::comm::test {

/// Why no peer over UCX may be lost in this process; empty: it may (see needs_memory_hooks). tests/run.sh turns the
/// hooks off for ThreadSanitizer.
inline std::string no_lost_peers() {
  const char* hooks = std::getenv("UCX_MEM_EVENTS");
  const bool off = hooks && std::string_view(hooks).starts_with("n");
  return off && needs_memory_hooks() ? "this UCX crashes without its memory hooks where a peer is lost" : "";
}

/// What became of one send or receive. Written by the transport's thread.
struct Outcome {
  std::atomic<int> calls{0};
  Status status;
  Header header;
  bool done() const { return calls.load() != 0; }
  SendDone sent() {
    return [this](Status s) {
      status = std::move(s);
      ++calls;
    };
  }
  RecvDone received() {
    return [this](Status s, const Header& h) {
      status = std::move(s);
      header = h;
      ++calls;
    };
  }
};

class SimPair {
 public:
  explicit SimPair(std::uint32_t generation0 = 1, std::uint32_t generation1 = 1)
      : net_(clock_, {.ranks = 2, .link = {.latency_ns = 1000, .bytes_per_second = 10'000'000'000}}) {
    ends_[0] = net_.open(0, 7, generation0);
    ends_[1] = net_.open(1, 7, generation1);
  }
  Transport& at(Rank r) { return *ends_[r]; }
  /// Ends both, and opens both again.
  void reopen(std::uint32_t generation) {
    for (Rank r : {0, 1}) {
      ends_[r].reset();
      ends_[r] = net_.open(r, 7, generation);
    }
  }
  /// Runs until `ready` or until nothing is left to do. What it says at the end.
  bool wait(const std::function<bool()>& ready) {
    while (!ready()) {
      const auto due = net_.next_due_ns();
      if (!due) return ready();
      clock_.advance_to(*due);
      net_.run_due(*due);
    }
    return true;
  }
  /// Lets everything happen that can.
  void settle() {
    wait([] { return false; });
  }

 private:
  ManualClock clock_;
  SimNetwork net_;
  std::unique_ptr<Transport> ends_[2];
};

inline bool wait_for(const std::function<bool()>& ready, std::chrono::milliseconds budget = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + budget;
  while (!ready()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

/// Two connected ends.
struct UcxEnds {
  std::unique_ptr<UcxTransport> ends[2];

  UcxEnds(const char* tls, const char* device, std::uint32_t generation0, std::uint32_t generation1,
          std::size_t eager_bytes_max = UcxOptions().eager_bytes_max) {
    const std::uint32_t generations[] = {generation0, generation1};
    for (Rank r : {0, 1}) {
      auto t = UcxTransport::open({.rank = r,
                                   .job = 7,
                                   .generation = generations[r],
                                   .tls = tls,
                                   .net_devices = device,
                                   .eager_bytes_max = eager_bytes_max});
      REQUIRE_MESSAGE(t.ok(), t.status().message());
      ends[r] = *std::move(t);
    }
    const std::map<Rank, std::string> all = {{0, ends[0]->address()}, {1, ends[1]->address()}};
    ends[0]->connect(all);
    ends[1]->connect(all);
  }
};

class UcxPair : UcxEnds {
 public:
  UcxPair(const char* tls, const char* device, std::uint32_t generation0, std::uint32_t generation1,
          std::size_t eager_bytes_max = UcxOptions().eager_bytes_max)
      : UcxEnds(tls, device, generation0, generation1, eager_bytes_max),
        open_([=](std::uint32_t generation) { return UcxEnds(tls, device, generation, generation, eager_bytes_max); }) {
  }
  UcxTransport& at(Rank r) { return *ends[r]; }
  void reopen(std::uint32_t generation) {
    UcxEnds fresh = open_(generation);  // beside the others, as what a peer has not noticed yet
    for (Rank r : {0, 1}) ends[r] = std::move(fresh.ends[r]);
  }
  bool wait(const std::function<bool()>& ready) { return wait_for(ready); }
  void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }

 private:
  std::function<UcxEnds(std::uint32_t)> open_;
};

struct ShmPair : UcxPair {
  explicit ShmPair(std::uint32_t g0 = 1, std::uint32_t g1 = 1) : UcxPair("posix,cma", "", g0, g1) {}
};
struct TcpPair : UcxPair {
  explicit TcpPair(std::uint32_t g0 = 1, std::uint32_t g1 = 1) : UcxPair("tcp", "lo", g0, g1) {}
};
/// Rendezvous at every size, without cma: the payload travels through the FIFO.
struct RendezvousPair : UcxPair {
  explicit RendezvousPair(std::uint32_t g0 = 1, std::uint32_t g1 = 1) : UcxPair("posix", "", g0, g1, 0) {}
};
/// Eager up to 1 MiB: messages of many fragments.
struct EagerPair : UcxPair {
  explicit EagerPair(std::uint32_t g0 = 1, std::uint32_t g1 = 1) : UcxPair("tcp", "lo", g0, g1, 1 << 20) {}
};

/// A message of 1 MiB takes a millisecond.
inline const std::vector<Throttle> throttles = {{-1, -1, 200'000, 1'000'000'000}};

/// Over shared memory, in real time.
class ThrottledPair {
 public:
  explicit ThrottledPair(std::uint32_t g0 = 1, std::uint32_t g1 = 1) { open(g0, g1); }
  Transport& at(Rank r) { return *ends_[r]; }
  void reopen(std::uint32_t generation) { open(generation, generation); }
  bool wait(const std::function<bool()>& ready) { return wait_for(ready); }
  void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }

 private:
  void open(std::uint32_t g0, std::uint32_t g1) {
    UcxEnds ucx("posix,cma", "", g0, g1);
    for (Rank r : {0, 1})
      ends_[r] = std::make_unique<ThrottledTransport>(std::move(ucx.ends[r]),
                                                      std::make_unique<ThreadAlarm>("alarm", clock_), throttles);
  }

  SteadyClock clock_;
  std::unique_ptr<ThrottledTransport> ends_[2];
};

/// Over a simulated network, in the same virtual time.
class ThrottledSimPair {
 public:
  explicit ThrottledSimPair(std::uint32_t g0 = 1, std::uint32_t g1 = 1, const std::vector<Throttle>& links = throttles,
                            SimLink under = {})
      : net_(loop_.clock(), {.ranks = 2, .link = under}), links_(links) {
    open(0, g0);
    open(1, g1);
  }
  Transport& at(Rank r) { return *ends_[r]; }
  void reopen(std::uint32_t generation) {
    for (Rank r : {0, 1}) open(r, generation);
  }
  std::int64_t now_ns() const { return loop_.now_ns(); }
  bool wait(const std::function<bool()>& ready) {
    while (!ready()) {
      const auto moved = net_.next_due_ns(), alarmed = loop_.next_due_ns();
      if (!moved && !alarmed) return ready();
      const std::int64_t due_ns = std::min(moved.value_or(INT64_MAX), alarmed.value_or(INT64_MAX));
      loop_.run_due(due_ns);
      net_.run_due(due_ns);
    }
    return true;
  }
  void settle() {
    wait([] { return false; });
  }

 private:
  void open(Rank r, std::uint32_t generation) {
    ends_[r].reset();
    ends_[r] = std::make_unique<ThrottledTransport>(net_.open(r, 7, generation), std::make_unique<SimAlarm>(loop_),
                                                    links_);
  }

  SimLoop loop_;
  SimNetwork net_;
  const std::vector<Throttle> links_;
  std::unique_ptr<ThrottledTransport> ends_[2];
};

/// As no_lost_peers, for a test of this pair: a simulated one has no UCX.
template <class Pair>
std::string no_lost_peers_of() {
  return std::is_same_v<Pair, SimPair> || std::is_same_v<Pair, ThrottledSimPair> ? "" : no_lost_peers();
}

#define TROUPE_ALL_PAIRS SimPair, ShmPair, TcpPair, RendezvousPair, EagerPair, ThrottledPair, ThrottledSimPair

inline Header header(std::uint32_t sequence, std::uint32_t channel = 3, std::uint32_t generation = 1) {
  Header h;
  h.job = 7;
  h.generation = generation;
  h.channel = channel;
  h.sequence = sequence;
  return h;
}

/// Bytes that differ with position and seed, so that a shifted or swapped payload shows.
inline std::vector<std::byte> payload(std::size_t n, std::uint32_t seed) {
  std::vector<std::byte> v(n);
  std::uint32_t x = seed * 2654435761u + 1;
  for (auto& b : v) {
    x = x * 1664525u + 1013904223u;
    b = static_cast<std::byte>(x >> 24);
  }
  return v;
}

}  // namespace troupe::comm::test

TYPE_TO_STRING_AS("sim", troupe::comm::test::SimPair);
TYPE_TO_STRING_AS("shared memory", troupe::comm::test::ShmPair);
TYPE_TO_STRING_AS("tcp", troupe::comm::test::TcpPair);
TYPE_TO_STRING_AS("shared memory, rendezvous only", troupe::comm::test::RendezvousPair);
TYPE_TO_STRING_AS("tcp, eager", troupe::comm::test::EagerPair);
TYPE_TO_STRING_AS("throttled shared memory", troupe::comm::test::ThrottledPair);
TYPE_TO_STRING_AS("throttled sim", troupe::comm::test::ThrottledSimPair);
