// Exercises BX-1..5: plans of random pairs of layouts are carried out on real buffers.
#include <doctest/doctest.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "placement/boxing.h"
#include "placement/collective.h"
#include "placement/cost.h"
#include "placement/tree.h"
#include "tests/placement/random_layout.h"

using namespace troupe;

namespace {

constexpr std::int64_t kItem = 8;  // bytes of a double

/// The terms of a logical tensor: values whose sum depends on the order of the additions.
struct Truth {
  std::int32_t terms;
  std::vector<std::vector<double>> leaves;  // [term][element, row-major]

  Truth(std::mt19937& random, std::int64_t elements, std::int32_t n) : terms(n), leaves(n) {
    for (auto& leaf : leaves)
      for (std::int64_t e = 0; e < elements; ++e)
        leaf.push_back(static_cast<double>(static_cast<int>(random() % 2001) - 1000) / 7.0 *
                       (random() % 4 ? 1.0 : 1e9));
  }
  double sum(Term node, std::int64_t element) const {
    if (node.hi - node.lo == 1) return leaves[node.lo][element];
    const auto [left, right] = tree_children(node);
    return sum(left, element) + sum(right, element);
  }
};

/// What one place has: a holding and its values.
struct Store {
  Holding holding;
  std::vector<double> values;
};

std::vector<Store> filled(const std::vector<Holding>& holdings, const Truth& truth, const Extent& whole) {
  std::vector<Store> out;
  for (const auto& h : holdings) {
    Store s{h, std::vector<double>(h.extent.elements())};
    for_each_run(h.extent, whole, h.extent, [&](std::int64_t from, std::int64_t to, std::int64_t run) {
      for (std::int64_t i = 0; i < run; ++i) s.values[to + i] = truth.sum(h.term, from + i);
    });
    out.push_back(std::move(s));
  }
  return out;
}

/// Everything that can be wrong with a plan; empty when nothing is. `keep`: P -> P. `strict`: every
/// piece the destination holds can be used, so any byte of it from elsewhere is one too many.
std::string wrong_with(const BoxingPlan& plan, const std::vector<Store>& sources, const std::vector<Holding>& to,
                       const Truth& truth, const Extent& whole, bool keep, bool strict) {
  for (std::size_t i = 1; i < plan.transfers.size(); ++i)
    if (plan.transfers[i - 1].to > plan.transfers[i].to) return "transfers are not sorted";
  std::size_t used = 0;
  for (const auto& dest : to) {
    const std::int64_t n = dest.extent.elements();
    const bool zeros = truth.terms == 1 && dest.term.lo > 0;
    const Term needed = zeros ? Term{0, 0} : keep ? dest.term : Term{0, truth.terms};
    // Per element and leaf: how often it came, and the value of the node that starts there.
    std::vector<std::uint8_t> came(n * truth.terms, 0);
    std::vector<double> value(n * truth.terms, 0);
    std::vector<std::int32_t> end(n * truth.terms, 0);
    for (const auto& t : plan.transfers) {
      if (t.to != dest.holder) continue;
      ++used;
      const std::string what = to_string(Holding{t.from, t.extent, t.term}) + " to " + std::to_string(t.to);
      if (t.extent.empty() || !dest.extent.contains(t.extent)) return what + " is empty or goes too far";
      const Store* source = nullptr;
      for (const auto& s : sources) {
        if (s.holding.holder == t.from && s.holding.term == t.term && s.holding.extent.contains(t.extent)) source = &s;
        if (strict && t.from != t.to && s.holding.holder == t.to && s.holding.term.lo < t.term.hi &&
            t.term.lo < s.holding.term.hi && !intersect(s.holding.extent, t.extent).empty())
          return "BX-2 (local copies): " + what + " though the destination holds " + to_string(s.holding);
      }
      if (!source) return "BX-5 (one buffer): " + what + ": no one holding of the source has it";
      for_each_run(t.extent, source->holding.extent, dest.extent,
                   [&](std::int64_t from, std::int64_t at, std::int64_t run) {
                     for (std::int64_t i = 0; i < run; ++i) {
                       const auto base = (at + i) * truth.terms;
                       for (auto leaf = t.term.lo; leaf < t.term.hi; ++leaf) ++came[base + leaf];
                       value[base + t.term.lo] = source->values[from + i];
                       end[base + t.term.lo] = t.term.hi;
                     }
                   });
    }
    std::string wrong;
    for_each_run(dest.extent, dest.extent, whole, [&](std::int64_t at, std::int64_t logical, std::int64_t run) {
      for (std::int64_t i = 0; i < run && wrong.empty(); ++i) {
        const auto base = (at + i) * truth.terms;
        for (std::int32_t leaf = 0; leaf < truth.terms; ++leaf)
          if (came[base + leaf] != (leaf >= needed.lo && leaf < needed.hi))
            wrong = "BX-1 (coverage): " + to_string(dest) + ", element " + std::to_string(logical + i) + ", term " +
                    std::to_string(leaf) + " came " + std::to_string(came[base + leaf]) + " times";
        if (!wrong.empty() || zeros) continue;
        std::function<double(Term)> combine = [&](Term node) {
          if (end[base + node.lo] == node.hi) return value[base + node.lo];
          const auto [left, right] = tree_children(node);
          return combine(left) + combine(right);
        };
        if (combine(needed) != truth.sum(needed, logical + i))
          wrong = "BX-3 (tree order): " + to_string(dest) + ", element " + std::to_string(logical + i) + " differs";
      }
    });
    if (!wrong.empty()) return wrong;
  }
  if (used != plan.transfers.size()) return "a transfer goes to a place that did not ask";
  return {};
}

std::vector<Holding> holdings_of(const Layout& l) {
  std::vector<Holding> out;
  for (std::int64_t p = 0; p < l.mesh.size(); ++p) out.push_back(l.holding_at(p));
  return out;
}

/// Carries out one step between layouts. "" is fine; a plan refused is "refused: ...".
std::string wrong_between(std::mt19937& random, const Layout& from, const Layout& to, std::int64_t* moved = nullptr) {
  const auto plan = plan_boxing(from, to);
  if (!plan.ok()) return "refused: " + plan.status().message();
  if (moved) *moved += plan->moved_bytes(kItem);
  const Extent whole = Extent::whole(from.shape);
  const Truth truth(random, elements(from.shape), from.terms());
  const bool keep = from.terms() > 1 && to.terms() > 1;
  return wrong_with(*plan, filled(holdings_of(from), truth, whole), holdings_of(to), truth, whole, keep, true);
}

/// Two layouts of one shape, one another's neighbours more often than chance would have it.
std::pair<Layout, Layout> random_pair(std::mt19937& random) {
  const Shape shape = random_shape(random);
  const Mesh mesh = random_mesh(random);
  const Layout from = random_layout(random, shape, mesh);
  Layout to = from;
  switch (random() % 5) {
    case 0:  // one axis changes
      to.sbp[random() % to.sbp.size()] = random_sbp(random, shape, false);
      break;
    case 1:  // the same mesh
      to = random_layout(random, shape, mesh, random() % 4 == 0);
      break;
    case 2:  // other places, disjoint
      to = random_layout(random, shape, random_mesh(random, 64), random() % 4 == 0);
      break;
    case 3:  // other places, overlapping
      to = random_layout(random, shape, random_mesh(random, static_cast<Rank>(random() % 8)), random() % 4 == 0);
      break;
    case 4:  // nothing P any more
      for (auto& s : to.sbp)
        if (s.is_partial()) s = random() % 2 ? Sbp::B() : random_sbp(random, shape, false);
      break;
  }
  return {from, to};
}

Layout on(std::vector<Axis> axes, NdSbp sbp, Shape shape = {8, 6}, Rank first = 0) {
  return {std::move(shape), DType::f64, Mesh::dense(std::move(axes), first), std::move(sbp)};
}

}  // namespace

