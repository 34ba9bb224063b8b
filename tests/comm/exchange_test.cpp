// Exchanges over a simulated network: every collective, bit for bit, whatever the order of arrival.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "comm/exchange.h"
#include "comm/sim/sim_network.h"
#include "devices/sim/sim_device.h"
#include "placement/tree.h"

using namespace troupe;
using namespace troupe::comm;

namespace {

/// Places with a transport and a stream each, in virtual time.
struct Cluster {
  SimLoop loop;
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
  Cluster(Rank ranks, std::uint64_t seed) : net(loop.clock(), options(ranks, seed)) {
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

constexpr std::int64_t kLead = 24;  // the wanted extent begins behind this many bytes of the output slot

void plan_ends(std::vector<End>& ends, const BoxingPlan& plan, DType dtype) {
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

void start(Cluster& c, std::vector<End>& ends, std::uint32_t sequence, std::int64_t step = 3) {
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

/// Boxes a tensor from one layout to another over the network and checks what every place gets.
template <class T>
void check_boxing(const Layout& from, const Layout& to, Rank ranks, std::uint64_t seed) {
  INFO(to_string(from), " -> ", to_string(to), " network seed ", seed);
  const auto plan = plan_boxing(from, to);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const Tensor<T> tensor(from.shape, from.terms(), 11);
  std::vector<End> ends(static_cast<std::size_t>(ranks));
  for (std::int64_t p = 0; p < from.mesh.size(); ++p) {
    const Holding h = from.holding_at(p);
    tensor.give(ends[static_cast<std::size_t>(h.holder)], h.extent, h.term);
  }
  for (std::int64_t p = 0; p < to.mesh.size(); ++p) {
    End& e = ends[static_cast<std::size_t>(to.mesh.ranks[p])];
    e.wants = true;
    e.want = to.extent_at(p);
  }
  plan_ends(ends, *plan, from.dtype);
  Cluster c(ranks, seed);
  start(c, ends, 0);
  c.run();
  const auto whole = tensor.sum({0, from.terms()});
  std::int64_t sent = 0, received = 0;
  for (std::size_t r = 0; r < ends.size(); ++r) {
    INFO("rank ", r);
    const auto position = to.mesh.find(static_cast<Rank>(r));
    const bool zero = position >= 0 && to.terms() > 1 && to.holding_at(position).term.lo != 0;
    check_end(ends[r], zero ? std::vector<T>(whole.size(), T{0}) : whole, from.shape);
    sent += ends[r].route.sent_bytes();
    received += ends[r].route.received_bytes();
    CHECK(ends[r].route.sent_bytes() == plan->sent_bytes(static_cast<Rank>(r), sizeof(T)));
  }
  CHECK(sent == received);
  CHECK(sent == plan->moved_bytes(sizeof(T)));
}

Mesh line(std::int64_t n, Rank first = 0) { return Mesh::dense({{"x", n}}, first); }

}  // namespace

TEST_CASE("S -> B: an all-gather gives every place the whole, along any dim, parts uneven or empty") {
  for (Rank n = 2; n <= 5; ++n)
    for (std::int32_t dim : {0, 1})
      for (const Shape& shape : {Shape{7, 6}, Shape{3, 10}, Shape{8, 2}})
        for (std::uint64_t seed : {0, 1, 2})
          check_boxing<float>({shape, DType::f32, line(n), {Sbp::S(dim)}}, {shape, DType::f32, line(n), {Sbp::B()}}, n,
                              seed);
}

TEST_CASE("NU-2: P -> S and P -> B are bitwise one owner's tree sum, whatever the order of arrival") {
  for (Rank n = 2; n <= 5; ++n)
    for (const Sbp to : {Sbp::S(0), Sbp::S(1), Sbp::B()})
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        check_boxing<float>({{5, 9}, DType::f32, line(n), {Sbp::P()}}, {{5, 9}, DType::f32, line(n), {to}}, n, seed);
        check_boxing<double>({{2, 3}, DType::f64, line(n), {Sbp::P()}}, {{2, 3}, DType::f64, line(n), {to}}, n, seed);
      }
}

TEST_CASE("S(i) -> S(j): an all-to-all packs and unpacks strided pieces") {
  for (Rank n = 2; n <= 5; ++n)
    for (std::uint64_t seed : {0, 1, 2}) {
      check_boxing<float>({{6, 7}, DType::f32, line(n), {Sbp::S(0)}}, {{6, 7}, DType::f32, line(n), {Sbp::S(1)}}, n,
                          seed);
      check_boxing<float>({{6, 7}, DType::f32, line(n), {Sbp::S(1)}}, {{6, 7}, DType::f32, line(n), {Sbp::S(0)}}, n,
                          seed);
      check_boxing<double>({{4, 6, 5}, DType::f64, line(n), {Sbp::S(2)}},
                           {{4, 6, 5}, DType::f64, line(n), {Sbp::S(1, 2)}}, n, seed);
    }
}

TEST_CASE("B -> P: one place keeps the value, the others hold zeros; nothing moves") {
  for (Rank n = 2; n <= 5; ++n)
    check_boxing<float>({{3, 4}, DType::f32, line(n), {Sbp::B()}}, {{3, 4}, DType::f32, line(n), {Sbp::P()}}, n, 1);
}

TEST_CASE("pieces cross between meshes of different sizes, disjoint and overlapping, with two axes") {
  for (std::uint64_t seed : {0, 3}) {
    for (std::int64_t a = 1; a <= 3; ++a)
      for (std::int64_t b = 1; b <= 3; ++b)
        for (Rank first : {0, 1, 3}) {
          const Rank n = static_cast<Rank>(std::max<std::int64_t>(a, first + b));
          check_boxing<float>({{5, 4}, DType::f32, line(a), {Sbp::S(0)}},
                              {{5, 4}, DType::f32, line(b, first), {Sbp::S(1)}}, n, seed);
          check_boxing<float>({{5, 4}, DType::f32, line(a), {Sbp::P()}},
                              {{5, 4}, DType::f32, line(b, first), {Sbp::B()}}, n, seed);
          check_boxing<float>({{5, 4}, DType::f32, line(a), {Sbp::B()}},
                              {{5, 4}, DType::f32, line(b, first), {Sbp::S(0)}}, n, seed);
        }
    const Mesh square = Mesh::dense({{"x", 2}, {"y", 2}});
    check_boxing<float>({{6, 5}, DType::f32, square, {Sbp::P(), Sbp::S(0)}},
                        {{6, 5}, DType::f32, square, {Sbp::S(1), Sbp::B()}}, 4, seed);
    check_boxing<float>({{6, 5}, DType::f32, square, {Sbp::S(0), Sbp::S(0)}},
                        {{6, 5}, DType::f32, square, {Sbp::S(1), Sbp::S(0)}}, 4, seed);
    check_boxing<float>({{6, 5}, DType::f32, square, {Sbp::P(), Sbp::P()}},
                        {{6, 5}, DType::f32, square, {Sbp::B(), Sbp::B()}}, 4, seed);
  }
}

namespace {

/// One place's end of a reduction of exact sums, of one parameter with two uses: what it adds up over several acts.
struct SumEnd {
  std::vector<Move::Piece> have;
  std::vector<std::vector<std::byte>> sources;  // per act: terms of both uses, then the exponent
  std::vector<std::byte> destination;
  Extent want;
  std::vector<Route> routes;  // per act
  std::vector<std::vector<std::byte>> staging;
  int done = 0;
};

constexpr std::int32_t kSumExponent = 38;

/// Random terms, as the int64 counts and as the floats that a reduction may bring.
struct Terms {
  std::vector<float> values;
  std::vector<std::int64_t> counts;
};
Terms random_terms(std::int64_t n, std::mt19937& random) {
  Terms t;
  for (std::int64_t i = 0; i < n; ++i) {
    t.values.push_back(std::ldexp(static_cast<float>(static_cast<int>(random() % 2000001) - 1000000),
                                  static_cast<int>(random() % 30) - 40));
    t.counts.push_back(std::llrint(std::ldexp(static_cast<double>(t.values.back()), kSumExponent)));
  }
  return t;
}

}  // namespace

TEST_CASE(
    "NU-2: exact sums are the same integers over any places, acts, types and order of arrival, and sources stay") {
  int exchanges = 0;
  std::uint64_t reordered = 0;
  for (const DType from : {DType::f32, DType::sum64})
    for (std::int64_t dp : {1, 2, 3, 5})
      for (const Shape& shape : {Shape{7, 3}, Shape{3}, Shape{16, 2}})  // shape {3}: empty shares
        for (std::uint64_t seed = 0; seed < 6; ++seed, ++exchanges) {
          INFO(to_string(from), " dp ", dp, " shape ", to_string(shape), " network seed ", seed);
          std::mt19937 random(static_cast<unsigned>(seed * 100 + static_cast<std::uint64_t>(dp)));
          constexpr int acts = 3, uses = 2;
          const Extent whole = Extent::whole(shape);
          const auto n = whole.elements();
          const Layout to(shape, DType::sum64, line(dp), {Sbp::S(0)});
          std::vector<std::int64_t> expected(static_cast<std::size_t>(n), 0);
          std::vector<SumEnd> ends(static_cast<std::size_t>(dp));
          // In the last act the last place has no term.
          const auto present = [&](int act, Rank r) { return dp == 1 || act + 1 < acts || r + 1 < dp; };
          const std::int64_t use_bytes = aligned(n * size_of(from));
          for (Rank r = 0; r < dp; ++r) {
            SumEnd& e = ends[static_cast<std::size_t>(r)];
            e.want = to.extent_at(r);
            e.destination.assign(static_cast<std::size_t>(kLead + e.want.elements() * 8 + 16), std::byte{0x77});
            for (int act = 0; act < acts; ++act) {
              auto& source = e.sources.emplace_back(static_cast<std::size_t>(uses * use_bytes + 64), std::byte{0});
              std::memcpy(source.data() + uses * use_bytes + 4, &kSumExponent, 4);
              for (int use = 0; use < uses && present(act, r); ++use) {
                const Terms t = random_terms(n, random);
                if (from == DType::f32)
                  std::memcpy(source.data() + use * use_bytes, t.values.data(), static_cast<std::size_t>(n) * 4);
                else std::memcpy(source.data() + use * use_bytes, t.counts.data(), static_cast<std::size_t>(n) * 8);
                for (std::int64_t i = 0; i < n; ++i)
                  expected[static_cast<std::size_t>(i)] += t.counts[static_cast<std::size_t>(i)];
              }
              BoxingGroup group;
              group.replicas = false;
              group.terms = 0;
              for (Rank p = 0; p < dp; ++p) {
                if (present(act, p)) group.from.push_back({p, whole, {group.terms, group.terms + 1}}), ++group.terms;
                group.to.push_back({p, to.extent_at(p), {}});
              }
              const auto boxing = plan_boxing(group, r);
              REQUIRE_MESSAGE(boxing.ok(), boxing.status().message());
              Route& route = e.routes.emplace_back();
              PartNumbers numbers;
              for (int use = 0; use < uses; ++use) {
                MoveEnds m;
                if (present(act, r)) m.have = {{whole, group.from[static_cast<std::size_t>(r)].term, use * use_bytes}};
                m.want = &e.want;
                m.want_offset = kLead;
                if (from == DType::f32) m.exponent_port = 0, m.exponent_offset = uses * use_bytes + 4;
                add_move(route, r, *boxing, from, DType::sum64, m, numbers);
              }
              e.staging.emplace_back(static_cast<std::size_t>(route.staging_bytes), std::byte{0x5c});
            }
          }
          const auto before = [&] {
            std::vector<std::vector<std::byte>> all;
            for (const auto& e : ends) all.insert(all.end(), e.sources.begin(), e.sources.end());
            return all;
          }();
          Cluster c(static_cast<Rank>(dp), seed);
          for (int act = 0; act < acts; ++act)  // all under way at once
            for (std::size_t r = 0; r < ends.size(); ++r) {
              SumEnd& e = ends[r];
              ExchangeAct a;
              a.header.channel = 2;
              a.header.sequence = static_cast<std::uint32_t>(act);
              a.sources = {e.sources[static_cast<std::size_t>(act)].data()};
              a.destination = e.destination.data();
              a.staging = e.staging[static_cast<std::size_t>(act)].data();
              a.first = act == 0;
              a.order = {0, 0, act, 0};
              run_exchange(e.routes[static_cast<std::size_t>(act)], a, *c.ends[r], *c.streams[r],
                           [&e](Status s, const Header&) {
                             CHECK(s.ok());
                             ++e.done;
                           });
            }
          c.run();
          std::size_t at = 0;
          for (const auto& e : ends) {
            CHECK(e.done == acts);
            // a reduction never overwrites its source
            for (const auto& source : e.sources) CHECK(source == before[at++]);
            std::vector<std::int64_t> wanted(static_cast<std::size_t>(e.want.elements()));
            copy_extent(e.want, reinterpret_cast<const std::byte*>(expected.data()), whole,
                        reinterpret_cast<std::byte*>(wanted.data()), e.want, 8);
            CHECK((wanted.empty() || std::memcmp(e.destination.data() + kLead, wanted.data(), wanted.size() * 8) == 0));
            for (std::size_t i = 0; i < static_cast<std::size_t>(kLead); ++i)
              CHECK(e.destination[i] == std::byte{0x77});
            for (std::size_t i = e.destination.size() - 16; i < e.destination.size(); ++i)
              CHECK(e.destination[i] == std::byte{0x77});
            // The smaller of the two types travels.
            for (const auto& route : e.routes) reordered += static_cast<std::uint64_t>(route.sent_bytes());
            if (dp == 2 && shape == Shape{16, 2}) CHECK(e.routes[0].sent_bytes() == uses * 16 * size_of(from));
          }
        }
  CHECK(exchanges > 100);
  CHECK(reordered > 0);
}

TEST_CASE("exact sums that leave as f32 are rounded where they lie, once, and all places have the same bits") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    constexpr std::int64_t dp = 3;
    const Shape shape{7, 5};
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<std::int64_t> sums;
    for (std::int64_t i = 0; i < elements(shape); ++i)
      sums.push_back(
          static_cast<std::int64_t>((static_cast<std::uint64_t>(random()) << 32 | random()) >> (random() % 60)) *
          (random() % 2 ? 1 : -1));
    const Layout from(shape, DType::f32, line(dp), {Sbp::S(0)}), to(shape, DType::f32, line(dp), {Sbp::B()});
    const auto plan = plan_boxing(from, to);
    REQUIRE(plan.ok());
    std::vector<End> ends(dp);
    for (Rank r = 0; r < dp; ++r) {
      End& e = ends[static_cast<std::size_t>(r)];
      const Extent own = from.extent_at(r);
      e.source.assign(static_cast<std::size_t>(own.elements() * 8 + 64), std::byte{0});
      copy_extent(own, reinterpret_cast<const std::byte*>(sums.data()), Extent::whole(shape), e.source.data(), own, 8);
      std::memcpy(e.source.data() + own.elements() * 8, &kSumExponent, 4);
      e.have = {{own, {}, 0}};
      e.wants = true;
      e.want = Extent::whole(shape);
      MoveEnds m;
      m.have = e.have;
      m.want = &e.want;
      m.want_offset = kLead;
      m.exponent_port = 0;
      m.exponent_offset = own.elements() * 8;
      PartNumbers numbers;
      add_move(e.route, r, *plan, DType::sum64, DType::f32, m, numbers);
      CHECK(e.route.sent_bytes() == own.elements() * 4 * (dp - 1));
      e.staging.assign(static_cast<std::size_t>(e.route.staging_bytes), std::byte{0x5c});
      e.destination.assign(static_cast<std::size_t>(kLead + e.want.elements() * 4 + 16), std::byte{0x77});
    }
    Cluster c(dp, seed);
    start(c, ends, 0);
    c.run();
    std::vector<float> expected;
    for (const auto s : sums) expected.push_back(static_cast<float>(std::ldexp(static_cast<double>(s), -kSumExponent)));
    for (const End& e : ends) {
      CHECK(e.done == 1);
      CHECK(std::memcmp(e.destination.data() + kLead, expected.data(), expected.size() * 4) == 0);
    }
  }
}

TEST_CASE("contiguous pieces go straight from slot to slot; only strided or partial ones are staged") {
  const Shape shape{6, 4};
  const auto route_of = [&](const Layout& from, const Layout& to, Rank self) {
    const auto plan = plan_boxing(from, to);
    MoveEnds m;
    if (auto p = from.mesh.find(self); p >= 0) m.have = {{from.extent_at(p), from.holding_at(p).term, 0}};
    Extent want;
    if (auto p = to.mesh.find(self); p >= 0) want = to.extent_at(p), m.want = &want;
    Route route;
    PartNumbers numbers;
    add_move(route, self, *plan, DType::f32, DType::f32, m, numbers);
    return route;
  };
  const Layout rows(shape, DType::f32, line(2), {Sbp::S(0)}), columns(shape, DType::f32, line(2), {Sbp::S(1)}),
      all(shape, DType::f32, line(2), {Sbp::B()}), partial(shape, DType::f32, line(2), {Sbp::P()}),
      one(shape, DType::f32, line(1), {Sbp::B()}), other(shape, DType::f32, line(1, 1), {Sbp::B()});
  CHECK(route_of(rows, all, 0).staging_bytes == 0);
  CHECK(route_of(one, other, 0).staging_bytes == 0);
  CHECK_FALSE(route_of(one, other, 0).before);
  CHECK_FALSE(route_of(one, other, 1).after);  // nothing for a stream to do: the transport writes the slot
  CHECK(route_of(rows, columns, 0).before);    // strided at the sender
  CHECK(route_of(columns, rows, 0).staging_bytes > 0);
  CHECK(route_of(columns, rows, 0).after);  // strided at the receiver
  CHECK(route_of(partial, rows, 0).after);
  CHECK(route_of(partial, rows, 0).staging_bytes == 64);  // 3 x 4 floats, 48 bytes: whole cache lines
}

TEST_CASE("several acts in flight do not mix, in any order of start, and report their own step and microbatch") {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    constexpr int kActs = 5;
    const Layout from({6, 7}, DType::f32, line(3), {Sbp::P()}), to({6, 7}, DType::f32, line(3, 1), {Sbp::S(1)});
    const auto plan = plan_boxing(from, to);
    REQUIRE(plan.ok());
    std::vector<std::vector<End>> acts(kActs);
    std::vector<Tensor<float>> tensors;
    Cluster c(4, seed);
    for (int a = 0; a < kActs; ++a) {
      tensors.emplace_back(from.shape, 3, 100u + static_cast<unsigned>(a));
      auto& ends = acts[static_cast<std::size_t>(a)];
      ends.resize(4);
      for (std::int64_t p = 0; p < 3; ++p)
        tensors.back().give(ends[static_cast<std::size_t>(p)], from.extent_at(p), from.holding_at(p).term);
      for (std::int64_t p = 0; p < 3; ++p)
        ends[static_cast<std::size_t>(p + 1)].wants = true,
                                          ends[static_cast<std::size_t>(p + 1)].want = to.extent_at(p);
      plan_ends(ends, *plan, DType::f32);
    }
    for (int a = 0; a < kActs; ++a)
      start(c, acts[static_cast<std::size_t>((a * 3 + static_cast<int>(seed)) % kActs)],
            static_cast<std::uint32_t>((a * 3 + static_cast<int>(seed)) % kActs), 40);
    c.run();
    for (int a = 0; a < kActs; ++a) {
      auto& ends = acts[static_cast<std::size_t>(a)];
      const auto sum = tensors[static_cast<std::size_t>(a)].sum({0, 3});
      for (const auto& e : ends) check_end(e, sum, from.shape);
      CHECK(ends[3].header.step == 40);  // rank 3 only receives: it learns step and microbatch
      CHECK(ends[3].header.microbatch == a);
    }
  }
}

