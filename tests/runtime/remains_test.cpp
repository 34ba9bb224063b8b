// Places that take their state from what others have left: every element, whatever the layouts of both plans.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <set>

#include "actors/version_word.h"
#include "comm/sim/sim_network.h"
#include "devices/base/philox.h"
#include "devices/sim/sim_device.h"
#include "runtime/place/state_places.h"
#include "runtime/worker/heal_across.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/kept_cases.h"

using namespace mlp;

namespace {

/// What an element of a parameter's state is in a version: no two are the same.
float element_of(std::size_t param, StatePart part, std::int64_t index, std::int64_t version) {
  return static_cast<float>(version * 100'000 + static_cast<std::int64_t>(param) * 10'000 +
                            static_cast<int>(part) * 3'000 + index);
}

/// The memory of one place.
struct PlaceMemory {
  LocalPlan local;
  std::vector<std::byte> bytes;
};

/// Calls f(parameter, part, extent of the place, where it lies in slot `slot`).
template <class F>
void each_part(const Plan& p, PlaceMemory& m, std::int32_t slot, F&& f) {
  const auto places = state_places(p, m.local);
  for (std::size_t i = 0; i < p.params.size(); ++i)
    for (const StatePart part : state_parts) {
      const Extent extent = extent_of(p, p.params[i], part, m.local.rank);
      const std::int64_t at = offset_of(places[i], part, extent.elements());
      if (at < 0 || extent.empty()) continue;
      const LocalChannel& c = m.local.channels[places[i].channel];
      f(i, part, extent, reinterpret_cast<float*>(m.bytes.data() + c.offset + slot * c.slot_bytes + at));
    }
}

/// Calls f(row-major index in the whole tensor, n-th element of the extent).
template <class F>
void each_element(const Extent& extent, const Shape& shape, F&& f) {
  const Extent whole = Extent::whole(shape);
  std::int64_t n = 0;
  for_each_run(extent, whole, extent, [&](std::int64_t at, std::int64_t, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) f(at + i, n++);
  });
}

PlaceMemory empty_memory(const Plan& p, Rank r) {
  auto local = local_plan(p, r);
  REQUIRE_MESSAGE(local.ok(), local.status().message());
  PlaceMemory m{*std::move(local), {}};
  m.bytes.resize(static_cast<std::size_t>(m.local.pool_bytes));
  return m;
}

/// A place that holds a version whole in one slot, and its predecessor's garbage in the other.
PlaceMemory memory_with(const Plan& p, Rank r, std::int64_t version) {
  PlaceMemory m = empty_memory(p, r);
  std::memset(m.bytes.data(), 0x5A, static_cast<std::size_t>(m.local.state_area_bytes));
  const auto slot = static_cast<std::int32_t>(version % 2);
  each_part(p, m, slot, [&](std::size_t param, StatePart part, const Extent& extent, float* at) {
    each_element(extent, p.tensors[p.params[param].tensor].shape,
                 [&](std::int64_t index, std::int64_t n) { at[n] = element_of(param, part, index, version); });
  });
  for (const LocalChannel& c : m.local.channels)
    for (std::int32_t s = 0; c.version_offset >= 0 && s < c.slots; ++s) {
      actors::VersionWord word(m.bytes.data() + c.offset + s * c.slot_bytes + c.version_offset);
      if (s == slot) word.set(version);
      else word.clear();
    }
  return m;
}

struct Left {
  std::vector<PlaceMemory> memories;
  Remains remains;
};
/// What the places of `p` have left for those of `next`; rank r of both is the same place.
Left left_by(const Plan& p, const Plan& next, std::int64_t version) {
  Left left;
  left.remains.plan = &p;
  for (Rank r = 0; r < next.workers(); ++r) left.remains.own.push_back(r < p.workers() ? r : -1);
  for (Rank r = 0; r < p.workers(); ++r) left.memories.push_back(memory_with(p, r, version));
  for (PlaceMemory& m : left.memories) left.remains.areas.push_back(m.bytes.data());
  return left;
}

std::int64_t elements_seen = 0;

/// Whether a place of `p` has each element of the version in slot 0.
bool has_all(const Plan& p, PlaceMemory& m, std::int64_t version) {
  std::int64_t wrong = 0;
  each_part(p, m, 0, [&](std::size_t param, StatePart part, const Extent& extent, const float* at) {
    each_element(extent, p.tensors[p.params[param].tensor].shape, [&](std::int64_t index, std::int64_t n) {
      wrong += at[n] != element_of(param, part, index, version);
      ++elements_seen;
    });
  });
  return wrong == 0;
}

std::vector<KeptCase> shapes() {
  std::vector<KeptCase> out = kept_cases();
  out.push_back({{1, 2}, 1, 1});
  out.push_back({{3, 1}, 1, 3});
  out.push_back({{2, 2}, 2, 2});
  out.push_back({{4}});
  return out;
}

}  // namespace