TEST_CASE("BX-1, BX-2, BX-3: 20,000 random pairs of layouts, carried out, give every element its value") {
  int refused = 0, multi_term = 0;
  for (unsigned seed = 1; seed <= 20'000; ++seed) {
    std::mt19937 random(seed);
    const auto [from, to] = random_pair(random);
    INFO("seed " << seed << ": " << to_string(from) << " -> " << to_string(to));
    const std::string wrong = wrong_between(random, from, to);
    multi_term += from.terms() > 1;
    if (from.terms() > 1 && to.terms() > 1 && from.terms() != to.terms()) {
      REQUIRE(wrong.find("refused: cannot box") == 0);
      ++refused;
    } else {
      REQUIRE(wrong == "");
    }
  }
  CHECK(refused > 50);
  CHECK(multi_term > 3000);
}

TEST_CASE("lower_boxing moves exactly lower_bound_bytes where a collective fits, and its steps compose") {
  std::map<std::string, int> seen;
  for (unsigned seed = 1; seed <= 10'000; ++seed) {
    std::mt19937 random(seed);
    const auto [from, to] = random_pair(random);
    const Collective c = collective_of(from, to);
    INFO("seed " << seed << ": " << to_string(from) << " -> " << to_string(to) << ": " << std::string(to_string(c)));
    const auto steps = lower_boxing(from, to);
    REQUIRE(steps.back() == to);
    std::int64_t moved = 0;
    const Layout* at = &from;
    std::string wrong;
    for (const auto& next : steps) {
      wrong = wrong_between(random, *at, next, &moved);
      if (!wrong.empty()) break;
      at = &next;
    }
    if (from.terms() > 1 && to.terms() > 1 && from.terms() != to.terms()) continue;  // refused
    REQUIRE(wrong == "");
    if (c == Collective::none || c == Collective::slice) {
      REQUIRE(moved == 0);
      REQUIRE(lower_bound_bytes(from, to) == 0);
    }
    const std::int64_t bound = lower_bound_bytes(from, to);
    if (steps.size() > 1) REQUIRE(c == Collective::all_reduce);
    std::int64_t places = 1;  // that one all_reduce joins
    for (std::size_t a = 0; a < from.sbp.size() && c == Collective::all_reduce; ++a)
      if (from.sbp[a].is_partial()) places *= from.mesh.axes[a].size;
    const bool too_small = c == Collective::all_reduce && places > 2 && steps.size() == 1;
    if (too_small) REQUIRE(moved >= bound);
    else REQUIRE(moved == bound);
    ++seen[std::string(to_string(c)) + (too_small ? ", too small" : "")];
  }
  for (const char* name : {"none", "slice", "all_gather", "reduce_scatter", "all_reduce", "all_reduce, too small",
                           "all_to_all", "broadcast", "send_recv", "transfers"}) {
    INFO(name);
    CHECK(seen[name] >= 10);
  }
}

