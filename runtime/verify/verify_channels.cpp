// ChannelCheck: the ends of a stage's channels, their kinds, and the room that a slot has for each tensor.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "actors/commit.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

Status ChannelCheck::check_ends(std::int32_t id) const {
  const PlanChannel& c = role_.channels[id];
  if (c.slots < 1 || c.slots > count_max)
    return refuse(c, fmt::format("has {} slots: expected 1 to {}", c.slots, count_max));
  if (!known(c.rate) || c.kind > PlanChannel::Kind::kept)
    return refuse(c, "has a rate or kind that this version does not know");
  if (!among(c.program, plan_.programs.size())) return refuse(c, "belongs to no program");
  if (c.writer >= 0) {
    if (!among(c.writer, role_.actors.size())) return refuse(c, "has no writer");
    const PlanActor& w = role_.actors[c.writer];
    if (!among(c.writer_port, w.out.size()) || w.out[c.writer_port] != id)
      return refuse(c, "names '" + w.name + "' as its writer, which does not write it");
    if (w.rate == Rate::step && c.rate == Rate::microbatch)
      return refuse("imbalance: '" + w.name + "' acts once per step and cannot fill channel '" + c.name +
                    "' once per microbatch");
    if (w.rate == Rate::microbatch && c.rate == Rate::step && c.kind != PlanChannel::Kind::gradient &&
        c.kind != PlanChannel::Kind::kept)
      return refuse("imbalance: '" + w.name + "' acts once per microbatch and channel '" + c.name +
                    "' carries one token per step");
    if (!goes_with(w.rate, c.rate))
      return refuse("imbalance: '" + w.name + "' acts at another rate than it fills channel '" + c.name + "'");
  }
  for (const auto& r : c.readers) {
    if (!among(r.actor, role_.actors.size())) return refuse(c, "has a reader that is no actor");
    const PlanActor& a = role_.actors[r.actor];
    if (!among(r.port, a.in.size()) || a.in[r.port] != id)
      return refuse(c, "names '" + a.name + "' as a reader, which does not read it");
    if (std::count(c.readers.begin(), c.readers.end(), r) > 1)
      return refuse(c, "names its reader '" + a.name + "' twice");
    if (a.rate == Rate::step && c.rate == Rate::microbatch)
      return refuse("imbalance: '" + a.name + "' acts once per step and reads channel '" + c.name +
                    "', which carries one token per microbatch");
    if (!goes_with(a.rate, c.rate))
      return refuse("imbalance: '" + a.name + "' acts at another rate than it reads channel '" + c.name + "'");
    // Another program has other steps and microbatches. Only tokens of parameters name the programs that read them; a
    // commit is that of all programs that train.
    if (c.kind == PlanChannel::Kind::parameter) continue;
    if (c.kind == PlanChannel::Kind::commit && plan_.is_step_program(a.program)) continue;
    const PlanActor& other = role_.actors[c.writer >= 0 ? c.writer : c.readers[0].actor];
    if (other.program != a.program)
      return refuse("imbalance: channel '" + c.name + "' carries tokens of '" + other.name + "' in program '" +
                    plan_.programs[other.program].name + "', and its reader '" + a.name + "' acts in program '" +
                    plan_.programs[a.program].name + "': programs share parameters only");
  }
  return {};
}

/// An act has one token of the channel, or shares one with other acts, or (the last round) has none.
bool ChannelCheck::goes_with(Rate actor, Rate channel) {
  if (actor == channel || channel == Rate::step) return true;
  return actor != Rate::step;
}

