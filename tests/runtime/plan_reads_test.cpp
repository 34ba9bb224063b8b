// What each place plans to read, send and get of a checkpoint, against one plan for all places.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "placement/boxing.h"
#include "runtime/worker/plan_reads.h"
#include "tests/runtime/cpu_seconds.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

using checkpoint::Manifest;
using checkpoint::StoredExtent;
using checkpoint::StoredTensor;
using checkpoint::TensorKind;

/// Cuts an extent at random, a few times, along any dim.
void cut(std::mt19937& random, const Extent& e, int depth, std::vector<Extent>& out) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < e.dims.size(); ++d)
    if (e.dims[d].size() > 1) dims.push_back(d);
  if (depth == 0 || dims.empty()) return out.push_back(e);
  const std::size_t d = dims[random() % dims.size()];
  Extent low = e, high = e;
  low.dims[d].hi = high.dims[d].lo = e.dims[d].lo + 1 + static_cast<std::int64_t>(random()) % (e.dims[d].size() - 1);
  cut(random, low, depth - static_cast<int>(1 + random() % 2), out);
  cut(random, high, depth - 1, out);
}

/// A checkpoint of a plan's parameters and moments in `files` files, in rectangles of any size.
Manifest cut_at_random(std::mt19937& random, const Plan& plan, std::int32_t files) {
  Manifest m;
  std::vector<std::int64_t> end(static_cast<std::size_t>(files), 0);
  for (const auto& p : plan.params)
    for (auto kind : checkpoint::tensor_kinds) {
      StoredTensor t{p.name, kind, DType::f32, plan.tensors[static_cast<std::size_t>(p.tensor)].shape, {}};
      std::vector<Extent> extents;
      cut(random, Extent::whole(t.shape), static_cast<int>(random() % 6), extents);
      std::shuffle(extents.begin(), extents.end(), random);
      for (auto& e : extents) {
        const auto file = static_cast<std::int32_t>(random() % static_cast<unsigned>(files));
        const std::int64_t bytes = aligned(e.elements() * 4, storage_alignment);
        t.extents.push_back({std::move(e), file, end[static_cast<std::size_t>(file)], {}});
        end[static_cast<std::size_t>(file)] += bytes;
      }
      m.tensors.push_back(std::move(t));
    }
  std::sort(m.tensors.begin(), m.tensors.end(),
            [](const auto& a, const auto& b) { return std::tie(a.parameter, a.kind) < std::tie(b.parameter, b.kind); });
  return m;
}

Layout wanted(const Plan& plan, const StoredTensor& t) {
  const auto& p = *std::find_if(plan.params.begin(), plan.params.end(),
                                [&](const auto& x) { return x.name == t.parameter; });
  const PlanTensor& want = plan.tensors[static_cast<std::size_t>(t.kind == TensorKind::parameter ? p.stored()
                                                                 : p.share >= 0                  ? p.share
                                                                                                 : p.tensor)];
  return {want.shape, t.dtype, plan.meshes[static_cast<std::size_t>(want.mesh)], want.sbp};
}

using Part = std::tuple<Rank, Rank, std::string, std::uint32_t>;  // from, to, extent, id
void add(std::vector<Part>& out, const std::vector<comm::Move::Part>& parts) {
  for (const auto& p : parts) out.push_back({p.transfer.from, p.transfer.to, to_string(p.transfer.extent), p.id});
}

}  // namespace

