// Channels without data: credits that limit how far a stage runs ahead; what the conductor writes.
#include <fmt/format.h>

#include <algorithm>

#include "actors/commit.h"
#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

void make_credits(PlanDraft& draft, const Segments& segments, std::int32_t program) {
  const Plan& plan = draft.plan;
  for (std::int32_t k = 0; k < draft.virtual_stages; ++k) {
    const std::int32_t role = k % plan.stages;
    ActorRef first, last;
    for (const auto& [w, nodes] : segments.nodes) {
      const LoweredNode& n = draft.low.nodes[nodes.front()];
      if (w.role != role || n.virtual_stage != k || n.mesh != role || n.program != program ||
          n.end == LoweredNode::End::keeps)
        continue;
      if (draft.at(w).pass == Pass::forward) {
        if (first.actor < 0) first = w;
      } else if (last.actor < 0 || draft.at(w).pass <= draft.at(last).pass) {
        last = w;  // the last segment that makes input gradients, if any does
      }
    }
    if (first.actor < 0 || last.actor < 0) continue;
    PlanChannel c;
    c.kind = PlanChannel::Kind::stash;
    c.name = fmt::format("{}credit.stage{}", draft.prefix(program), k);
    c.slots = draft.slots_between(role, program, draft.pass_at(first), draft.pass_at(last));
    draft.connect(std::move(c), first, {last});
  }
}

}  // namespace

void make_credits(PlanDraft& draft, const Segments& segments) {
  for (const std::int32_t program : draft.plan.training()) make_credits(draft, segments, program);
}

void make_control(PlanDraft& draft, const std::set<ActorRef>& after_commit) {
  const Plan& plan = draft.plan;
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    const auto& role = plan.roles[s];
    std::map<std::int32_t, std::vector<ActorRef>> sources;
    std::vector<ActorRef> updates;  // and gathers of what they read
    for (std::size_t a = 0; a < role.actors.size(); ++a) {
      const ActorRef w{s, static_cast<std::int32_t>(a)};
      const PlanActor& actor = role.actors[a];
      if (actor.kind == PlanActor::Kind::update || after_commit.count(w)) updates.push_back(w);
      const bool waits = std::any_of(actor.in.begin(), actor.in.end(),
                                     [&](std::int32_t c) { return role.channels[c].passes_on(); });
      if ((actor.kind == PlanActor::Kind::user || actor.kind == PlanActor::Kind::segment) && !waits)
        sources[actor.program].push_back(w);
    }
    for (const auto& [program, readers] : sources) {
      PlanChannel c;
      c.kind = PlanChannel::Kind::go;
      c.name = "go." + plan.programs[program].name;
      c.rate = Rate::step;
      c.slots = 2;
      c.bytes = tensor_alignment;
      draft.connect(std::move(c), {s, -1}, readers);
    }
    if (updates.empty()) continue;
    PlanChannel c;
    c.kind = PlanChannel::Kind::commit;
    c.name = "commit";
    c.rate = Rate::step;
    c.bytes = aligned(actors::commit_bytes(plan.params.size(), plan.training().size()));
    draft.connect(std::move(c), {s, -1}, updates);
  }
}

}  // namespace troupe::runtime
