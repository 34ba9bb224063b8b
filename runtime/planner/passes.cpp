#include "runtime/planner/passes.h"

namespace troupe::runtime {

Status make_plan(const Graph& graph, Plan& plan, Lowered low, std::int32_t virtual_stages, const ParameterScheme& scheme, std::int32_t snapshots) {
  PlanDraft draft(graph, plan, low, virtual_stages);
  settle_gradients(draft, scheme);
  Segments segments = make_segments(draft);
  take_turns(draft, segments);
  make_user_actors(draft, segments);
  const Edges edges = make_exchanges(draft, segments);
  TROUPE_TRY(make_channels(draft, edges));
  make_credits(draft, segments);
  const Optimizers optimizers = make_parameters(draft, segments, edges, scheme);
  if (snapshots > 0) make_snapshots(draft, snapshots);
  make_rings(draft, segments, optimizers.reused);
  close_chains(draft);
  make_control(draft, optimizers.after_commit);
  fill_operands(draft, segments, edges, optimizers);
  finish_actors(draft);
  cost_exchanges(draft);
  return share_areas(draft);
}

}  // namespace troupe::runtime