TEST_CASE("a place of any layout takes every element of its state from the places of any other, and no garbage") {
  const auto all = shapes();
  elements_seen = 0;
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < all.size(); ++b) {
      if (!test::is_drawn(static_cast<unsigned>(a * all.size() + b))) continue;
      CAPTURE(a);
      CAPTURE(b);
      const Plan before = kept_plan(all[a]), next = kept_plan(all[b]);
      Left left = left_by(before, next, 3);
      for (Rank r = 0; r < next.workers(); ++r) {
        CAPTURE(r);
        PlaceMemory m = empty_memory(next, r);
        const auto bytes = heal(next, m.local, m.bytes.data(), left.remains, 3);
        REQUIRE_MESSAGE(bytes.ok(), bytes.status().message());
        CHECK(has_all(next, m, 3));
        if (a == b) CHECK(bytes->other == 0);  // what it needs it has itself
        if (left.remains.own[static_cast<std::size_t>(r)] < 0) CHECK(bytes->own == 0);
      }
    }
  CHECK(elements_seen > test::of_drawn(100'000));
}

TEST_CASE("what a lost place alone had is missing, by name; what replicas have is not") {
  const Plan dp = kept_plan({{3}}), zero = kept_plan({{3}, 1, 1}), pp = kept_plan({{1, 1, 1}});
  for (const Plan* before : {&dp, &zero, &pp}) {
    const bool replicated = before == &dp;
    for (Rank lost = 0; lost < 3; ++lost) {
      CAPTURE(lost);
      const Plan next = kept_plan({{2}});
      Left left = left_by(*before, next, 4);
      left.remains.own = {-1, -1};
      left.remains.areas[static_cast<std::size_t>(lost)] = nullptr;
      CHECK(is_whole(*before, [&](Rank r) { return r != lost; }) == replicated);
      PlaceMemory m = empty_memory(next, 0);
      const auto bytes = heal(next, m.local, m.bytes.data(), left.remains, 4);
      CHECK(bytes.ok() == replicated);
      if (replicated) CHECK(has_all(next, m, 4));
      else
        CHECK(std::any_of(next.params.begin(), next.params.end(), [&](const PlanParam& p) {
          return bytes.status().message().find(p.name) != std::string::npos;
        }));
    }
    CHECK(is_whole(*before, [](Rank) { return true; }));
  }
}

TEST_CASE("a place that holds another version is no source") {
  const Plan before = kept_plan({{2}});
  Left left = left_by(before, before, 3);
  left.memories[0] = memory_with(before, 0, 4);
  left.remains.areas[0] = left.memories[0].bytes.data();
  for (const std::int64_t version : {3, 4}) {
    PlaceMemory m = empty_memory(before, 0);
    REQUIRE(heal(before, m.local, m.bytes.data(), left.remains, version).ok());
    CHECK(has_all(before, m, version));
  }
  PlaceMemory m = empty_memory(before, 0);
  CHECK_FALSE(heal(before, m.local, m.bytes.data(), left.remains, 5).ok());
  int asked = 0;
  const auto stopped = heal(before, m.local, m.bytes.data(), left.remains, 3, [&] { return ++asked < 2; });
  CHECK(stopped.status().code() == Code::unavailable);
  CHECK(asked == 2);
}

namespace {

/// Places of a plan that heal together over a network; none opens the memory of another machine.
struct HealingCluster {
  SimLoop loop;
  comm::SimNetwork network;
  SimDevice device{loop};
  std::vector<PlaceMemory> places;
  std::vector<Remains> remains;  // as each of them sees it
  std::vector<std::unique_ptr<comm::Transport>> transports;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::function<void()>> stops;
  std::vector<std::optional<Expected<std::int64_t>>> done;  // bytes that travelled

  HealingCluster(const Plan& next, const Remains& all) : network(loop.clock(), options(next)) {
    for (Rank r = 0; r < next.workers(); ++r) {
      places.push_back(empty_memory(next, r));
      remains.push_back(all);
      for (std::size_t from = 0; from < all.areas.size(); ++from)
        if (all.area_machines[from] != all.machines[static_cast<std::size_t>(r)]) remains.back().areas[from] = nullptr;
      transports.push_back(network.open(r));
      streams.push_back(device.create_stream("comm", 1));
      done.emplace_back();
    }
  }
  ~HealingCluster() {
    for (auto& t : transports) t->shutdown();
    while (loop.run_one()) {}
  }
  static comm::SimNetworkOptions options(const Plan& next) {
    comm::SimNetworkOptions o;
    o.ranks = next.workers();
    return o;
  }
  void begin(const Plan& next, std::int64_t version) {
    for (std::size_t r = 0; r < places.size(); ++r) {
      const auto bytes = heal(next, places[r].local, places[r].bytes.data(), remains[r], version);
      REQUIRE_MESSAGE(bytes.ok(), bytes.status().message());
      stops.push_back(heal_across(next, places[r].local, places[r].bytes.data(), remains[r], version,
                                  {*transports[r], device, *streams[r], {}, nullptr},
                                  [this, r](Expected<std::int64_t> got) { done[r] = std::move(got); }));
    }
  }
  void run() {
    for (;;) {
      const auto local = loop.next_due_ns(), net = network.next_due_ns();
      if (!local && !net) return;
      if (net && (!local || *net <= *local)) {
        loop.advance_to(std::max(*net, loop.now_ns()));
        network.run_one(loop.now_ns());
      } else {
        loop.run_one();
      }
    }
  }
};

/// Bytes of a place's state that no memory of its machine has.
std::int64_t lacking(const Plan& next, const HealingCluster& cluster, std::size_t r) {
  const HealingSources sources(next, cluster.remains[r]);
  std::int64_t bytes = 0;
  for (std::size_t p = 0; p < next.params.size(); ++p)
    for (const StatePart part : state_parts) {
      const auto boxing = sources.transfers_to(static_cast<Rank>(r), p, part);
      REQUIRE(boxing.ok());
      for (const Transfer& t : boxing->transfers)
        if (!sources.reaches(static_cast<Rank>(r), t.from))
          bytes += t.extent.elements() * item_bytes(next, next.params[p], part);
    }
  return bytes;
}

/// Whether some memory of a place's machine has each element that it wants.
bool has_machine_all(const Plan& before, const Plan& next, const Remains& all, Rank r) {
  for (std::size_t p = 0; p < next.params.size(); ++p)
    for (const StatePart part : state_parts) {
      const Extent want = extent_of(next, next.params[p], part, r);
      if (want.empty()) continue;
      const auto there = std::find_if(before.params.begin(), before.params.end(),
                                      [&](const PlanParam& b) { return b.name == next.params[p].name; });
      REQUIRE(there != before.params.end());
      std::set<std::int64_t> lacks;
      each_element(want, next.tensors[next.params[p].tensor].shape,
                   [&](std::int64_t index, std::int64_t) { lacks.insert(index); });
      for (Rank from = 0; from < before.workers(); ++from)
        if (all.area_machines[static_cast<std::size_t>(from)] == all.machines[static_cast<std::size_t>(r)])
          if (const Extent has = extent_of(before, *there, part, from); !has.empty())
            each_element(has, before.tensors[there->tensor].shape,
                         [&](std::int64_t index, std::int64_t) { lacks.erase(index); });
      if (!lacks.empty()) return false;
    }
  return true;
}

}  // namespace

TEST_CASE("places on any machines take every element: from memory of their machine, or from a place of another one") {
  const auto all = shapes();
  std::int64_t travelled = 0, at_home = 0;
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < all.size(); ++b) {
      const auto number = static_cast<unsigned>(a * all.size() + b);
      if (!test::is_drawn(number)) continue;
      CAPTURE(a);
      CAPTURE(b);
      const Plan before = kept_plan(all[a]), next = kept_plan(all[b]);
      Left left = left_by(before, next, 3);
      // A place stays on its machine; each machine that has memory has a place of the plan that comes.
      for (Rank r = 0; r < next.workers(); ++r)
        left.remains.machines.push_back(
            static_cast<std::int32_t>(philox(number, static_cast<std::uint64_t>(r), 5)[0] % 3));
      for (Rank r = 0; r < before.workers(); ++r)
        left.remains.area_machines.push_back(left.remains.machines[static_cast<std::size_t>(r % next.workers())]);
      HealingCluster cluster(next, left.remains);
      cluster.begin(next, 3);
      cluster.run();
      for (std::size_t r = 0; r < cluster.places.size(); ++r) {
        CAPTURE(r);
        REQUIRE(cluster.done[r].has_value());
        REQUIRE_MESSAGE(cluster.done[r]->ok(), cluster.done[r]->status().message());
        CHECK(has_all(next, cluster.places[r], 3));
        CHECK(**cluster.done[r] == lacking(next, cluster, r));
        if (has_machine_all(before, next, left.remains, static_cast<Rank>(r))) CHECK(**cluster.done[r] == 0);
        travelled += **cluster.done[r];
        at_home += **cluster.done[r] == 0;
      }
    }
  CHECK(travelled > test::of_drawn(100'000));
  CHECK(at_home > test::of_drawn(20));
}

TEST_CASE("a place whose own memory has the version sends to those of other machines, and takes nothing") {
  const Plan p = kept_plan({{3}});
  Left left = left_by(p, p, 3);
  left.remains.same_plan = true;
  left.remains.machines = {0, 1, 2};
  left.remains.area_machines = {-1, 1, 2};
  left.remains.areas[0] = nullptr;
  HealingCluster cluster(p, left.remains);
  cluster.begin(p, 3);
  cluster.run();
  for (std::size_t r = 0; r < 3; ++r) {
    REQUIRE(cluster.done[r].has_value());
    REQUIRE(cluster.done[r]->ok());
    CHECK((**cluster.done[r] > 0) == (r == 0));
    CHECK(has_all(p, cluster.places[r], 3) == (r == 0));  // the others' is where it was: they have been given none
  }
}

TEST_CASE("memory of another machine that has no place of the plan is no source") {
  const Plan before = kept_plan({{2}, 1, 1}), next = kept_plan({{1}});
  Left left = left_by(before, next, 3);
  left.remains.machines = {0};
  left.remains.area_machines = {0, 1};
  left.remains.areas[1] = nullptr;
  PlaceMemory m = empty_memory(next, 0);
  const auto bytes = heal(next, m.local, m.bytes.data(), left.remains, 3);
  CHECK(bytes.status().code() == Code::internal);  // half of the moments were there
}

TEST_CASE("a peer that is gone, and a place that is stopped, end healing without a byte more") {
  const Plan p = kept_plan({{2}});
  Left left = left_by(p, p, 3);
  left.remains.same_plan = true;
  left.remains.machines = {0, 1};
  left.remains.area_machines = {-1, 1};
  left.remains.areas[0] = nullptr;
  {
    HealingCluster cluster(p, left.remains);
    cluster.begin(p, 3);
    cluster.network.kill(1);
    cluster.run();
    REQUIRE(cluster.done[0].has_value());
    CHECK(cluster.done[0]->status().code() == Code::unavailable);
    CHECK(cluster.done[0]->status().message().find("healing '") != std::string::npos);
  }
  HealingCluster cluster(p, left.remains);
  cluster.begin(p, 3);
  cluster.stops[0]();
  cluster.run();
  CHECK_FALSE(cluster.done[0].has_value());
  CHECK_FALSE(has_all(p, cluster.places[0], 3));  // nothing more has begun
}
