// Channels of activations: their writers, readers, tensors and numbers of slots. A stash is such a channel between a
// forward and a backward pass: activations wait there.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/planner/passes.h"

namespace troupe::runtime {

namespace {

/// A channel for tensors that one actor, or the conductor, writes for the same readers.
void add_channel(PlanDraft& draft, ActorRef writer, const std::vector<ActorRef>& readers,
                 const std::vector<std::int32_t>& tensors) {
  const Plan& plan = draft.plan;
  PlanChannel c;
  c.name = plan.tensors[tensors[0]].name;
  c.rate = plan.tensors[tensors[0]].rate;
  if (tensors.size() > 1) c.name += fmt::format("+{}", tensors.size() - 1);
  for (auto t : tensors) draft.put(c, t);
  const bool segment = writer.actor >= 0 && draft.at(writer).kind == PlanActor::Kind::segment;
  std::int32_t kept = 0;  // microbatches that wait for a later pass
  bool leaves = false;
  for (const auto& r : readers) {
    leaves |= draft.at(r).stream != "compute";
    if (writer.actor >= 0 && plan.is_step_program(draft.at(r).program) &&
        draft.at(r).kind == PlanActor::Kind::segment && draft.pass_at(r) != draft.pass_at(writer))
      kept = std::max(
          kept, draft.slots_between(writer.role, draft.at(writer).program, draft.pass_at(writer), draft.pass_at(r)));
  }
  if (writer.actor < 0) {
    const LoweredNode& feed = draft.low.nodes[draft.low.producer[tensors[0]]];
    c.kind = PlanChannel::Kind::feed;
    c.name = feed.op;
    c.after = feed.attrs.text("after");
    c.at_once = feed.attrs.integer("at_once", 1);
  } else if (kept > 0) {
    // 1F1B: the slots that forward acts fill for backward acts limit how far a stage runs ahead.
    c.kind = PlanChannel::Kind::stash;
    c.slots = kept + (segment ? 0 : draft.landing_slots(writer.role));
  } else if (!segment) {
    c.kind = PlanChannel::Kind::boundary;
    c.slots = 1 + draft.landing_slots(writer.role);
  } else {
    c.kind = PlanChannel::Kind::activation;
    c.slots = leaves ? 2 : 1;
  }
  draft.connect(std::move(c), writer, readers);
}

}  // namespace

Status make_channels(PlanDraft& draft, const Edges& edges) {
  const Lowered& low = draft.low;
  // by writer and readers
  std::map<std::pair<ActorRef, std::vector<ActorRef>>, std::vector<std::int32_t>> of_segments;
  struct Outputs {
    std::set<ActorRef> readers;
    std::vector<std::int32_t> tensors;
  };
  std::map<ActorRef, Outputs> of_others;
  std::map<std::int32_t, std::int64_t> delays;  // tensors that are read late
  for (const LoweredNode& n : low.nodes)
    if (n.delayed >= 0) delays.emplace(n.delayed, n.lag);
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(draft.plan.tensors.size()); ++t) {
    // Gradients, and what is kept for a later step: make_parameters.
    if (low.producer[t] < 0 || draft.plan.tensors[t].gradient_of >= 0 || draft.plan.tensors[t].rate == Rate::step ||
        delays.count(t) > 0)
      continue;
    for (const auto& [role, writer] : edges.writer[t]) {
      auto readers = edges.readers[t];
      std::erase_if(readers,
                    [&, role = role, writer = writer](const ActorRef& r) { return r.role != role || r == writer; });
      std::sort(readers.begin(), readers.end());
      if (writer.actor >= 0 && draft.at(writer).kind == PlanActor::Kind::segment) {
        // A segment's private values have no place of their own.
        if (!readers.empty()) of_segments[{writer, readers}].push_back(t);
      } else {
        // An exchange or actor publishes all its outputs at once: one channel per actor, all readers.
        of_others[writer].readers.insert(readers.begin(), readers.end());
        of_others[writer].tensors.push_back(t);
      }
    }
  }
  for (const auto& [writer, made] : of_others) {
    if (writer.actor >= 0) {
      add_channel(draft, writer, {made.readers.begin(), made.readers.end()}, made.tensors);
      continue;
    }
    for (auto t : made.tensors) {  // feeds: one channel each
      if (edges.readers[t].empty())
        return invalid("feed '" + low.nodes[low.producer[t]].op + "' of program '" +
                       draft.graph.programs()[low.nodes[low.producer[t]].program] +
                       "' has no reader: read it with an op or an actor, or leave it out");
      add_channel(draft, writer, edges.readers[t], {t});
    }
  }
  for (const auto& [t, lag] : delays)
    for (const auto& [role, writer] : edges.writer[t]) {
      PlanChannel c;
      c.kind = PlanChannel::Kind::delayed;
      c.name = draft.plan.tensors[t].name;
      c.lag = static_cast<std::int32_t>(lag);
      // One is filled while the reader has, or is to get, the others.
      const auto of_a_run = draft.plan.spec(draft.at(writer).program).microbatches;
      c.slots = static_cast<std::int32_t>(std::min(lag, of_a_run)) + 1;
      draft.put(c, t);
      draft.connect(std::move(c), writer, edges.readers[t]);
    }
  for (const auto& [key, tensors] : of_segments) add_channel(draft, key.first, key.second, tensors);
  return {};
}

}  // namespace troupe::runtime