TEST_CASE("sums already made: any holders, any nodes of the tree, are combined as one owner would") {
  int with_sums = 0, refused = 0;
  for (unsigned seed = 1; seed <= 5'000; ++seed) {
    std::mt19937 random(seed);
    const Shape shape = random_shape(random);
    if (elements(shape) == 0) continue;
    const auto terms = static_cast<std::int32_t>(1 + random() % 12);
    const Extent whole = Extent::whole(shape);
    const bool leaves_too = random() % 2;
    // Holders own random rectangles (a random layout's) of random nodes.
    std::vector<Holding> holdings;
    auto scatter = [&](Term node) {
      const Layout tiles = random_layout(random, shape, random_mesh(random, static_cast<Rank>(random() % 8)), false);
      for (Holding h : holdings_of(tiles))
        if (!h.extent.empty()) holdings.push_back({h.holder, h.extent, node});
    };
    std::function<void(Term)> cover = [&](Term node) {
      const bool leaf = node.hi - node.lo == 1;
      const bool stop = leaf || random() % 3 == 0;
      if (stop || random() % 4 == 0) {  // sometimes also a sum of what is held in parts
        scatter(node);
        with_sums += !leaf;
      }
      if (leaf || (stop && !leaves_too)) return;
      const auto [left, right] = tree_children(node);
      cover(left);
      cover(right);
    };
    if (leaves_too)
      for (std::int32_t t = 0; t < terms; ++t) scatter({t, t + 1});
    cover({0, terms});
    const Layout destination = random_layout(random, shape, random_mesh(random, static_cast<Rank>(random() % 8)),
                                             false);
    const auto to = holdings_of(destination);
    INFO("seed " << seed << ": " << terms << " terms, " << holdings.size() << " holdings -> "
                 << to_string(destination));
    const Truth truth(random, elements(shape), terms);
    const auto plan = plan_boxing(HoldingList(holdings, terms), to);
    REQUIRE(plan.status().message() == "");
    REQUIRE(wrong_with(*plan, filled(holdings, truth, whole), to, truth, whole, false, leaves_too) == "");
    // BX-1 the other way round: take a random holding away. Either others have it, or the plan is refused.
    const std::size_t gone = random() % holdings.size();
    const Holding lost = holdings[gone];
    holdings.erase(holdings.begin() + static_cast<std::ptrdiff_t>(gone));
    const auto less = plan_boxing(HoldingList(holdings, terms), to);
    if (less.ok()) {
      REQUIRE(wrong_with(*less, filled(holdings, truth, whole), to, truth, whole, false, false) == "");
    } else {
      ++refused;
      REQUIRE(less.status().code() == Code::not_found);
      REQUIRE(less.status().message().find("no place holds [") == 0);
    }
  }
  CHECK(with_sums > 500);
  CHECK(refused > 500);
}

