// Rings: few buffers that many channels use one after the other: with ZeRO 2 and 3, and where reduced gradients are
// gathered whole. A buffer's channels follow each other in a cycle of zero-byte channels: each reader of a channel,
// when it is done, sends a turn to the writer of the buffer's next channel. One token goes round each cycle, so two
// channels of a buffer never hold it at the same time, and a pass that runs in the ring's order can always go on. The
// plan stays a marked graph, which one token game proves live.
#include <algorithm>
#include <set>

#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

// With two buffers one is filled or emptied while the other is in use.
constexpr std::int32_t gradient_buffers = 2, staging_buffers = 2, gathered_buffers = 2, gathered_buffers_elsewhere = 1;

using Occupant = std::vector<std::int32_t>;  // channels that are needed together

/// Positions of a role's actors in an order in which each comes after those that it reads from.
std::vector<std::int32_t> order_of(const PlanRole& role) {
  std::vector<std::vector<std::int32_t>> readers(role.actors.size());
  std::vector<std::int32_t> waits(role.actors.size(), 0), position(role.actors.size(), 0);
  for (const auto& c : role.channels) {
    if (c.writer < 0 || c.initial || c.kind == PlanChannel::Kind::delayed) continue;
    for (const auto& r : c.readers) readers[c.writer].push_back(r.actor), ++waits[r.actor];
  }
  std::set<std::int32_t> ready;  // the lowest goes first
  for (std::size_t a = 0; a < waits.size(); ++a)
    if (waits[a] == 0) ready.insert(static_cast<std::int32_t>(a));
  for (std::int32_t n = 0; !ready.empty(); ++n) {
    const auto a = *ready.begin();
    ready.erase(ready.begin());
    position[a] = n;
    for (auto r : readers[a])
      if (--waits[r] == 0) ready.insert(r);
  }
  return position;
}

/// Whether a reduction may take turns with others in staging buffers.
bool shares_staging(const Plan& plan, const PlanRole& role, const PlanActor& a) {
  if (a.kind != PlanActor::Kind::exchange) return false;
  // A reduction that waits for several segments, or for other stages, would delay the other reductions of its buffer.
  const auto gradients = std::count_if(a.in.begin(), a.in.end(),
                                       [&](auto c) { return role.channels[c].kind == PlanChannel::Kind::gradient; });
  return gradients == 1 && plan.stages_on(plan.tensors[plan.exchanges[a.exchange].moves[0].to].mesh).size() == 1;
}

/// Reductions of one stage, in the order in which their gradients are made, share few staging buffers.
void share_staging(PlanDraft& draft, std::int32_t s, const std::vector<std::int32_t>& exchanges) {
  auto& role = draft.plan.roles[s];
  const auto count = static_cast<std::int32_t>(exchanges.size());
  if (count <= staging_buffers) return;
  std::int32_t ring = 0;
  for (const auto& a : role.actors) ring = std::max(ring, a.staging_ring + 1);
  for (std::int32_t i = 0; i < count; ++i) {
    PlanActor& a = role.actors[exchanges[i]];
    a.staging_ring = ring;
    a.staging_buffer = i % staging_buffers;
    const bool wraps = i + staging_buffers >= count;
    const auto next = wraps ? i % staging_buffers : i + staging_buffers;
    if (next == i) continue;  // alone in its buffer
    PlanChannel turn;
    turn.kind = PlanChannel::Kind::turn;
    turn.name = "staging." + a.name;
    turn.rate = a.rate;
    turn.slots = 2;
    turn.initial = wraps;
    draft.connect(std::move(turn), {s, exchanges[i]}, {{s, exchanges[next]}});
  }
}

/// One ring of `buffers` buffers for these channels, in this order.
void add_ring(PlanDraft& draft, std::int32_t s, std::int32_t buffers, const std::vector<Occupant>& occupants) {
  auto& role = draft.plan.roles[s];
  const auto count = static_cast<std::int32_t>(occupants.size());
  if (count <= buffers) return;
  std::int32_t ring = 0;
  for (const auto& c : role.channels) ring = std::max(ring, c.ring + 1);
  for (std::int32_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (auto id : occupants[i]) {
      PlanChannel& c = role.channels[id];
      c.ring = ring;
      c.buffer = i % buffers;
      c.buffer_offset = offset;
      offset += c.bytes;
    }
  }
  for (std::int32_t i = 0; i < count; ++i) {
    const bool wraps = i + buffers >= count;
    const auto next = wraps ? i % buffers : i + buffers;
    if (next == i) continue;  // alone in its buffer
    std::set<ActorRef> done, writers;
    for (auto id : occupants[i])
      for (const auto& r : role.channels[id].readers) done.insert({s, r.actor});
    for (auto id : occupants[next]) writers.insert({s, role.channels[id].writer});
    for (const ActorRef& reader : done) {
      PlanChannel turn;
      turn.kind = PlanChannel::Kind::turn;
      turn.name = "turn." + role.channels[occupants[i].front()].name;
      turn.rate = role.channels[occupants[i].front()].rate;
      turn.slots = 2;  // no bytes; with two the reader need not wait for the ack of the turn before
      turn.initial = wraps;
      draft.connect(std::move(turn), reader, {writers.begin(), writers.end()});
    }
  }
}

}  // namespace