TEST_CASE(
    "what each place plans by itself is its part of one plan for all places: each extent read once, by the place that "
    "has least to read, and sent to those that need it") {
  std::mt19937 random(5);
  int replicas = 0, ways = 0;
  unsigned cases = 0;
  for (const auto& dp : {std::vector<std::int64_t>{1}, {2}, {5}, {2, 1}, {3, 2}})
    for (const std::int64_t tp : {1, 2})
      for (const std::int32_t zero : {0, 1, 3})
        for (const bool tied : {false, true}) {
          if (!test::is_drawn(cases++)) continue;
          CAPTURE(tp);
          CAPTURE(zero);
          CAPTURE(tied);
          Shape_ shape;
          shape.tied = tied;
          const auto plan = compile_over(graph(ops(), shape), dp, tp, zero);
          REQUIRE_MESSAGE(plan.ok(), plan.status().message());
          const Manifest manifest = cut_at_random(random, *plan, 3);
          const RestorePlaces places{nullptr, std::vector<std::int64_t>(plan->params.size(), 0),
                                     std::vector<std::int64_t>(plan->params.size(), 0)};
          // By rank, by tensor: what the place has to do with it.
          std::vector<std::map<const StoredTensor*, std::vector<Part>>> planned;
          std::vector<std::multiset<const StoredExtent*>> reads;
          std::map<const StoredTensor*, std::uint32_t> channels;
          for (Rank rank = 0; rank < plan->workers(); ++rank) {
            const auto batches = plan_reads(*plan, rank, manifest, places);
            REQUIRE_MESSAGE(batches.ok(), batches.status().message());
            auto& mine = planned.emplace_back();
            auto& read = reads.emplace_back();
            for (const auto& batch : *batches) {
              for (const auto& r : batch.reads) read.insert(r.extent);
              for (const auto& move : batch.moves) {
                CHECK(channels.try_emplace(move.tensor, move.channel).first->second == move.channel);
                for (const auto& m : move.route.moves) {
                  add(mine[move.tensor], m.sends);
                  add(mine[move.tensor], m.receives);
                  add(mine[move.tensor], m.locals);
                }
              }
            }
          }
          std::map<Rank, std::int64_t> load;
          for (const StoredTensor& t : manifest.tensors) {
            const Layout layout = wanted(*plan, t);
            std::vector<Holding> held, to;
            std::map<std::string, std::int64_t> offsets;
            for (const StoredExtent& e : t.extents) {
              Rank reader = -1;
              const auto needed_by = layout.holdings_intersecting(e.extent);
              replicas += needed_by.size() > 1;
              for (const Holding& h : needed_by)
                if (reader < 0 || std::pair(load[h.holder], h.holder) < std::pair(load[reader], reader))
                  reader = h.holder;
              load[reader] += e.extent.elements() * 4;
              held.push_back({reader, e.extent, {}});
              CHECK(reads[static_cast<std::size_t>(reader)].count(&e) == 1);
              reads[static_cast<std::size_t>(reader)].erase(&e);
            }
            for (std::int64_t p = 0; p < layout.mesh.size(); ++p)
              if (Holding h = layout.holding_at(p); !h.extent.empty())
                to.push_back({h.holder, std::move(h.extent), {}});
            const auto whole = plan_boxing(HoldingList(held), to);
            REQUIRE_MESSAGE(whole.ok(), whole.status().message());
            for (Rank rank = 0; rank < plan->workers(); ++rank) {
              std::vector<Part> expected;
              if (const auto position = layout.mesh.find(rank); position >= 0) {
                const Extent own = layout.extent_at(position);
                comm::MoveEnds ends;
                for (const Holding& h : held)
                  if (h.holder == rank) ends.have.push_back({h.extent, {}, 0});
                ends.want = &own;
                comm::Route route;
                comm::PartNumbers numbers;
                comm::add_move(route, rank, *whole, t.dtype, t.dtype, std::move(ends), numbers);
                for (const auto& m : route.moves) {
                  add(expected, m.sends);
                  add(expected, m.receives);
                  add(expected, m.locals);
                }
              }
              auto have = planned[static_cast<std::size_t>(rank)][&t];
              std::sort(have.begin(), have.end());
              std::sort(expected.begin(), expected.end());
              CHECK(have == expected);
              ways += expected.size() > 1;
            }
          }
          for (const auto& left : reads) CHECK(left.empty());  // read once
        }
  CHECK(replicas > test::of_drawn(1000));
  CHECK(ways > test::of_drawn(1000));
}