Status ChannelCheck::check_kind(const PlanChannel& c) const {
  using Kind = PlanChannel::Kind;
  const PlanActor* w = c.writer >= 0 ? &role_.actors[c.writer] : nullptr;
  if (c.control() != (w == nullptr)) return refuse(c, w ? "is a control channel and has a writer" : "has no writer");
  if ((c.kind == Kind::parameter) != (w && w->kind == PlanActor::Kind::update && c.kind != Kind::turn))
    return refuse(
        c,
        "is of kind " + std::string(to_string(c.kind)) +
            "; parameters, and only they, are written by update actors, and turns of the memory that they have read");
  if (c.initial && c.kind != Kind::parameter && c.kind != Kind::turn)
    return refuse(c, "holds a token before the first act and is neither parameter nor turn");
  TROUPE_TRY(check_round_channel(plan_, role_, c));
  if (c.kind == Kind::parameter) TROUPE_TRY(check_versions(c));
  if (c.kind == Kind::gradient &&
      (w->kind != PlanActor::Kind::segment || w->rate != Rate::microbatch || !plan_.is_step_program(w->program) ||
       (c.rate != Rate::step && c.rate != Rate::microbatch)))
    return refuse(c, "accumulates gradients, and '" + w->name + "' is no segment that makes some per microbatch");
  if (c.kind == Kind::gradient)
    for (const std::int32_t t : c.tensors)
      if (const std::int32_t param = here(t) ? plan_.tensors[t].gradient_of : -1;
          param >= 0 && plan_.params[param].program != w->program)
        return refuse(c, "has gradients of parameter '" + plan_.params[param].name + "', which program '" +
                             plan_.programs[w->program].name + "' does not train");
  TROUPE_TRY(check_delay(c));
  if (c.kind == Kind::kept) TROUPE_TRY(check_kept(c));
  if (c.kind == Kind::snapshot || (w && w->kind == PlanActor::Kind::snapshot)) TROUPE_TRY(check_snapshot(c));
  if (w) return {};
  const bool commit = c.kind == Kind::commit, feed = c.kind == Kind::feed;
  if (feed && c.at_once < 1)
    return refuse(c, fmt::format("feeds {} microbatches at once; the first waits for nothing", c.at_once));
  if (const auto makers = feed && !c.after.empty() ? count_makers(c) : 1; makers != 1)
    return refuse(c, fmt::format("waits for report '{}', which {} its program makes", c.after,
                                 makers == 0 ? "no actor of" : "more than one actor of"));
  if (feed != (c.rate == Rate::microbatch))
    return refuse(c, "does not have the rate of its kind, " + std::string(to_string(c.kind)));
  if (c.readers.empty() || (feed && (c.tensors.size() != 1 || !here(c.tensors[0]))))
    return refuse(c, "has no reader, or is no feed of one tensor");
  if (!commit)
    for (const auto& r : c.readers)
      if (role_.actors[r.actor].program != c.program)
        return refuse(c, "is of another program than its reader '" + role_.actors[r.actor].name + "'");
  std::int64_t payload = commit ? actors::commit_bytes(plan_.params.size(), plan_.training().size()) : 0;
  if (feed) payload = elements(plan_.tensors[c.tensors[0]].shape) * size_of(plan_.tensors[c.tensors[0]].dtype);
  if (c.bytes < payload) return refuse(c, fmt::format("has slots of {} bytes; the session sends {}", c.bytes, payload));
  for (const auto& r : c.readers)
    if (const PlanActor& a = role_.actors[r.actor]; (a.kind == PlanActor::Kind::update || rounds_sums(a)) != commit)
      return refuse(c, "is read by '" + a.name +
                           "'; updates, gathers of the gradients that they read, and no others wait for 'commit'");
  return {};
}

/// Parameters have one slot, and are updated in it, or two, of which their update reads one and writes the other.
Status ChannelCheck::check_versions(const PlanChannel& c) const {
  const auto own = std::count_if(c.readers.begin(), c.readers.end(),
                                 [&](const auto& r) { return r.actor == c.writer; });
  if (c.rate != Rate::step || c.slots < 1 || c.slots > 2)
    return refuse(c, fmt::format("has {} slots; parameters have one, or two and their update reads them", c.slots));
  if (own != c.slots - 1)
    return refuse(
        c, fmt::format("has {} slots, and its update reads it {} times; expected {}", c.slots, own, c.slots - 1));
  // What an update does not write is not in the next version. The exponents are not among its parameters.
  const auto written = role_.actors[c.writer].params.size();
  if (written > 0 && c.slots == 1 && plan_.keeps_version())
    return refuse(c, "has one slot, and other parameters of the plan have two");
  if (c.slots == 2 && written + 1 != c.tensors.size())
    return refuse(c, fmt::format("has two slots and {} tensors, and its update writes {}", c.tensors.size(), written));
  return {};
}

/// How many actors of all stages make the report that the feed waits for.
std::ptrdiff_t ChannelCheck::count_makers(const PlanChannel& feed) const {
  std::ptrdiff_t makers = 0;
  for (const auto& role : plan_.roles)
    makers += std::count_if(role.actors.begin(), role.actors.end(),
                            [&](const PlanActor& a) { return a.program == feed.program && a.reports(feed.after); });
  return makers;
}

/// A segment leaves one tensor, and one reads it late, in a program whose microbatches all come to one place: of the
/// slots, `lag` are full while one is filled.
Status ChannelCheck::check_delay(const PlanChannel& c) const {
  if (c.kind != PlanChannel::Kind::delayed)
    return c.lag == 0 ? Status() : refuse(c, fmt::format("has a lag of {} microbatches and is no delay", c.lag));
  const std::int64_t kept = std::min<std::int64_t>(c.lag, plan_.spec(c.program).microbatches);
  if (c.lag < 1 || c.lag > microbatches_max || c.slots <= kept)
    return refuse(c, fmt::format("has a lag of {} microbatches and {} slots: expected a lag of 1 to {}, and more slots "
                                 "than microbatches that it keeps",
                                 c.lag, c.slots, microbatches_max));
  const auto segment = [&](std::int32_t actor) {
    return role_.actors[actor].kind == PlanActor::Kind::segment && role_.actors[actor].rate == Rate::microbatch;
  };
  if (c.readers.size() != 1 || !segment(c.writer) || !segment(c.readers[0].actor) || c.tensors.size() != 1)
    return refuse(c, "is no delay: one segment writes one tensor there, and one reads it");
  if (!plan_.spec(c.program).stateful)
    return refuse(c, "delays microbatches of program '" + plan_.programs[c.program].name + "', which is not stateful");
  return {};
}