TEST_CASE("two tensors of one exchange travel together under parts of their own") {
  const Layout a_from({4, 3}, DType::f32, line(2), {Sbp::S(0)}), a_to({4, 3}, DType::f32, line(2), {Sbp::B()});
  const Tensor<float> a(a_from.shape, 1, 1), b(a_from.shape, 1, 2);
  const auto plan = plan_boxing(a_from, a_to);
  REQUIRE(plan.ok());
  Cluster c(2, 5);
  std::vector<Route> routes(2);
  std::vector<std::vector<std::byte>> sources(2), destinations(2, std::vector<std::byte>(96));
  std::vector<End> scratch(2);
  const Extent want = Extent::whole(a_from.shape);
  int done = 0;
  for (Rank r = 0; r < 2; ++r) {
    End e;
    a.give(e, a_from.extent_at(r), {0, 1});
    b.give(e, a_from.extent_at(r), {0, 1});
    sources[r] = e.source;
    PartNumbers numbers;
    add_move(routes[r], r, *plan, DType::f32, DType::f32, {0, {e.have[0]}, &want, 0}, numbers);
    add_move(routes[r], r, *plan, DType::f32, DType::f32, {0, {e.have[1]}, &want, 48}, numbers);
    CHECK(routes[r].moves[0].sends[0].id == 0);
    CHECK(routes[r].moves[1].sends[0].id == 1);
    CHECK(routes[r].moves[1].receives[0].id == 1);
  }
  for (Rank r = 0; r < 2; ++r) {
    ExchangeAct act;
    act.sources = {sources[r].data()};
    act.destination = destinations[r].data();
    run_exchange(routes[r], act, *c.ends[r], *c.streams[r], [&](Status s, const Header&) { done += s.ok(); });
  }
  c.run();
  CHECK(done == 2);
  for (const auto& d : destinations) {
    CHECK(std::memcmp(d.data(), a.terms[0].data(), 48) == 0);
    CHECK(std::memcmp(d.data() + 48, b.terms[0].data(), 48) == 0);
  }
}