TEST_CASE("what no place holds is named: the rectangle, the term and who needs it") {
  const HoldingList rows({{0, {{{0, 4}, {0, 6}}}, {}}, {1, {{{5, 8}, {0, 6}}}, {}}});
  const auto plan = plan_boxing(rows, {{3, {{{2, 8}, {0, 3}}}, {}}});
  CHECK(plan.status().code() == Code::not_found);
  CHECK(plan.status().message() == "no place holds [4:5, 0:3], which rank 3 needs");
  const HoldingList sums({{0, {{{0, 8}}}, {0, 2}}, {1, {{{0, 8}}}, {3, 4}}}, 4);
  CHECK(plan_boxing(sums, {{0, {{{0, 8}}}, {}}}).status().message() ==
        "no place holds [0:8], term 2:3 of 4, which rank 0 needs");
}

TEST_CASE("what cannot be a boxing is refused, and why") {
  const Layout p4 = on({{"a", 4}}, {Sbp::P()});
  CHECK(plan_boxing(p4, on({{"a", 2}}, {Sbp::P()})).status().message() ==
        "cannot box [8, 6] f64 {a: 4} (P) to [8, 6] f64 {a: 2} (P): a sum of 4 terms cannot become one of 2: "
        "sum it first (to B or S), or keep its terms");
  CHECK(plan_boxing(p4, on({{"a", 4}}, {Sbp::B()}, {8, 7})).status().code() == Code::invalid);
  Layout half = p4;
  half.dtype = DType::bf16;
  CHECK(plan_boxing(p4, half).status().code() == Code::invalid);
  CHECK(plan_boxing(p4, on({{"a", 4}}, {Sbp::S(2)})).status().message().find("boxing to: S(2)") == 0);
  const HoldingList no_node({{0, {{{0, 8}}}, {1, 3}}}, 4);
  CHECK(plan_boxing(no_node, {{0, {{{0, 8}}}, {}}}).status().message().find("node of the reduction tree") !=
        std::string::npos);
  CHECK(plan_boxing(p4, holdings_of(p4)).status().message().find("say so with to_terms") != std::string::npos);
  CHECK(plan_boxing(p4, holdings_of(p4), 4)->moved_bytes(8) == 0);
}

