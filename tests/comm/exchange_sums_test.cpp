// Reductions of exact sums over a simulated network: the same integers everywhere, rounded once.
#include "placement/boxing.h"
#include "tests/comm/exchange_ends.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

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
    "NU-2 (topologies): exact sums are the same integers over any places, acts, types and order of arrival, and "
    "sources stay") {
  int exchanges = 0;
  std::int64_t reordered = 0;
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
          reordered += c.overtaken;
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
            if (dp == 2 && shape == Shape{16, 2}) CHECK(e.routes[0].sent_bytes() == uses * 16 * size_of(from));
          }
        }
  CHECK(exchanges > 100);
  CHECK(reordered > 100);
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
