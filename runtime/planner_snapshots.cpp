// Checkpoints: snapshots are readers of the parameter slots, the arena is the slots between them and their writer.
#include "runtime/planner.h"

namespace troupe::runtime {

void Planner::make_snapshots() {
  const auto program = plan_.program("snapshot");
  auto actor = [&](std::int32_t stage, PlanActor::Kind kind, std::string name) {
    PlanActor a;
    a.kind = kind;
    a.name = std::move(name);
    a.program = program;
    a.rate = Rate::step;
    a.stream = stream_of(kind);
    a.priority = priority(other_priority, 0);
    a.run = run_of(program, forward_run);
    return add_actor(stage, std::move(a), 0);
  };
  for (std::int32_t s = 0; s < plan_.stages; ++s) {
    std::vector<std::pair<std::int32_t, Where>> snapshots;   // of which channel
    for (std::size_t c = 0; c < plan_.roles[s].channels.size(); ++c) {
      const PlanChannel& params = plan_.roles[s].channels[c];
      if (params.kind != PlanChannel::Kind::parameter) continue;
      const std::string group = params.name.substr(0, params.name.rfind(".params"));
      snapshots.push_back({static_cast<std::int32_t>(c), actor(s, PlanActor::Kind::snapshot, group + ".snapshot")});
    }
    if (snapshots.empty()) continue;
    const Where writer = actor(s, PlanActor::Kind::writer, "stage" + std::to_string(s) + ".writer");
    for (const auto& [params, snapshot] : snapshots) {
      plan_.roles[s].channels[params].readers.push_back({snapshot.actor, 0});
      at(snapshot).in.push_back(params);
      PlanChannel arena;
      arena.kind = PlanChannel::Kind::snapshot;
      arena.name = at(snapshot).name;
      arena.rate = Rate::step;
      arena.slots = snapshots_;
      connect(std::move(arena), snapshot, {writer});
    }
  }
}

}  // namespace troupe::runtime