/// A segment whose only op keeps what each microbatch has, and the update that makes it the next version.
Status ChannelCheck::check_kept(const PlanChannel& c) const {
  const PlanActor& w = role_.actors[c.writer];
  const bool keeps = w.kind == PlanActor::Kind::segment && w.rate == Rate::microbatch &&
                     plan_.is_step_program(w.program) && w.ops.size() == 1 && w.ops[0].op == "keep_microbatch";
  if (!keeps || c.rate != Rate::step || c.slots != 1 || c.tensors.size() != 1 || c.readers.size() != 1 ||
      role_.actors[c.readers[0].actor].kind != PlanActor::Kind::update)
    return refuse(c,
                  "keeps nothing for a later step: one segment leaves one tensor there, of all microbatches of a "
                  "step, and one update takes it");
  return {};
}

/// One snapshot actor fills the channel and one writer reads it. It has no bytes in the plan: each place computes
/// them (SavedParts).
Status ChannelCheck::check_snapshot(const PlanChannel& c) const {
  const bool proper = c.kind == PlanChannel::Kind::snapshot && c.writer >= 0 &&
                      role_.actors[c.writer].kind == PlanActor::Kind::snapshot && c.readers.size() == 1 &&
                      role_.actors[c.readers[0].actor].kind == PlanActor::Kind::writer && c.rate == Rate::step;
  if (!proper || !c.tensors.empty() || c.bytes != 0 || c.slots != plan_.snapshot_slots())
    return refuse(c, "is no snapshot's: one of those writes it, a writer reads it, and all have as many slots");
  return {};
}

/// A gather of gradients for updates: it begins with the commit, in the memory of the place's own sums.
bool ChannelCheck::rounds_sums(const PlanActor& a) const {
  return a.kind == PlanActor::Kind::exchange && !a.out.empty() && out(a, 0).kind == PlanChannel::Kind::rounded;
}

Status ChannelCheck::check_memory(const PlanChannel& c) {
  if (c.bytes < 0 || c.bytes > bytes_max / c.slots || c.bytes % tensor_alignment != 0 ||
      c.tensors.size() != c.offsets.size())
    return refuse(c, "has no proper memory");
  if ((bytes_ += c.bytes * c.slots) > bytes_max)
    return refuse(c, "and the channels before it are larger than any memory");
  std::map<std::int64_t, std::int32_t> by_offset;
  for (std::size_t i = 0; i < c.tensors.size(); ++i) {
    if (!here(c.tensors[i])) return refuse(c, "carries a tensor that the stage does not have");
    const PlanTensor& t = plan_.tensors[c.tensors[i]];
    if (t.rate != c.rate)
      return refuse("imbalance: channel '" + c.name + "' carries '" + t.name + "' at another rate than it is made");
    if (c.kind != kind_of(t, c.kind))
      return refuse(c, "carries '" + t.name + "', which lies in a channel of kind " + to_string(kind_of(t, c.kind)));
    const auto bytes = local_bytes(c.tensors[i]);
    if (c.offsets[i] < 0 || c.offsets[i] % tensor_alignment != 0 || c.offsets[i] > c.bytes - bytes)
      return refuse(
          c, fmt::format("has slots of {} bytes; '{}' needs {} from byte {}", c.bytes, t.name, bytes, c.offsets[i]));
    if (bytes > 0 && !by_offset.try_emplace(c.offsets[i], c.tensors[i]).second)
      return refuse(c, "keeps '" + t.name + "' where another tensor is");
  }
  std::int64_t end = 0;
  for (const auto& [offset, tensor] : by_offset) {
    if (offset < end) return refuse(c, "keeps '" + plan_.tensors[tensor].name + "' where another tensor is");
    end = offset + local_bytes(tensor);
  }
  return {};
}

/// The kind of channel that a tensor belongs in, given the kind `have` of its channel: a gradient's own kind; for
/// another tensor any kind that is not for gradients.
PlanChannel::Kind ChannelCheck::kind_of(const PlanTensor& t, PlanChannel::Kind have) const {
  using Kind = PlanChannel::Kind;
  if (t.gradient_of >= 0)
    return plan_.unreduced(t) ? Kind::gradient : t.dtype == DType::sum64 ? Kind::reduced : Kind::rounded;
  return have == Kind::gradient || have == Kind::reduced || have == Kind::rounded ? Kind::activation : have;
}

}  // namespace troupe::runtime
