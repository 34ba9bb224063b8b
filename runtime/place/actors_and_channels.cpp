// The actors and channels of a place, and the actors' ports.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "devices/base/check.h"
#include "runtime/place/passes.h"
#include "runtime/place/saved_parts.h"

namespace troupe::runtime {

void LocalActors::run() {
  for (std::size_t p = 0; p < plan_.programs.size(); ++p)
    microbatches_.push_back(plan_.owners_of(static_cast<std::int32_t>(p), local_.stage).microbatches(local_.dp_index));
  local_.closers.assign(plan_.programs.size(), 0);
  choose_actors();
  make_channels();
  make_specs();
  if (plan_.ordered()) make_turns();
}

/// Actors of a program that has no microbatch here do not exist here.
void LocalActors::choose_actors() {
  actor_at_.assign(role_->actors.size(), -1);
  for (std::size_t i = 0; i < role_->actors.size(); ++i) {
    const PlanActor& a = role_->actors[i];
    if (a.rate == Rate::microbatch && microbatches_[a.program].empty()) continue;
    actor_at_[i] = static_cast<std::int32_t>(local_.actors.size());
    LocalActor l;
    l.actor = static_cast<std::int32_t>(i);
    local_.actors.push_back(std::move(l));
    if (a.closes_step) ++local_.closers[static_cast<std::size_t>(plan_.begun_as(a.program))];
  }
}

void LocalActors::make_channels() {
  std::optional<SavedParts> saved;
  if (plan_.snapshot_slots() > 0 || plan_.keeps_copies()) saved.emplace(plan_);
  for (auto& l : local_.actors)
    if (plan_actor(l).kind == PlanActor::Kind::copy)
      for (const SavedPart& part : saved->of(rank_, plan_actor(l)))
        for (const StatePart kind : state_parts)
          if (part.trained || kind == StatePart::parameter) l.copied.push_back({part.param, kind, part.extent, 0});
  channel_at_.assign(role_->channels.size(), -1);
  for (std::size_t i = 0; i < role_->channels.size(); ++i) {
    const PlanChannel& c = role_->channels[i];
    LocalChannel l;
    l.channel = static_cast<std::int32_t>(i);
    l.slots = c.slots;
    l.slot_bytes = c.bytes;
    if (c.kind == PlanChannel::Kind::snapshot && actor_at_[c.writer] >= 0) {
      auto& writer = local_.actors[static_cast<std::size_t>(actor_at_[c.writer])];
      writer.saved = saved->entries(rank_, role_->actors[c.writer]);
      l.slot_bytes = checkpoint::lay_out(writer.saved);
    }
    for (const auto& r : c.readers)
      if (actor_at_[r.actor] >= 0)
        l.readers.push_back(
            {actor_at_[r.actor], r.port, static_cast<std::uint16_t>(role_->actors[r.actor].program), false});
    if ((c.writer < 0 || actor_at_[c.writer] < 0) && l.readers.empty()) continue;
    channel_at_[i] = static_cast<std::int32_t>(local_.channels.size());
    local_.channels.push_back(std::move(l));
  }
}

void LocalActors::make_specs() {
  for (auto& l : local_.actors) {
    const PlanActor& a = plan_actor(l);
    const auto acts = acts_of(a);
    actors::ActorSpec& s = l.spec;
    s.name = a.name;
    s.trace_name = fmt::format("{}/{}", rank_, a.name);
    s.program = static_cast<std::uint16_t>(a.program);
    if (a.rate == Rate::microbatch) s.microbatches = microbatches_[a.program];
    else if (a.rate != Rate::step)
      for (std::int32_t round = 0; round < acts; ++round) s.microbatches.push_back(round);
    s.rounds = a.rate == Rate::round;
    s.closes_step = a.closes_step;
    // What an update gathers arrives from the network: the stream's order does not protect its readers.
    auto same_stream = [&](std::int32_t other) {
      const PlanActor& o = role_->actors[other];
      return a.stream == "compute" && o.stream == "compute" && !a.gathers() && !o.gathers();
    };
    for (auto id : a.in) {
      const PlanChannel& c = role_->channels[id];
      s.in.push_back({c.name, c.rate == Rate::step ? acts : 1, cycle(a, c), c.kind == PlanChannel::Kind::turn, c.lag});
      s.writers.push_back({c.writer < 0 ? -1 : actor_at_[c.writer], c.writer < 0 ? channel_at_[id] : c.writer_port,
                           c.writer >= 0 && same_stream(c.writer)});
      l.in.push_back(channel_at_[id]);
    }
    for (auto id : a.out) {
      const PlanChannel& c = role_->channels[id];
      s.out.push_back({c.name, c.slots, c.rate == Rate::step ? acts : 1,
                       c.lag > 0 ? std::vector<actors::Phase>{} : cycle(a, c), c.lag > 0 ? acts : 0, c.lag});
      std::vector<actors::Reader> readers = local_.channels[channel_at_[id]].readers;
      for (auto& r : readers) r.same_stream = same_stream(local_.actors[r.actor].actor);
      s.readers.push_back(std::move(readers));
      s.out_step.push_back(c.kind == PlanChannel::Kind::parameter ? 1 : 0);
      s.initial.push_back(c.initial);
      l.out.push_back(channel_at_[id]);
    }
  }
}

/// Numbers the acts of the segments that take turns on the compute stream (ActorSpec::turns), in the order of
/// pass_order.
void LocalActors::make_turns() {
  std::map<std::pair<std::int32_t, Pass>, std::vector<actors::ActorSpec*>> takers;  // chunk and pass
  for (auto& l : local_.actors)
    if (const PlanActor& a = plan_actor(l); a.takes_turns)
      takers[{a.virtual_stage / plan_.stages, a.pass}].push_back(&l.spec);
  std::int32_t turn = 0;
  for (const PassOf& p : pass_order(plan_.pipeline, plan_.stages, local_.stage,
                                    static_cast<std::int32_t>(microbatches_[plan_.step_program()].size())))
    for (actors::ActorSpec* spec : takers[{p.chunk, p.pass}]) spec->turns.push_back(turn++);
  for (auto& l : local_.actors) l.spec.turns_per_step = turn;
}

/// The phases of an actor's acts at a channel (see actors/slots.h) where they differ: a place may have no microbatch
/// in a round, and the first microbatches of a step read nothing late. Empty: all acts are alike.
std::vector<actors::Phase> LocalActors::cycle(const PlanActor& a, const PlanChannel& c) const {
  std::vector<actors::Phase> out;
  for (std::int32_t act = 0; c.lag > 0 && act < acts_of(a); ++act)
    out.push_back(act < c.lag ? actors::Phase::skip : actors::Phase::last);
  if (a.rate != Rate::round) return out;
  if (c.rate != (plan_.reduces(plan_.exchanges[a.exchange]) ? Rate::microbatch : Rate::round)) return out;
  const MicrobatchOwners own = owners_of(a);
  for (std::int32_t round = 0, rounds = own.rounds(); round < rounds; ++round)
    out.push_back(own.runs_in_round(local_.dp_index, round) ? actors::Phase::last : actors::Phase::skip);
  return out;
}

}  // namespace troupe::runtime
