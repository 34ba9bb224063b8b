// Checkpoints: snapshot actors read the parameter slots; the arena has the slots between them and the writer actors.
#include "runtime/planner/passes.h"

namespace troupe::runtime {

void make_snapshots(PlanDraft& draft, std::int32_t slots) {
  Plan& plan = draft.plan;
  const auto program = plan.program("snapshot");
  auto actor = [&](std::int32_t stage, PlanActor::Kind kind, std::string name) {
    PlanActor a;
    a.kind = kind;
    a.name = std::move(name);
    a.program = program;
    a.rate = Rate::step;
    a.priority = draft.priority(other_priority, 0);
    a.run = run_of(program, forward_run);
    return draft.add_actor(stage, std::move(a), 0);
  };
  for (std::int32_t s = 0; s < plan.stages; ++s)
    for (std::size_t c = 0, channels = plan.roles[s].channels.size(); c < channels; ++c) {
      if (plan.roles[s].channels[c].kind != PlanChannel::Kind::parameter) continue;
      const std::string& params = plan.roles[s].channels[c].name;
      const std::string group = params.substr(0, params.rfind(".params"));
      const ActorRef snapshot = actor(s, PlanActor::Kind::snapshot, group + ".snapshot");
      const ActorRef writer = actor(s, PlanActor::Kind::writer, group + ".writer");
      draft.add_reader(static_cast<std::int32_t>(c), snapshot);
      PlanChannel arena;
      arena.kind = PlanChannel::Kind::snapshot;
      arena.name = group + ".snapshot";
      arena.rate = Rate::step;
      arena.slots = slots;
      draft.connect(std::move(arena), snapshot, {writer});
    }
}

}  // namespace troupe::runtime
