// Checkpoints: snapshot actors read the parameter slots; the arena has the slots between them and the writer actors.
#include "runtime/compile/planner.h"

namespace troupe::runtime {

void Planner::make_snapshots() {
  const auto program = plan_.program("snapshot");
  auto actor = [&](std::int32_t stage, PlanActor::Kind kind, std::string name) {
    PlanActor a;
    a.kind = kind;
    a.name = std::move(name);
    a.program = program;
    a.rate = Rate::step;
    a.priority = priority(other_priority, 0);
    a.run = run_of(program, forward_run);
    return add_actor(stage, std::move(a), 0);
  };
  for (std::int32_t s = 0; s < plan_.stages; ++s)
    for (std::size_t c = 0, channels = plan_.roles[s].channels.size(); c < channels; ++c) {
      if (plan_.roles[s].channels[c].kind != PlanChannel::Kind::parameter) continue;
      const std::string& params = plan_.roles[s].channels[c].name;
      const std::string group = params.substr(0, params.rfind(".params"));
      const ActorRef snapshot = actor(s, PlanActor::Kind::snapshot, group + ".snapshot");
      const ActorRef writer = actor(s, PlanActor::Kind::writer, group + ".writer");
      plan_.roles[s].channels[c].readers.push_back({snapshot.actor, 0});
      at(snapshot).in.push_back(static_cast<std::int32_t>(c));
      PlanChannel arena;
      arena.kind = PlanChannel::Kind::snapshot;
      arena.name = group + ".snapshot";
      arena.rate = Rate::step;
      arena.slots = snapshots_;
      connect(std::move(arena), snapshot, {writer});
    }
}

}  // namespace troupe::runtime
