// Places that exchange a tensor over a simulated network: what each brings, what it gets, and what was expected.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "comm/exchange.h"
#include "comm/sim/sim_network.h"
#include "devices/sim/sim_device.h"
#include "placement/boxing.h"

namespace troupe::comm::test {

/// Places with a transport and a stream each, in virtual time.
struct Cluster {
  SimLoop loop;
  /// Messages that arrived behind one of a later act, or of the same act and a higher rank.
  std::int64_t overtaken = 0;
  std::map<Rank, std::pair<std::uint32_t, Rank>> highest;  // by receiver: act and sender
  SimNetwork net;
  std::vector<std::unique_ptr<Transport>> ends;
  std::vector<std::unique_ptr<SimDevice>> devices;
  std::vector<std::unique_ptr<Stream>> streams;

  static SimNetworkOptions options(Rank ranks, std::uint64_t seed) {
    SimNetworkOptions o;
    o.ranks = ranks;
    o.seed = seed;
    o.jitter_ns = seed ? 500'000 : 0;
    o.link.bytes_per_second = seed ? 50'000'000 : 0;
    return o;
  }
  SimNetworkOptions counting(SimNetworkOptions o) {
    o.on_delivery = [this](const SimDelivery& d) {
      const std::pair<std::uint32_t, Rank> arrived(d.header.sequence, d.from);
      auto& before = highest.try_emplace(d.to, arrived).first->second;
      if (arrived < before) ++overtaken;
      else before = arrived;
    };
    return o;
  }
  Cluster(Rank ranks, std::uint64_t seed) : net(loop.clock(), counting(options(ranks, seed))) {
    for (Rank r = 0; r < ranks; ++r) {
      ends.push_back(net.open(r));
      devices.push_back(std::make_unique<SimDevice>(loop));
      streams.push_back(devices.back()->create_stream("comm", 1));
    }
  }
  void run() {
    for (;;) {
      const auto local = loop.next_due_ns(), remote = net.next_due_ns();
      if (!local && !remote) return;
      if (remote && (!local || *remote <= *local)) {
        loop.at(std::max(*remote, loop.now_ns()), [] {});
        while (loop.now_ns() < *remote) loop.run_one();
        net.run_due(loop.now_ns());
      } else {
        loop.run_one();
      }
    }
  }
};

/// What one place brings to an exchange and what it gets.
struct End {
  std::vector<Move::Piece> have;  // offsets into `source`
  std::vector<std::byte> source, destination, staging;
  bool wants = false;
  Extent want;
  Route route;
  Status status = Status(Code::internal, "never done");
  Header header;
  int done = 0;
};

template <class T>
std::vector<T> random_values(std::int64_t n, std::mt19937& random) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (auto& x : v)
    x = static_cast<T>(std::ldexp(static_cast<double>(static_cast<int>(random() % 2000001) - 1000000),
                                  static_cast<int>(random() % 30) - 40));
  return v;
}

/// The sum of one element's terms [lo, hi) along the fixed tree, written down without tree.h.
template <class T>
T tree_sum(const std::vector<T>& terms, int lo, int hi) {
  if (hi - lo == 1) return terms[static_cast<std::size_t>(lo)];
  int half = 1;
  while (2 * half < hi - lo) half *= 2;
  return tree_sum(terms, lo, lo + half) + tree_sum(terms, lo + half, hi);
}

/// The logical tensor: one whole array per term.
template <class T>
struct Tensor {
  Shape shape;
  std::vector<std::vector<T>> terms;
  Tensor(Shape s, int count, unsigned seed) : shape(std::move(s)) {
    std::mt19937 random(seed);
    for (int t = 0; t < count; ++t) terms.push_back(random_values<T>(elements(shape), random));
  }
  /// Terms [lo, hi) of every element, summed along the tree.
  std::vector<T> sum(Term term) const {
    std::vector<T> out;
    for (std::int64_t i = 0; i < elements(shape); ++i) {
      std::vector<T> all;
      for (const auto& t : terms) all.push_back(t[static_cast<std::size_t>(i)]);
      out.push_back(tree_sum(all, term.lo, term.hi));
    }
    return out;
  }
  /// Puts a holding's values behind `end.source`.
  void give(End& end, const Extent& extent, Term term) const {
    const auto at = static_cast<std::int64_t>(end.source.size());
    end.have.push_back({extent, term, at});
    // a gap: offsets count
    end.source.resize(static_cast<std::size_t>(at + extent.elements() * static_cast<std::int64_t>(sizeof(T)) + 64));
    const auto whole = sum(term);
    if (!extent.empty())
      copy_extent(extent, whole.data(), Extent::whole(shape), end.source.data() + at, extent, sizeof(T));
  }
};

inline constexpr std::int64_t kLead = 24;  // the wanted extent begins behind this many bytes of the output slot

inline void plan_ends(std::vector<End>& ends, const BoxingPlan& plan, DType dtype) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    MoveEnds m;
    m.have = ends[r].have;
    m.want = ends[r].wants ? &ends[r].want : nullptr;
    m.want_offset = kLead;
    PartNumbers numbers;
    add_move(ends[r].route, static_cast<Rank>(r), plan, dtype, dtype, m, numbers);
    ends[r].staging.assign(static_cast<std::size_t>(ends[r].route.staging_bytes), std::byte{0x5c});
    ends[r].destination.assign(
        static_cast<std::size_t>(kLead + (ends[r].wants ? ends[r].want.elements() * size_of(dtype) : 0) + 16),
        std::byte{0x77});
  }
}

inline void start(Cluster& c, std::vector<End>& ends, std::uint32_t sequence, std::int64_t step = 3) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    End& e = ends[r];
    ExchangeAct act;
    act.header.channel = 2;
    act.header.sequence = sequence;
    act.header.step = static_cast<std::uint64_t>(e.have.empty() ? 0 : step);
    act.header.microbatch = static_cast<std::int32_t>(sequence);
    if (!e.have.empty()) act.sources = {e.source.data()};
    act.destination = e.wants ? e.destination.data() : nullptr;
    act.staging = e.staging.data();
    run_exchange(e.route, act, *c.ends[r], *c.streams[r], [&e](Status s, const Header& h) {
      e.status = std::move(s);
      e.header = h;
      ++e.done;
    });
  }
}

/// Checks one place: bitwise the wanted extent of `whole`, and nothing around it was touched.
template <class T>
void check_end(const End& e, const std::vector<T>& whole, const Shape& shape) {
  CHECK(e.done == 1);
  CHECK_MESSAGE(e.status.ok(), e.status.message());
  if (!e.wants) return;
  std::vector<T> expected(static_cast<std::size_t>(e.want.elements()));
  if (!e.want.empty()) copy_extent(e.want, whole.data(), Extent::whole(shape), expected.data(), e.want, sizeof(T));
  CHECK((expected.empty() ||
         std::memcmp(e.destination.data() + kLead, expected.data(), expected.size() * sizeof(T)) == 0));
  bool clean = true;
  for (std::size_t i = 0; i < e.destination.size(); ++i)
    if (i < kLead || i >= kLead + expected.size() * sizeof(T)) clean &= e.destination[i] == std::byte{0x77};
  CHECK(clean);
}

inline Mesh line(std::int64_t n, Rank first = 0) { return Mesh::dense({{"x", n}}, first); }

}  // namespace troupe::comm::test
