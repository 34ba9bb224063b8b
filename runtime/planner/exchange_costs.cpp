// What exchanges move, and how long they take by the cost model.
#include <algorithm>
#include <deque>
#include <set>

#include "placement/boxing.h"
#include "placement/collective.h"
#include "runtime/place/gather_boxing.h"
#include "runtime/place/local_plan.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

struct ExchangeTime {
  double carried_s = 0, latency_s = 0, adding_s = 0;  // one after the other
  double seconds() const { return carried_s + latency_s + adding_s; }
};

/// Seconds in which a place adds `elements` that arrive as `from` to sums of type `to`.
double adding_seconds(std::int64_t elements, DType from, DType to, const CostModel& costs) {
  if (elements == 0) return 0;
  const char* op = to != DType::sum64 ? "add_into" : from == to ? "add_sums" : "add_terms";
  // Two operands are read, one is written.
  return costs.kernel_s(op, 0, static_cast<double>(elements * (size_of(from) + 2 * size_of(to))));
}

/// Messages, the smaller of two types, then the sums that they are terms of.
ExchangeTime time_of(const BoxingPlan& plan, DType from, DType to, const CostModel& costs) {
  const std::int64_t item = std::min(size_of(from), size_of(to));
  const double latency_s = boxing_seconds(plan, 0, costs);
  return {std::max(0.0, boxing_seconds(plan, item, costs) - latency_s), latency_s,
          adding_seconds(added_elements(plan), from, to, costs)};
}

/// Whether two moves have tensors that are equal except for their names and, of gradients, the parameter: every layer
/// has such moves.
bool alike(const Plan& plan, const PlanExchange::Pair& one, const PlanExchange::Pair& other) {
  const auto same = [&](std::int32_t s, std::int32_t t) {
    const PlanTensor &a = plan.tensors[s], &b = plan.tensors[t];
    return a.mesh == b.mesh && a.dtype == b.dtype && a.rate == b.rate && (a.gradient_of < 0) == (b.gradient_of < 0) &&
           a.shape == b.shape && a.sbp == b.sbp;
  };
  return same(one.from, other.from) && same(one.to, other.to);
}

/// The cost of moving one tensor. Layers repeat each other's boxings: each is worked out once.
class MoveCosts {
 public:
  explicit MoveCosts(const Plan& plan) : plan_(plan) {}

  struct Cost {
    Collective collective = Collective::none;
    std::int64_t bytes = 0;  // of the whole job
    ExchangeTime time;
  };
  const Cost& of(const PlanExchange::Pair& move) {
    auto& known = known_[{plan_.tensors[move.from].mesh, plan_.tensors[move.to].mesh}];
    for (const auto& [pair, cost] : known)
      if (alike(plan_, pair, move)) return cost;
    return known.emplace_back(move, work_out(move)).second;
  }

 private:
  Cost work_out(const PlanExchange::Pair& move) const {
    // The first dp coordinate stands for all: widths and shares differ by one unit at most.
    Layout from = plan_.layout(move.from, 0);
    const Layout to = plan_.layout(move.to, 0);
    const bool reduces = plan_.unreduced(plan_.tensors[move.from]);
    const DType left_as = from.dtype;
    // the smaller of two types travels
    const std::int64_t item = std::min(size_of(from.dtype), size_of(to.dtype));
    from.dtype = to.dtype;
    Cost cost{collective_of(from, to), 0, {}};
    for (const Rank rank : {to.mesh.ranks.front(), to.mesh.ranks.back()}) {
      const auto group = reduces ? Expected(reduction_group(plan_, move.from, move.to, rank))
                                 : boxing_group(from, to, rank);
      if (!group.ok()) return cost;  // local_plan() reports it with its names
      for (const auto& own : busy_parts(*group)) {
        const ExchangeTime time = time_of(own, left_as, to.dtype, plan_.costs);
        if (time.seconds() > cost.time.seconds()) cost.time = time;
      }
      // There is one reduction for each coordinate on the axes along which it does not add.
      if (reduces)
        cost.bytes = term_bytes(*group, item) * (to.mesh.size() / static_cast<std::int64_t>(group->to.size()));
    }
    if (!reduces) cost.bytes = direct_bytes(from, to) / size_of(to.dtype) * item;
    return cost;
  }

  /// At each end the first place has the largest part and the last one the fewest neighbours on its node.
  static std::vector<BoxingPlan> busy_parts(const BoxingGroup& group) {
    std::vector<BoxingPlan> parts;
    for (const auto* end : {&group.from, &group.to}) {
      if (end->empty()) continue;  // another place of a model axis brings the only term
      for (const Rank rank : {end->front().holder, end->back().holder})
        if (auto own = plan_boxing(group, rank); own.ok()) parts.push_back(*std::move(own));
    }
    return parts;
  }

  /// Each place gets every term of its share except its own.
  static std::int64_t term_bytes(const BoxingGroup& group, std::int64_t item) {
    std::set<Rank> brings;
    for (const auto& h : group.from) brings.insert(h.holder);
    std::int64_t elements = 0;
    for (const auto& h : group.to) elements += h.extent.elements() * (group.terms - (brings.count(h.holder) ? 1 : 0));
    return elements * item;
  }

