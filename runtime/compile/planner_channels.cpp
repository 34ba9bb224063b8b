// Channels: their writers, readers, tensors and numbers of slots.
#include <algorithm>

#include "actors/act.h"
#include "devices/base/check.h"
#include "runtime/compile/planner.h"

namespace troupe::runtime {

void Planner::read(std::int32_t tensor, ActorRef who) {
  auto& r = readers_[tensor];
  if (std::find(r.begin(), r.end(), who) == r.end()) r.push_back(who);
}

void Planner::note_readers() {
  for (std::size_t i = 0; i < low_.nodes.size(); ++i) {
    const LoweredNode& n = low_.nodes[i];
    const Ends& readers = n.kind == LoweredNode::Kind::boxing ? exchange_source_[static_cast<std::int32_t>(i)] : node_actor_[i];
    for (auto t : n.in)
      for (const auto& [role, reader] : readers) read(t, reader);
    for (auto t : n.out) writer_[t] = n.kind == LoweredNode::Kind::feed ? Ends{{n.mesh, {n.mesh, -1}}} : node_actor_[i];
  }
}

std::int64_t Planner::local_bytes(std::int32_t tensor) const {
  // Position 0 has the largest part of every split.
  const Layout l = plan_.layout(tensor, 0);
  return l.bytes_at(0);
}

std::int32_t Planner::put(PlanChannel& c, std::int32_t tensor) {
  c.tensors.push_back(tensor);
  c.offsets.push_back(c.bytes);
  c.bytes += aligned(local_bytes(tensor));
  return static_cast<std::int32_t>(c.tensors.size()) - 1;
}

std::int32_t Planner::connect(PlanChannel c, ActorRef writer, const std::vector<ActorRef>& readers) {
  auto& role = plan_.roles[writer.role];
  c.program = at(readers.empty() ? writer : readers[0]).program;
  const auto id = static_cast<std::int32_t>(role.channels.size());
  c.writer = writer.actor;
  if (writer.actor >= 0) {
    c.writer_port = static_cast<std::int32_t>(at(writer).out.size());
    at(writer).out.push_back(id);
  }
  for (const ActorRef& r : readers) {
    ASSERT(r.role == writer.role, c.name, r.role, writer.role);
    c.readers.push_back({r.actor, static_cast<std::int32_t>(at(r).in.size())});
    at(r).in.push_back(id);
  }
  role.channels.push_back(std::move(c));
  return id;
}

Status Planner::make_channels() {
  std::map<std::pair<ActorRef, std::vector<ActorRef>>, std::vector<std::int32_t>> groups;
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(plan_.tensors.size()); ++t) {
    if (low_.producer[t] < 0 || plan_.tensors[t].gradient_of >= 0) continue;
    for (const auto& [role, writer] : writer_[t]) {
      auto readers = readers_[t];
      std::erase_if(readers, [&](const ActorRef& r) { return r.role != role || r == writer; });
      std::sort(readers.begin(), readers.end());
      if (writer.actor >= 0 && at(writer).kind == PlanActor::Kind::segment) {
        // A segment's private values have no place of their own.
        if (!readers.empty()) groups[{writer, readers}].push_back(t);
      } else {
        // An exchange or actor publishes all its outputs at once: one channel per actor, all readers.
        merged_readers_[writer].insert(readers.begin(), readers.end());
        merged_[writer].push_back(t);
      }
    }
  }
  for (auto& [writer, tensors] : merged_) {
    const std::vector<ActorRef> readers(merged_readers_[writer].begin(), merged_readers_[writer].end());
    if (writer.actor >= 0) add_channel(writer, readers, tensors);
    else
      for (auto t : tensors) {   // feeds: one channel each
        if (readers_[t].empty())
          return invalid("feed '" + low_.nodes[low_.producer[t]].op + "' of program '" +
                         g_.programs()[low_.nodes[low_.producer[t]].program] + "' has no reader: read it with an op or an actor, or leave it out");
        add_channel(writer, readers_[t], {t});
      }
  }
  for (auto& [key, tensors] : groups) add_channel(key.first, key.second, tensors);
  return {};
}