TEST_CASE("B -> P: one holder keeps the value, nothing moves; S -> P gathers it there") {
  const auto keep = plan_boxing(on({{"a", 4}}, {Sbp::B()}), on({{"a", 4}}, {Sbp::P()}));
  REQUIRE(keep.ok());
  CHECK(keep->transfers == std::vector<Transfer>{{0, 0, Extent::whole({8, 6}), {}}});
  const auto gather = plan_boxing(on({{"a", 4}}, {Sbp::S(0)}), on({{"a", 4}}, {Sbp::P()}));
  REQUIRE(gather.ok());
  CHECK(gather->transfers.size() == 4);
  CHECK(gather->received_bytes(0, 8) == 6 * 6 * 8);
  CHECK(gather->moved_bytes(8) == 6 * 6 * 8);
}

TEST_CASE("BX-4 (replica choice): replicas share the work evenly, neighbours first") {
  // Four replicas of each half serve eight new places that want everything.
  const Layout from = on({{"s", 2}, {"r", 4}}, {Sbp::S(0), Sbp::B()});
  for (const Layout& to : {on({{"x", 8}}, {Sbp::B()}, {8, 6}, 8), on({{"x", 8}}, {Sbp::S(0)}, {8, 6}, 8),
                           on({{"r", 4}, {"s", 2}}, {Sbp::B(), Sbp::S(0)}, {8, 6}, 8)}) {
    const auto plan = plan_boxing(from, to);
    REQUIRE(plan.ok());
    for (Rank r = 0; r < 8; ++r) CHECK(plan->sent_bytes(r, 8) == plan->moved_bytes(8) / 8);
    CHECK(plan->transfers == plan_boxing(from, to)->transfers);
  }
}

TEST_CASE(
    "what one place plans for itself is its part of the whole plan, and arithmetic knows the bytes: 6,000 random "
    "pairs") {
  int alone = 0, divided = 0;
  for (unsigned seed = 1; seed <= 6'000; ++seed) {
    std::mt19937 random(seed);
    const auto [from, to] = random_pair(random);
    INFO("seed " << seed << ": " << to_string(from) << " -> " << to_string(to));
    const auto whole = plan_boxing(from, to);
    if (!whole.ok()) continue;
    REQUIRE(direct_bytes(from, to) == whole->moved_bytes(kItem));
    std::set<Rank> ranks(from.mesh.ranks.begin(), from.mesh.ranks.end());
    ranks.insert(to.mesh.ranks.begin(), to.mesh.ranks.end());
    for (const Rank rank : ranks) {
      const auto group = boxing_group(from, to, rank);
      REQUIRE(group.ok());
      alone += !group->replicas;
      divided += from.mesh == to.mesh && group->from.size() < static_cast<std::size_t>(from.mesh.size());
      const auto own = plan_boxing(*group, rank);
      REQUIRE_MESSAGE(own.ok(), own.status().message());
      auto expected = whole->transfers;
      std::erase_if(expected, [&](const Transfer& t) { return t.from != rank && t.to != rank; });
      REQUIRE(own->transfers == expected);
    }
  }
  CHECK(alone > 3000);
  CHECK(divided > 3000);
}

TEST_CASE("transfers are as large as they can be: boundaries of others do not cut them") {
  std::vector<Holding> holdings = {{0, {{{0, 8}, {0, 6}}}, {}}};  // holds all itself; others hold tiles
  for (const Holding& h : holdings_of(on({{"a", 2}, {"b", 3}}, {Sbp::S(0), Sbp::S(1)}, {8, 6}, 1)))
    holdings.push_back(h);
  const auto local = plan_boxing(HoldingList(holdings), {{0, {{{0, 8}, {0, 6}}}, {}}});
  REQUIRE(local.ok());
  CHECK(local->transfers.size() == 1);
  // Rank 9 needs terms 0 and 1; those of term 1 are cut in tiles, those of term 0 are not.
  for (auto& h : holdings) h.term = h.holder == 0 ? Term{0, 1} : Term{1, 2};
  const auto remote = plan_boxing(HoldingList(holdings, 2), {{9, {{{0, 8}, {0, 6}}}, {}}});
  REQUIRE(remote.ok());
  CHECK(remote->transfers.size() == 7);
}

