// Exchanges over a simulated network: every collective, bit for bit, whatever the order of arrival.
#include "placement/boxing.h"
#include "tests/comm/exchange_ends.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

namespace {

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

}  // namespace

TEST_CASE("S -> B: an all-gather gives every place the whole, along any dim, parts uneven or empty") {
  for (Rank n = 2; n <= 5; ++n)
    for (std::int32_t dim : {0, 1})
      for (const Shape& shape : {Shape{7, 6}, Shape{3, 10}, Shape{8, 2}})
        for (std::uint64_t seed : {0, 1, 2})
          check_boxing<float>({shape, DType::f32, line(n), {Sbp::S(dim)}}, {shape, DType::f32, line(n), {Sbp::B()}}, n,
                              seed);
}

TEST_CASE("NU-2 (topologies): P -> S and P -> B are bitwise one owner's tree sum, whatever the order of arrival") {
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

TEST_CASE(
    "an act takes the time predicted for its adding once, however many parts it adds; one that only copies none") {
  const Shape shape{7, 3};
  const Extent whole = Extent::whole(shape);
  constexpr Rank places = 3;
  const auto seconds = [&](DType from, DType to, std::int32_t terms, double adding_s) {
    const std::int64_t use_bytes = aligned(whole.elements() * size_of(from));
    const Layout shares(shape, to, line(places), {Sbp::S(0)});
    BoxingGroup group;
    group.replicas = false;
    group.terms = terms;
    for (Rank p = 0; p < places; ++p) {
      if (terms > 1) group.from.push_back({p, whole, {p, p + 1}}), group.to.push_back({p, shares.extent_at(p), {}});
      else group.from.push_back({p, shares.extent_at(p), {0, 1}}), group.to.push_back({p, whole, {}});
    }
    Cluster c(places, 0);
    struct Memory {
      std::vector<std::byte> source, destination, staging;
      Route route;
    };
    std::vector<Memory> memory(places);
    int done = 0;
    for (Rank r = 0; r < places; ++r) {
      Memory& m = memory[static_cast<std::size_t>(r)];
      const auto boxing = plan_boxing(group, r);
      REQUIRE_MESSAGE(boxing.ok(), boxing.status().message());
      const Extent want = group.to[static_cast<std::size_t>(r)].extent;
      const auto& have = group.from[static_cast<std::size_t>(r)];
      const std::int64_t into = aligned(want.elements() * size_of(to));
      PartNumbers numbers;
      for (int tensor = 0; tensor < 2; ++tensor) {
        MoveEnds ends{0, {{have.extent, have.term, tensor * use_bytes}}, &want, tensor * into};
        if (from == DType::f32 && to == DType::sum64) ends.exponent_port = 0, ends.exponent_offset = 2 * use_bytes;
        add_move(m.route, r, *boxing, from, to, ends, numbers);
      }
      m.source.resize(static_cast<std::size_t>(2 * use_bytes + 64));
      m.destination.resize(static_cast<std::size_t>(2 * into));
      m.staging.resize(static_cast<std::size_t>(m.route.staging_bytes));
    }
    for (std::size_t r = 0; r < memory.size(); ++r) {
      ExchangeAct act;
      act.sources = {memory[r].source.data()};
      act.destination = memory[r].destination.data();
      act.staging = memory[r].staging.data();
      act.adding_s = adding_s;
      run_exchange(memory[r].route, act, *c.ends[r], *c.streams[r], [&](Status s, const Header&) { done += s.ok(); });
    }
    c.run();
    CHECK(done == places);
    return 1e-9 * static_cast<double>(c.loop.now_ns());
  };
  for (const auto& [from, to] :
       {std::pair(DType::f32, DType::f32), {DType::f32, DType::sum64}, {DType::sum64, DType::sum64}}) {
    CAPTURE(to_string(from));
    CAPTURE(to_string(to));
    CHECK(seconds(from, to, places, 1) - seconds(from, to, places, 0) == doctest::Approx(1).epsilon(1e-4));
  }
  CHECK(seconds(DType::f32, DType::f32, 1, 1) == seconds(DType::f32, DType::f32, 1, 0));
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
