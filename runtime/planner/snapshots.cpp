// What reads the parameter slots to keep a version elsewhere: snapshot actors, with slots of the arena between them and
// the writer actors that take it to disk; copy actors, for jobs that recover.
#include <functional>

#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

/// For each channel of parameters.
void for_each_group(
    PlanDraft& draft,
    const std::function<void(std::int32_t stage, std::int32_t channel, const std::string& group)>& make) {
  for (std::int32_t s = 0; s < draft.plan.stages; ++s)
    for (std::size_t c = 0, channels = draft.plan.roles[s].channels.size(); c < channels; ++c) {
      const PlanChannel& channel = draft.plan.roles[s].channels[c];
      if (channel.kind != PlanChannel::Kind::parameter) continue;
      make(s, static_cast<std::int32_t>(c), channel.name.substr(0, channel.name.rfind(".params")));
    }
}

ActorRef add_actor(PlanDraft& draft, std::int32_t stage, PlanActor::Kind kind, const char* program, std::string name) {
  PlanActor a;
  a.kind = kind;
  a.name = std::move(name);
  a.program = draft.plan.program(program);
  a.rate = Rate::step;
  a.priority = draft.priority(other_priority, 0);
  a.run = run_of(a.program, forward_run);
  return draft.add_actor(stage, std::move(a), 0);
}

}  // namespace

void make_snapshots(PlanDraft& draft, std::int32_t slots) {
  for_each_group(draft, [&](std::int32_t stage, std::int32_t params, const std::string& group) {
    const ActorRef snapshot = add_actor(draft, stage, PlanActor::Kind::snapshot, "snapshot", group + ".snapshot");
    const ActorRef writer = add_actor(draft, stage, PlanActor::Kind::writer, "snapshot", group + ".writer");
    draft.add_reader(params, snapshot);
    PlanChannel arena;
    arena.kind = PlanChannel::Kind::snapshot;
    arena.name = group + ".snapshot";
    arena.rate = Rate::step;
    arena.slots = slots;
    draft.connect(std::move(arena), snapshot, {writer});
  });
}

void make_copies(PlanDraft& draft) {
  for_each_group(draft, [&](std::int32_t stage, std::int32_t params, const std::string& group) {
    draft.add_reader(params, add_actor(draft, stage, PlanActor::Kind::copy, "copy", group + ".copy"));
  });
}

}  // namespace troupe::runtime
