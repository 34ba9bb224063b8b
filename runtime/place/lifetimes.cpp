#include "runtime/place/lifetimes.h"

#include <algorithm>
#include <deque>
#include <map>

namespace troupe::runtime {

Lifetimes::Lifetimes(const Plan& plan, const PlanRole& role) : plan_(plan), role_(role) {
  const std::size_t actors = role.actors.size();
  act_edges_.resize(actors + 1);
  step_edges_.resize(actors + 1);
  acts_.resize(actors + 1);
  steps_.resize(actors + 1);
  const auto commit = static_cast<std::int32_t>(actors);
  const auto edge = [](std::vector<std::vector<Edge>>& edges, std::int32_t from, std::int32_t to, std::int32_t tokens) {
    edges[static_cast<std::size_t>(from)].push_back({to, tokens});
  };
  for (const auto& c : role.channels) {
    const std::int32_t begun = c.initial ? 1 : 0;
    for (const auto& r : c.readers) {
      const PlanActor& reader = role.actors[r.actor];
      if (c.writer < 0) {
        if (c.kind == PlanChannel::Kind::commit && plan.trains()) edge(step_edges_, commit, r.actor, 0);
        continue;
      }
      // A step begins without a token of the step before: the channel joins no acts of two steps.
      if (c.kind == PlanChannel::Kind::delayed) continue;
      const PlanActor& writer = role.actors[c.writer];
      if (writer.program != reader.program) continue;
      const bool act = c.rate == Rate::microbatch && writer.rate == Rate::microbatch && reader.rate == Rate::microbatch;
      if (!act && c.rate != Rate::step) continue;
      auto& edges = act ? act_edges_ : step_edges_;
      edge(edges, c.writer, r.actor, begun);
      edge(edges, r.actor, c.writer, c.slots - begun);
    }
  }
  for (std::int32_t a = 0; a < commit; ++a)
    if (role.actors[a].closes_step && plan.is_step_program(role.actors[a].program)) edge(step_edges_, a, commit, 0);
}

std::optional<Tenant> Lifetimes::channel(std::int32_t id) const {
  using Kind = PlanChannel::Kind;
  const PlanChannel& c = role_.channels[id];
  const bool kind = c.kind == Kind::activation || c.kind == Kind::stash || c.kind == Kind::boundary ||
                    c.kind == Kind::reduced || c.kind == Kind::rounded;
  if (!kind || c.writer < 0 || c.initial || c.ring >= 0 || c.rate == Rate::round) return std::nullopt;
  Tenant t{"channel '" + c.name + "'",
           role_.actors[c.writer].program,
           {c.writer},
           {},
           c.slots == 1 && c.rate == Rate::microbatch};
  for (const auto& r : c.readers) t.ends.push_back(r.actor);
  if (t.ends.empty()) t.ends = t.begins;
  for (auto a : t.ends)
    if (role_.actors[a].program != t.program) return std::nullopt;
  for (const auto* ends : {&t.begins, &t.ends})
    for (auto a : *ends) t.one_act = t.one_act && role_.actors[a].rate == Rate::microbatch;
  return t;
}

std::optional<Tenant> Lifetimes::staging(const std::vector<std::int32_t>& actors) const {
  const PlanActor& first = role_.actors[actors.front()];
  for (auto a : actors)
    if (const PlanActor& x = role_.actors[a]; x.exchange < 0 || x.rate != Rate::step || x.program != first.program)
      return std::nullopt;
  return Tenant{"the staging memory of '" + first.name + "'", first.program, actors, actors, false};
}

template <class From>
std::int32_t Lifetimes::most(const std::vector<std::int32_t>& from, const std::vector<std::int32_t>& to,
                             From&& tokens) const {
  std::int32_t out = 0;
  for (auto f : from)
    for (auto t : to) out = std::max<std::int32_t>(out, tokens(f)[static_cast<std::size_t>(t)]);
  return out;
}

bool Lifetimes::exclude(const Tenant& a, const Tenant& b) const {
  if (a.program != b.program) return false;  // LT-3 (programs)
  const auto turns = [&](auto&& tokens) {
    return most(a.ends, b.begins, tokens) + most(b.ends, a.begins, tokens) <= 1;
  };
  if (a.one_act && b.one_act && turns([this](std::int32_t from) -> const Tokens& { return acts_from(from); }))
    return true;
  return turns([this](std::int32_t from) -> const Tokens& { return steps_from(from); });
}

namespace {

/// Searches for the paths with fewest tokens, of one edge or more, from one node; edges have none, one, or too many.
class FewestTokens {
 public:
  FewestTokens(std::size_t nodes) : found_(nodes, Lifetimes::apart) {}
  void reach(std::size_t node, std::int32_t tokens) {
    if (tokens >= found_[node]) return;
    found_[node] = static_cast<std::uint8_t>(tokens);
    if (tokens == 0) queue_.push_front(node);
    else queue_.push_back(node);
  }
  /// Calls `leave(node, tokens)` for each node that is reached.
  template <class Leave>
  std::vector<std::uint8_t> run(Leave&& leave) {
    while (!queue_.empty()) {
      const std::size_t node = queue_.front();
      queue_.pop_front();
      leave(node, static_cast<std::int32_t>(found_[node]));
    }
    return found_;
  }

 private:
  std::vector<std::uint8_t> found_;
  std::deque<std::size_t> queue_;
};

}  // namespace

const Lifetimes::Tokens& Lifetimes::acts_from(std::int32_t actor) const {
  Tokens& out = acts_[static_cast<std::size_t>(actor)];
  if (!out.empty()) return out;
  FewestTokens search(act_edges_.size());
  const auto leave = [&](std::size_t node, std::int32_t tokens) {
    for (const Edge& e : act_edges_[node]) search.reach(static_cast<std::size_t>(e.to), tokens + e.tokens);
  };
  leave(static_cast<std::size_t>(actor), 0);
  return out = search.run(leave);
}

const Lifetimes::Tokens& Lifetimes::steps_from(std::int32_t actor) const {
  Tokens& out = steps_[static_cast<std::size_t>(actor)];
  if (!out.empty()) return out;
  // Node n: reached by edges of acts alone, act by act; node n + size: reached after an edge of steps, from all acts.
  const std::size_t size = step_edges_.size();
  FewestTokens search(2 * size);
  const auto leave = [&](std::size_t at, std::int32_t tokens) {
    const std::size_t all = at < size ? 0 : size, node = at - all;
    for (const Edge& e : act_edges_[node])
      if (e.tokens == 0) search.reach(static_cast<std::size_t>(e.to) + all, tokens);
    for (const Edge& e : step_edges_[node]) search.reach(static_cast<std::size_t>(e.to) + size, tokens + e.tokens);
  };
  leave(static_cast<std::size_t>(actor), 0);
  const auto found = search.run(leave);
  return out = Tokens(found.begin() + static_cast<std::ptrdiff_t>(size), found.end());
}

std::vector<std::vector<std::int32_t>> staging_users(const PlanRole& role) {
  std::vector<std::vector<std::int32_t>> out;
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> buffers;
  for (std::int32_t a = 0; a < static_cast<std::int32_t>(role.actors.size()); ++a) {
    const PlanActor& x = role.actors[a];
    if (x.exchange < 0) continue;
    if (x.staging_ring < 0) {
      out.push_back({a});
    } else {
      const auto [it, fresh] = buffers.try_emplace({x.staging_ring, x.staging_buffer}, out.size());
      if (fresh) out.emplace_back();
      out[it->second].push_back(a);
    }
  }
  return out;
}

}  // namespace troupe::runtime