  const Plan& plan_;
  // By meshes.
  std::map<std::pair<std::int32_t, std::int32_t>, std::deque<std::pair<PlanExchange::Pair, Cost>>> known_;
};

/// Elements that a gather moves: each share goes to every place that gets the whole, except to its own.
std::int64_t gathered_elements(const BoxingGroup& group) {
  std::set<Rank> targets;
  for (const auto& h : group.to) targets.insert(h.holder);
  std::int64_t elements = 0;
  for (const auto& h : group.from)
    elements += h.extent.elements() * (std::ssize(targets) - (targets.count(h.holder) ? 1 : 0));
  return elements;
}

/// Adds to `busy` the places of `line`, a row along dp, among which the busiest one is, odd links aside. Shares become
/// smaller along dp: of the places of one node the first sends most, the last receives most. Nodes in the middle have
/// equally many of the places, so the two nodes at each end stand for all.
void add_busy(const std::vector<Rank>& line, const CostModel& costs, std::set<Rank>& busy) {
  std::vector<std::pair<Rank, Rank>> nodes;  // the first and the last of their places
  for (const Rank rank : line) {
    if (nodes.empty() || !costs.on_one_node(nodes.back().second, rank)) nodes.push_back({rank, rank});
    nodes.back().second = rank;
  }
  for (std::size_t n = 0; n < nodes.size(); ++n)
    if (n < 2 || n + 2 >= nodes.size()) busy.insert({nodes[n].first, nodes[n].second});
}

/// Of the places that get the whole, and of those that only send.
std::set<Rank> busy_places(const BoxingGroup& group, const CostModel& costs) {
  std::vector<Rank> targets, others;
  for (const auto& h : group.to) targets.push_back(h.holder);
  const std::set<Rank> gets(targets.begin(), targets.end());
  for (const auto& h : group.from)
    if (!gets.count(h.holder)) others.push_back(h.holder);
  std::set<Rank> busy;
  add_busy(targets, costs, busy);
  add_busy(others, costs, busy);
  return busy;
}

/// A gather of ZeRO 3, in its first round.
void cost_gather(const Plan& plan, PlanExchange& x) {
  const PlanTensor &from = plan.tensors[x.moves[0].from], &to = plan.tensors[x.moves[0].to];
  x.collective = collective_of(plan.layout(x.moves[0].from, 0), plan.layout(x.moves[0].to, 0));
  const Mesh& mesh = plan.meshes[to.mesh];
  const auto groups = gather_groups(plan, x, 0, mesh.ranks[0]);
  if (!groups.ok()) return;  // local_plan() reports it with its names
  for (const Rank rank : busy_places(groups->front(), plan.costs)) {
    BoxingPlan own;
    for (const auto& group : *groups)
      if (const auto part = plan_boxing(group, rank); part.ok())  // else local_plan() reports it
        own.transfers.insert(own.transfers.end(), part->transfers.begin(), part->transfers.end());
    const ExchangeTime time = time_of(own, from.dtype, to.dtype, plan.costs);  // which adds nothing
    x.seconds = std::max(x.seconds, time.seconds());
    x.latency_s = std::max(x.latency_s, time.latency_s);
  }
  // There is one gather along dp for each coordinate on the model axes.
  const std::int64_t lines = mesh.size() / mesh.axis_size("dp");
  for (const auto& group : *groups)
    x.bytes += gathered_elements(group) * std::min(size_of(from.dtype), size_of(to.dtype)) * lines;
}

}  // namespace

void cost_exchanges(PlanDraft& draft) {
  const Plan& plan = draft.plan;
  MoveCosts costs(plan);
  std::vector<const PlanExchange*> gathers;  // one of each kind
  std::vector<double> adding_s(plan.exchanges.size());
  for (auto& x : draft.plan.exchanges) {
    if (x.rate == Rate::round && !plan.reduces(x)) {
      const auto known = std::find_if(gathers.begin(), gathers.end(), [&](const PlanExchange* g) {
        return g->program == x.program &&
               std::equal(g->moves.begin(), g->moves.end(), x.moves.begin(), x.moves.end(),
                          [&](const auto& one, const auto& other) { return alike(plan, one, other); });
      });
      if (known == gathers.end()) {
        cost_gather(plan, x);
        gathers.push_back(&x);
      } else {
        x.collective = (*known)->collective;
        x.bytes = (*known)->bytes;
        x.seconds = (*known)->seconds;
        x.latency_s = (*known)->latency_s;
      }
      continue;
    }
    x.collective = costs.of(x.moves[0]).collective;
    ExchangeTime all;  // the messages of its tensors leave together
    for (const auto& move : x.moves) {
      const auto& cost = costs.of(move);
      x.bytes += cost.bytes;
      all.carried_s += cost.time.carried_s;
      all.latency_s = std::max(all.latency_s, cost.time.latency_s);
      all.adding_s += cost.time.adding_s;
    }
    x.seconds = all.seconds();
    x.latency_s = all.latency_s + all.adding_s;
    adding_s[&x - draft.plan.exchanges.data()] = all.adding_s;
  }
  for (auto& role : draft.plan.roles)
    for (auto& a : role.actors)
      if (a.kind == PlanActor::Kind::exchange) a.cost_s = adding_s[a.exchange];
}

}  // namespace troupe::runtime