void Planner::add_channel(ActorRef writer, const std::vector<ActorRef>& readers, const std::vector<std::int32_t>& tensors) {
  PlanChannel c;
  c.name = plan_.tensors[tensors[0]].name;
  c.rate = plan_.tensors[tensors[0]].rate;
  if (tensors.size() > 1) c.name += "+" + std::to_string(tensors.size() - 1);
  for (auto t : tensors) put(c, t);
  const bool segment = writer.actor >= 0 && at(writer).kind == PlanActor::Kind::segment;
  std::int32_t kept = 0;   // microbatches that wait for a later pass
  bool leaves = false;
  for (const auto& r : readers) {
    leaves |= at(r).stream != "compute";
    if (writer.actor >= 0 && at(r).program == 0 && at(r).kind == PlanActor::Kind::segment && pass_at(r) != pass_at(writer))
      kept = std::max(kept, slots_between(writer.role, pass_at(writer), pass_at(r)));
  }
  if (writer.actor < 0) {
    const LoweredNode& feed = low_.nodes[low_.producer[tensors[0]]];
    c.kind = PlanChannel::Kind::feed;
    c.name = feed.op;
    c.after = feed.attrs.text("after");
    c.at_once = feed.attrs.integer("at_once", 1);
  } else if (kept > 0) {
    // 1F1B: the slots that forward acts fill for backward acts limit how far a stage runs ahead.
    c.kind = PlanChannel::Kind::stash;
    c.slots = kept + (segment ? 0 : landing_slots(writer.role));
  } else if (!segment) {
    c.kind = PlanChannel::Kind::boundary;
    c.slots = 1 + landing_slots(writer.role);
  } else {
    c.kind = PlanChannel::Kind::activation;
    c.slots = leaves ? 2 : 1;
  }
  const auto id = connect(std::move(c), writer, readers);
  const auto& made = plan_.roles[writer.role].channels[id];
  for (std::size_t i = 0; i < made.tensors.size(); ++i) place_[{writer.role, made.tensors[i]}] = {id, static_cast<std::int32_t>(i)};
}

void Planner::make_credits() {
  for (std::int32_t k = 0; k < virtual_stages_ && plan_.trains; ++k) {
    const std::int32_t role = k % plan_.stages;
    ActorRef first, last;
    for (const auto& [w, nodes] : segment_nodes_) {
      const LoweredNode& n = low_.nodes[nodes.front()];
      if (w.role != role || n.virtual_stage != k || n.mesh != role || n.program != 0) continue;
      if (at(w).pass == Pass::forward) {
        if (first.actor < 0) first = w;
      } else if (last.actor < 0 || at(w).pass <= at(last).pass) {
        last = w;   // the last segment that makes input gradients, if any does
      }
    }
    if (first.actor < 0 || last.actor < 0) continue;
    PlanChannel c;
    c.kind = PlanChannel::Kind::stash;
    c.name = "credit.stage" + std::to_string(k);
    c.slots = slots_between(role, pass_at(first), pass_at(last));
    connect(std::move(c), first, {last});
  }
}

void Planner::make_control() {
  for (std::int32_t s = 0; s < plan_.stages; ++s) {
    auto& role = plan_.roles[s];
    std::map<std::int32_t, std::vector<ActorRef>> sources;
    std::vector<ActorRef> updates;   // and gathers of what they read
    for (std::size_t a = 0; a < role.actors.size(); ++a) {
      const ActorRef w{s, static_cast<std::int32_t>(a)};
      const PlanActor& actor = role.actors[a];
      if (actor.kind == PlanActor::Kind::update || after_commit_.count(w)) updates.push_back(w);
      if (actor.kind == PlanActor::Kind::user && actor.in.empty()) sources[actor.program].push_back(w);
    }
    for (const auto& [program, readers] : sources) {
      PlanChannel c;
      c.kind = PlanChannel::Kind::go;
      c.name = "go." + plan_.programs[program];
      c.rate = Rate::step;
      c.slots = 2;
      c.bytes = plan_alignment;
      connect(std::move(c), {s, -1}, readers);
    }
    if (updates.empty()) continue;
    PlanChannel c;
    c.kind = PlanChannel::Kind::commit;
    c.name = "commit";
    c.rate = Rate::step;
    c.bytes = aligned(actors::commit_bytes(plan_.params.size()));
    connect(std::move(c), {s, -1}, updates);
  }
}

}  // namespace troupe::runtime