void make_rings(PlanDraft& draft, const Segments& segments, const std::vector<ReusedMemory>& reused) {
  Plan& plan = draft.plan;
  const Lowered& low = draft.low;
  using Kind = PlanChannel::Kind;
  for (auto& role : plan.roles) {
    const std::int32_t s = role.stage;
    const auto order = order_of(role);
    // Channels of one pass of one virtual stage take turns. Shared units, whose mesh is another, have rings of their
    // own.
    struct Turns {
      Kind kind;
      std::int32_t program, virtual_stage, mesh;
      Pass pass;
      Rate rate;  // of exchanges: some gradients may be added in rounds and others once a step
      auto operator<=>(const Turns&) const = default;
    };
    // -> by order -> channels
    std::map<Turns, std::map<std::pair<std::int32_t, std::int32_t>, Occupant>> passes;
    // -> by order -> exchange
    std::map<Turns, std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t>> reductions;
    for (std::size_t i = 0; i < role.channels.size(); ++i) {
      const PlanChannel& c = role.channels[i];
      std::int32_t segment = -1;
      if (c.kind == Kind::gradient)
        if (const auto exchange = c.readers.front().actor; shares_staging(plan, role, role.actors[exchange])) {
          const LoweredNode& n = low.nodes[segments.nodes.at({s, c.writer}).front()];
          reductions[{c.kind, n.program, n.virtual_stage, n.mesh, role.actors[c.writer].pass,
                      role.actors[exchange].rate}]
              .emplace(std::pair{order[c.writer], exchange}, exchange);
        }
      if (c.kind == Kind::gradient && c.rate == Rate::microbatch) segment = c.writer;
      // What a user-defined actor has gathered lies in memory of its own: segments of other units may have to act
      // before the actor does.
      if (c.kind == Kind::gathered && role.actors[c.readers.front().actor].kind == PlanActor::Kind::segment)
        for (const auto& r : c.readers)
          if (segment < 0 || order[r.actor] < order[segment]) segment = r.actor;
      if (segment < 0) continue;
      const LoweredNode& n = low.nodes[segments.nodes.at({s, segment}).front()];
      // With one microbatch at a time its backward pass follows its forward pass; in a pipeline, and where microbatches
      // run ahead, they mix. The weights' pass, where it is apart, follows in its own time.
      const bool mixed = draft.in_pipeline(n.virtual_stage) || plan.pipeline.ahead > 0 || c.kind != Kind::gathered;
      auto& pass = passes[{c.kind, n.program, n.virtual_stage, n.mesh,
                           mixed ? role.actors[segment].pass : Pass::forward, c.rate}];
      // All that a unit gathers for one direction is needed together.
      std::pair<std::int32_t, std::int32_t> key{order[segment], 0};
      if (c.kind == Kind::gathered)
        for (const auto& [at, occupant] : pass) {
          const auto& first = role.channels[occupant.front()].readers.front();
          const LoweredNode& other = low.nodes[segments.nodes.at({s, first.actor}).front()];
          if (other.unit == n.unit && role.actors[first.actor].backward() == role.actors[segment].backward()) key = at;
        }
      pass[key].push_back(static_cast<std::int32_t>(i));
    }
    for (const auto& [pass, exchanges] : reductions) {
      std::vector<std::int32_t> in_order;
      for (const auto& [at, exchange] : exchanges) in_order.push_back(exchange);
      share_staging(draft, s, in_order);
    }
    for (const auto& [pass, by_order] : passes) {
      std::vector<Occupant> occupants;
      for (const auto& [at, occupant] : by_order) occupants.push_back(occupant);
      const auto buffers = pass.kind == Kind::gradient                ? gradient_buffers
                           : draft.plan.is_step_program(pass.program) ? gathered_buffers
                                                                      : gathered_buffers_elsewhere;
      add_ring(draft, s, buffers, occupants);
    }
  }
  // One ring for each segment: with two, the segment could not tell whose turn has come.
  std::set<ActorRef> done;
  for (const auto& [role, channels] : reused)
    if (done.insert({role, plan.roles[role].channels[channels[0]].writer}).second)
      add_ring(draft, role, 1, {{channels[0]}, {channels[1]}});
}

}  // namespace troupe::runtime