namespace {

constexpr std::int64_t rows_a_place = 4;

/// A plan of so many replicas of two parameters, "up" of [rows, 2] and "down" of [2, rows].
Expected<Plan> plan_of_replicas(std::int64_t places, std::int32_t zero) {
  const std::int64_t rows = rows_a_place * places;
  Graph g(ops());
  g.program("train", {places, 1});
  g.unit("in");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {1, 2}}}}, {{"stream", std::string("x")}})[0];
  const Value h = g.op("linear", {x, g.param("up", {rows, 2}, Init::normal(0.2f))})[0];
  const Value y = g.op("linear", {h, g.param("down", {2, rows}, Init::normal(0.2f))})[0];
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {1, 2}}}}, {{"stream", std::string("t")}})[0];
  g.minimize(g.op("mse_loss", {y, t}, {{"scale", 1e-3}})[0], {});
  return compile_over(g, {places}, 1, zero);
}

/// The checkpoint of a job of as many places: a file for each, in it its rows of each tensor.
Manifest manifest_of_replicas(std::int64_t places) {
  const std::int64_t rows = rows_a_place * places;
  Manifest manifest;
  for (const std::string name : {"down", "up"})
    for (auto kind : checkpoint::tensor_kinds) {
      StoredTensor stored{name, kind, DType::f32, {name == "up" ? rows : 2, name == "up" ? 2 : rows}, {}};
      for (std::int64_t i = 0; i < places; ++i) {
        Extent e = Extent::whole(stored.shape);
        e.dims[name == "up" ? 0 : 1] = split_range({0, rows}, places, i);
        stored.extents.push_back({std::move(e), static_cast<std::int32_t>(i), 0, {}});
      }
      manifest.tensors.push_back(std::move(stored));
    }
  return manifest;
}

const RestorePlaces in_replicas{nullptr, {0, 0}, {0, 0}};

}  // namespace

TEST_CASE(
    "a place of a thousand replicas plans what it reads, sends and gets itself: two ways for each extent, not a "
    "million") {
  const std::int64_t places = 1000;
  for (const std::int32_t zero : {0, 1}) {
    CAPTURE(zero);
    const auto plan = plan_of_replicas(places, zero);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const Manifest manifest = manifest_of_replicas(places);
    std::size_t reads = 0;
    for (const Rank rank : {0, 617, 999}) {
      const auto batches = plan_reads(*plan, rank, manifest, in_replicas);
      REQUIRE_MESSAGE(batches.ok(), batches.status().message());
      std::size_t own = 0, sends = 0, gets = 0;
      for (const auto& batch : *batches) {
        own += batch.reads.size();
        for (const auto& move : batch.moves)
          for (const auto& m : move.route.moves) {
            sends += m.sends.size();
            gets += m.receives.size() + m.locals.size();
          }
      }
      reads += own;
      if (zero == 0) {
        CHECK(gets == 6 * places);
        CHECK(sends == 6 * (places - 1));  // what it has read, to all others
      } else if (rank == 0) {
        // The two rows of down's moments are of places 0 and 1, which read their extents in turns. They have more to
        // read then than all others, so these read the whole parameter up.
        CHECK(own == 1 + places + 2);
        CHECK(gets == 2 * places + 2 * places + 2);  // parameters, down's moments, up's
        CHECK(sends == places - 1 + places);  // what it has read of down to all others, of its moments to place 1
      } else {
        CHECK(own == 2 + 2);
        CHECK(gets == 2 * places + 2);
        CHECK(sends == 2 * (places - 1));  // what it has read of parameters; up's moments are its own
      }
    }
    if (zero == 0) CHECK(reads == 3 * 6);  // 6,000 extents of one size among a thousand places
  }
}

TEST_CASE("what a place plans of a restore takes time in proportion to the replicas of the job, not to their square") {
  const auto seconds = [](std::int64_t places) {
    const auto plan = plan_of_replicas(places, 0);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const Manifest manifest = manifest_of_replicas(places);
    double least = HUGE_VAL;
    for (int times = 0; times < 3; ++times) {
      const double begin = cpu_seconds();
      const auto batches = plan_reads(*plan, 0, manifest, in_replicas);
      least = std::min(least, cpu_seconds() - begin);
      REQUIRE_MESSAGE(batches.ok(), batches.status().message());
    }
    return least;
  };
  const double few = seconds(100), many = seconds(1000);
  MESSAGE("100 replicas: " << few * 1e3 << " ms, 1,000: " << many * 1e3 << " ms");
  CHECK(many < 3 * 10 * few);
}