TEST_CASE("a receive that is not posted holds its sender back; a dead peer ends the act with its error, once") {
  const Layout from({4}, DType::f32, line(1), {Sbp::B()}), to({4}, DType::f32, line(1, 1), {Sbp::B()});
  const auto plan = plan_boxing(from, to);
  const Tensor<float> tensor(from.shape, 1, 1);
  std::vector<End> ends(2);
  tensor.give(ends[0], Extent::whole(from.shape), {0, 1});
  ends[1].wants = true;
  ends[1].want = Extent::whole(from.shape);
  plan_ends(ends, *plan, DType::f32);
  Cluster c(2, 0);
  ExchangeAct act;
  act.sources = {ends[0].source.data()};
  run_exchange(ends[0].route, act, *c.ends[0], *c.streams[0], [&](Status s, const Header&) {
    ends[0].status = std::move(s);
    ++ends[0].done;
  });
  c.run();
  CHECK(ends[0].done == 0);  // rendezvous: the slot stays the sender's until there is a place for it
  c.net.kill(1);
  c.run();
  CHECK(ends[0].done == 1);
  CHECK(ends[0].status.code() == Code::unavailable);
}

TEST_CASE("an act that lost one peer says so at once, although another peer is silent and not dead") {
  // Rank 2 gathers from 0 and 1: 0 never sends, 1 is killed.
  const Layout from({4}, DType::f32, line(2), {Sbp::S(0)}), to({4}, DType::f32, line(1, 2), {Sbp::B()});
  const auto plan = plan_boxing(from, to);
  REQUIRE(plan.ok());
  const Tensor<float> tensor(from.shape, 1, 1);
  std::vector<End> ends(3);
  for (std::int64_t r = 0; r < 2; ++r) tensor.give(ends[static_cast<std::size_t>(r)], from.extent_at(r), {0, 1});
  ends[2].wants = true;
  ends[2].want = Extent::whole(from.shape);
  plan_ends(ends, *plan, DType::f32);
  Cluster c(3, 0);
  auto begin = [&](std::size_t r) {
    ExchangeAct act;
    if (!ends[r].have.empty()) act.sources = {ends[r].source.data()};
    act.destination = ends[r].destination.data();
    act.staging = ends[r].staging.data();
    run_exchange(ends[r].route, act, *c.ends[r], *c.streams[r], [&ends, r](Status s, const Header&) {
      ends[r].status = std::move(s);
      ++ends[r].done;
    });
  };
  begin(2);
  c.run();
  CHECK(ends[2].done == 0);
  c.net.kill(1);
  c.run();
  CHECK(ends[2].done == 1);
  CHECK(ends[2].status.code() == Code::unavailable);
  begin(0);  // it comes after all: its part still finds its place, and no caller is told twice
  c.run();
  CHECK(ends[0].done == 1);
  CHECK(ends[0].status.ok());
  CHECK(ends[2].done == 1);
  CHECK(std::memcmp(ends[2].destination.data() + kLead, tensor.terms[0].data(), 8) == 0);
}

