// Chains: segments that activations connect inside the compute stream. Channels from the last segments of a chain to
// its first ones make its activations take turns in memory (LT-1 acts).
#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/place/lifetimes.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

/// Segments that pass activations on to each other inside the compute stream, and those channels.
struct Chain {
  std::vector<std::int32_t> segments, channels;
};

/// An activation that stays on the compute stream, in one slot, from a segment to others of its program.
bool stays_on_stream(const PlanRole& role, const PlanChannel& c) {
  if (c.kind != PlanChannel::Kind::activation || c.writer < 0 || c.slots != 1 || c.rate != Rate::microbatch ||
      c.readers.empty())
    return false;
  const auto segment = [&](std::int32_t a) {
    return role.actors[a].kind == PlanActor::Kind::segment && role.actors[a].rate == Rate::microbatch;
  };
  return segment(c.writer) &&
         std::all_of(c.readers.begin(), c.readers.end(), [&](const PlanReader& r) { return segment(r.actor); });
}

std::vector<Chain> chains_of(const PlanRole& role) {
  std::vector<std::int32_t> root(role.actors.size());
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](std::int32_t a) {
    while (root[a] != a) a = root[a] = root[root[a]];
    return a;
  };
  for (const auto& c : role.channels)
    if (stays_on_stream(role, c))
      for (const auto& r : c.readers) root[find(r.actor)] = find(c.writer);
  std::map<std::int32_t, Chain> chains;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(role.channels.size()); ++id)
    if (stays_on_stream(role, role.channels[id])) chains[find(role.channels[id].writer)].channels.push_back(id);
  std::vector<Chain> out;
  for (auto& [at, chain] : chains) {
    for (std::int32_t a = 0; a < static_cast<std::int32_t>(role.actors.size()); ++a)
      if (find(a) == at) chain.segments.push_back(a);
    out.push_back(std::move(chain));
  }
  return out;
}

/// Whether work of one microbatch leaves the chain and comes back: an exchange between two of its segments, a buffer of
/// a ring that a channel frees for another.
bool comes_back(const PlanRole& role, const Chain& chain) {
  std::vector<bool> member(role.actors.size(), false), seen(role.actors.size(), false);
  for (auto a : chain.segments) member[a] = true;
  std::vector<std::int32_t> left = chain.segments;
  while (!left.empty()) {
    const PlanActor& a = role.actors[left.back()];
    const bool inside = member[left.back()];
    left.pop_back();
    for (auto id : a.out) {
      const PlanChannel& c = role.channels[id];
      if (c.rate == Rate::step || c.kind == PlanChannel::Kind::delayed) continue;
      for (const auto& r : c.readers) {
        if (role.actors[r.actor].program != a.program) continue;
        if (member[r.actor] && !inside) return true;
        if (member[r.actor] || seen[r.actor]) continue;
        seen[r.actor] = true;
        left.push_back(r.actor);
      }
    }
  }
  return false;
}

}  // namespace

void close_chains(PlanDraft& draft) {
  for (auto& role : draft.plan.roles) {
    for (const Chain& chain : chains_of(role)) {
      // of two, one is read while the other is written
      if (chain.channels.size() < 3 || comes_back(role, chain)) continue;
      std::vector<ActorRef> first, last;
      for (auto a : chain.segments) {
        const auto inside = [&](const std::vector<std::int32_t>& ports) {
          return std::any_of(ports.begin(), ports.end(),
                             [&](auto id) { return std::count(chain.channels.begin(), chain.channels.end(), id) > 0; });
        };
        if (!inside(role.actors[a].in)) first.push_back({role.stage, a});
        if (!inside(role.actors[a].out)) last.push_back({role.stage, a});
      }
      const Lifetimes lifetimes(draft.plan, role);
      for (const ActorRef& end : last) {
        std::vector<ActorRef> waits;
        for (const ActorRef& begin : first)
          if (lifetimes.tokens_between(end.actor, begin.actor) == Lifetimes::apart) waits.push_back(begin);
        if (waits.empty()) continue;
        PlanChannel turn;
        turn.kind = PlanChannel::Kind::turn;
        turn.name = "chain." + draft.at(end).name;
        turn.slots = 2;  // as in a ring
        turn.initial = true;
        draft.connect(std::move(turn), end, waits);
      }
    }
  }
}

}  // namespace troupe::runtime