TEST_CASE("BX-5: two holdings of one holder stay two transfers, on either side") {
  auto rows = [](std::int64_t lo, std::int64_t hi) { return Extent{{{lo, hi}, {0, 6}}}; };
  const HoldingList two({{0, rows(0, 4), {}}, {0, rows(4, 8), {}}});
  const auto from_two = plan_boxing(two, {{1, rows(0, 8), {}}});
  REQUIRE(from_two.ok());
  CHECK(from_two->transfers == std::vector<Transfer>{{0, 1, rows(0, 4), {}}, {0, 1, rows(4, 8), {}}});
  const HoldingList one({{0, rows(0, 8), {}}});
  const auto to_two = plan_boxing(one, {{1, rows(0, 4), {}}, {1, rows(4, 8), {}}});
  REQUIRE(to_two.ok());
  CHECK(to_two->transfers == from_two->transfers);
}

TEST_CASE("collectives have their usual names") {
  auto name = [](const Layout& a, const Layout& b) { return std::string(to_string(collective_of(a, b))); };
  const auto axes = std::vector<Axis>{{"dp", 2}, {"tp", 4}};
  const auto S0 = Sbp::S(0), S1 = Sbp::S(1), B = Sbp::B(), P = Sbp::P();
  CHECK(name(on(axes, {S0, S1}), on(axes, {S0, S1})) == "none");
  CHECK(name(on(axes, {S0, B}), on(axes, {S0, P})) == "none");
  CHECK(name(on(axes, {B, B}), on(axes, {B, S0})) == "slice");
  CHECK(name(on(axes, {S0, S1}), on(axes, {S0, B})) == "all_gather");
  CHECK(name(on(axes, {S0, S1}), on(axes, {B, B})) == "all_gather");  // both axes in the same way
  CHECK(name(on(axes, {P, S1}), on(axes, {S0, S1})) == "reduce_scatter");
  CHECK(name(on(axes, {S0, P}), on(axes, {S0, B})) == "all_reduce");
  CHECK(name(on(axes, {P, P}), on(axes, {B, B})) == "all_reduce");
  CHECK(name(on(axes, {B, S0}), on(axes, {B, S1})) == "all_to_all");
  CHECK(name(on(axes, {S0, B}), on(axes, {B, S0})) == "transfers");
  CHECK(name(on(axes, {S0, S0}), on(axes, {B, S0})) == "transfers");  // the later axis cuts the same dim
  CHECK(name(on(axes, {S0, S0}), on(axes, {S0, B})) == "all_gather");
  CHECK(name(on({{"one", 1}}, {B}), on(axes, {B, B})) == "broadcast");
  CHECK(name(on(axes, {S0, S1}), on(axes, {S0, S1}, {8, 6}, 8)) == "send_recv");
  CHECK(name(on(axes, {S0, S1}), on(axes, {S0, S1}, {8, 6}, 4)) == "transfers");
}

TEST_CASE("an all_reduce of more than two places goes through a scatter; of two it is one exchange") {
  const Layout p = on({{"dp", 4}}, {Sbp::P()}, {3, 8}), b = on({{"dp", 4}}, {Sbp::B()}, {3, 8});
  const auto steps = lower_boxing(p, b);
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].sbp == NdSbp{Sbp::S(1)});  // dim 0 is too short for four
  CHECK(lower_bound_bytes(p, b) == 2 * 3 * 24 * 8);
  CHECK(lower_boxing(on({{"dp", 2}}, {Sbp::P()}), on({{"dp", 2}}, {Sbp::B()})).size() == 1);
  // A later axis that cuts dim 0 forbids a scatter along it.
  const auto around = lower_boxing(on({{"dp", 4}, {"tp", 2}}, {Sbp::P(), Sbp::S(0)}, {16, 8}),
                                   on({{"dp", 4}, {"tp", 2}}, {Sbp::B(), Sbp::S(0)}, {16, 8}));
  REQUIRE(around.size() == 2);
  CHECK(around[0].sbp == NdSbp{Sbp::S(1), Sbp::S(0)});
}