TEST_CASE("P -> P between meshes of one size keeps every term apart") {
  // What a partial activation needs when it crosses to the next stage under tp.
  const Layout from({3, 4}, DType::f32, line(2), {Sbp::P()}), to({3, 4}, DType::f32, line(2, 2), {Sbp::P()});
  const auto plan = plan_boxing(from, to);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const Tensor<float> tensor(from.shape, 2, 9);
  std::vector<End> ends(4);
  for (Rank r = 0; r < 2; ++r) {
    tensor.give(ends[static_cast<std::size_t>(r)], Extent::whole(from.shape), {r, r + 1});
    ends[static_cast<std::size_t>(r + 2)].wants = true;
    ends[static_cast<std::size_t>(r + 2)].want = Extent::whole(from.shape);
  }
  plan_ends(ends, *plan, DType::f32);
  Cluster c(4, 0);
  start(c, ends, 0);
  c.run();
  for (int r = 0; r < 2; ++r)
    check_end(ends[static_cast<std::size_t>(r + 2)], tensor.terms[static_cast<std::size_t>(r)], from.shape);
}

TEST_CASE(
    "S -> P between meshes: the place that gets no value writes zeros when an empty message tells it of the act") {
  const Layout from({3, 4}, DType::f32, line(2), {Sbp::S(1)}), to({3, 4}, DType::f32, line(2, 2), {Sbp::P()});
  auto plan = plan_boxing(from, to);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  plan->transfers.push_back({0, 3, {{{0, 0}, {0, 4}}}, from.holding_at(0).term});
  const Tensor<float> tensor(from.shape, 1, 9);
  std::vector<End> ends(4);
  for (Rank r = 0; r < 2; ++r) {
    tensor.give(ends[static_cast<std::size_t>(r)], from.extent_at(r), from.holding_at(r).term);
    ends[static_cast<std::size_t>(r + 2)].wants = true;
    ends[static_cast<std::size_t>(r + 2)].want = Extent::whole(from.shape);
  }
  plan_ends(ends, *plan, DType::f32);
  Cluster c(4, 0);
  start(c, ends, 0);
  c.run();
  check_end(ends[2], tensor.terms[0], from.shape);
  check_end(ends[3], std::vector<float>(tensor.terms[0].size()), from.shape);
  CHECK(ends[3].header.step == 3);
}