TEST_CASE("hundreds of places are planned in a blink") {
  const auto begin = std::chrono::steady_clock::now();
  const Layout p({4096, 4096}, DType::f32, Mesh::dense({{"dp", 32}, {"tp", 8}}), {Sbp::P(), Sbp::S(1)});
  const Layout s({4096, 4096}, DType::f32, p.mesh, {Sbp::S(0), Sbp::S(1)});
  const Layout b({4096, 4096}, DType::f32, p.mesh, {Sbp::B(), Sbp::S(1)});
  const Layout other({4096, 4096}, DType::f32, Mesh::dense({{"dp", 16}, {"tp", 16}}, 100), {Sbp::S(1), Sbp::S(0)});
  for (const auto& [from, to] : {std::pair(p, s), std::pair(s, b), std::pair(s, other), std::pair(b, other)}) {
    const auto plan = plan_boxing(from, to);
    REQUIRE(plan.ok());
    CHECK(plan->moved_bytes(4) <= std::max<std::int64_t>(lower_bound_bytes(from, to), 0));
  }
  const double s_taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MESSAGE("256 places, four boxings: " << s_taken << " s");
  CHECK(s_taken < 2);
}

TEST_CASE("costs: roofline kernels; the slowest place's messages") {
  CostModel model;
  model.flops_per_s = 1e9;
  model.memory_bytes_per_s = 1e8;
  model.launch_s = 1e-6;
  CHECK(model.kernel_s(2e9, 1) == doctest::Approx(2.000001));
  CHECK(model.kernel_s(1, 2e8) == doctest::Approx(2.000001));
  model.intra_node = {1.0, 8.0};
  model.inter_node = {10.0, 4.0};
  model.places_per_node = 2;
  const Extent e{{{0, 4}}};  // 32 bytes: 4 + 1 s within a node, 8 + 10 between, at ports of their own
  const BoxingPlan plan{{{0, 0, e, {}}, {1, 0, e, {}}, {0, 1, e, {}}, {3, 0, e, {}}}, 1};
  CHECK(boxing_seconds(plan, 8, model) == doctest::Approx(18));
  CHECK(boxing_seconds(plan, 0, model) == doctest::Approx(10));
  model.slow_kernels(3);
  CHECK(model.kernel_s(2e9, 1) == doctest::Approx(3 * 2.000001));
  CHECK(model.kernel_s(1, 2e8) == doctest::Approx(3 * 2.000001));
  CHECK(boxing_seconds({}, 8, model) == 0);
  CHECK(added_elements(plan) == 0);
  CHECK(added_elements({plan.transfers, 2}) == 8);     // place 0 adds what comes from 1 and 3
  CHECK(added_elements({plan.transfers, 2, 2}) == 0);  // a sum that stays partial
}

TEST_CASE("messages share the port of a place, each way, and take the links of their pairs and the latency together") {
  CostModel model;
  model.places_per_node = 4;
  model.intra_node = {100, 8, 2};  // 32 bytes: 4 s of a port, 16 s of a link
  const Extent e{{{0, 4}}};
  const auto seconds = [&](std::vector<Transfer> transfers) {
    return boxing_seconds({std::move(transfers), 1}, 8, model);
  };
  CHECK(seconds({{1, 0, e, {}}}) == doctest::Approx(4 + 16 + 100));
  CHECK(seconds({{1, 0, e, {}}, {2, 0, e, {}}, {3, 0, e, {}}}) == doctest::Approx(3 * 4 + 16 + 100));
  CHECK(seconds({{0, 1, e, {}}, {0, 2, e, {}}, {0, 3, e, {}}}) == doctest::Approx(3 * 4 + 16 + 100));
  CHECK(seconds({{0, 1, e, {}}, {1, 0, e, {}}}) == doctest::Approx(4 + 16 + 100));
  CHECK(seconds({{1, 0, e, {}}, {1, 0, e, {}}}) == doctest::Approx(4 + 2 * 16 + 100));
  CHECK(model.intra_node.alone_bytes_per_s() == doctest::Approx(32.0 / 20));
}
