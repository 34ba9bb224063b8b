// The role of a stage: its actors and channels fit each other, and all tensors have memory.
#include <algorithm>
#include <map>
#include <set>

#include "actors/act.h"
#include "runtime/plan/local_plan.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

/// One stage of the plan: its actors, channels and their memory.
class RoleCheck {
 public:
  RoleCheck(const Plan& plan, std::int32_t stage)
      : plan_(plan), stage_(stage), role_(plan.roles[stage]), where_("stage " + std::to_string(stage) + ": "), optimizer_(plan, stage) {}

  Status run() {
    if (role_.stage != stage_) return refuse("its role says that it is of stage " + std::to_string(role_.stage));
    for (const auto& a : role_.actors) TROUPE_TRY(check_basics(a));
    for (std::size_t c = 0; c < role_.channels.size(); ++c) TROUPE_TRY(check_channel(static_cast<std::int32_t>(c)));
    for (std::size_t a = 0; a < role_.actors.size(); ++a) TROUPE_TRY(check_ports(static_cast<std::int32_t>(a)));
    for (const auto& c : role_.channels) {
      TROUPE_TRY(check_kind(c));
      TROUPE_TRY(check_memory(c));
    }
    TROUPE_TRY(check_rings(plan_, stage_));
    for (const auto& a : role_.actors) {
      TROUPE_TRY(check_closer(a));
      TROUPE_TRY(check_operands(a));
      TROUPE_TRY(check_scratch(a));
      TROUPE_TRY(check_state(plan_, stage_, a, bytes_));
      switch (a.kind) {
        case PlanActor::Kind::exchange: TROUPE_TRY(check_exchange_end(a)); break;
        case PlanActor::Kind::norm:
        case PlanActor::Kind::update:
        case PlanActor::Kind::digest:
        case PlanActor::Kind::snapshot:
          TROUPE_TRY(optimizer_.check(a));
          if (a.gathers()) ++ends_[a.exchange];
          break;
        case PlanActor::Kind::segment:
        case PlanActor::Kind::user:
        case PlanActor::Kind::writer:
          if (a.kind == PlanActor::Kind::writer) TROUPE_TRY(check_writer(a));
          if (!a.params.empty()) return refuse("'" + a.name + "' updates a parameter and is no optimizer");
      }
    }
    TROUPE_TRY(check_exchange_ends());
    TROUPE_TRY(optimizer_.check_params());
    return check_areas(plan_, stage_);
  }

  const Trained& trained() const { return optimizer_.trained(); }

 private:
  Status refuse(const std::string& what) const { return invalid(where_ + what); }
  Status refuse(const PlanChannel& c, const std::string& what) const {
    return refuse("channel '" + c.name + "' " + what);
  }
  const PlanChannel& in(const PlanActor& a, std::int32_t port) const { return role_.channels[a.in[port]]; }
  const PlanChannel& out(const PlanActor& a, std::int32_t port) const { return role_.channels[a.out[port]]; }
  /// At position 0, which has the largest part.
  std::int64_t local_bytes(std::int32_t tensor) const { return plan_.layout(tensor, 0).bytes_at(0); }
  bool here(std::int32_t tensor) const {
    return among(tensor, plan_.tensors.size()) && holds(plan_, plan_.tensors[tensor].mesh, stage_);
  }

  Status check_basics(const PlanActor& a) const {
    using Kind = PlanActor::Kind;
    const std::string name = "actor '" + a.name + "' ";
    if (a.kind > Kind::writer || !known(a.rate) || !sensible(a.cost_s))
      return refuse(name + "has a kind, rate or cost that this version does not know");
    if (!among(a.program, plan_.programs.size())) return refuse("'" + a.name + "' belongs to no program");
    if (a.pass > Pass::weights || !among(a.virtual_stage, static_cast<std::size_t>(plan_.stages * plan_.pipeline.chunks)))
      return refuse(name + "is part of no pass of the pipeline");
    if (a.takes_turns && (a.kind != Kind::segment || a.program != 0 || a.rate != Rate::microbatch))
      return refuse(name + "takes turns; segments of '" + plan_.programs[0] + "' do that act once per microbatch");
    if (a.in.empty() && a.out.empty()) return refuse(name + "has no port: nothing says when it acts");
    if (a.in.empty() && a.kind != Kind::exchange)
      return refuse(name + "has no input: nothing says of which step it acts");
    const char* stream = stream_of(a.kind);
    if (a.stream != stream)
      return refuse(name + "is on stream '" + a.stream + "'; " + to_string(a.kind) + " actors run on '" + stream + "'");
    const bool optimizer = a.kind == Kind::norm || a.kind == Kind::update, digest = a.kind == Kind::digest;
    const bool saves = a.kind == Kind::snapshot || a.kind == Kind::writer;
    if ((optimizer || digest || saves) && a.rate != Rate::step)
      return refuse("imbalance: '" + a.name + "' acts once per microbatch; " + to_string(a.kind) +
                    " actors act once per step");
    if (a.rate == Rate::round && a.kind != Kind::exchange)
      return refuse("imbalance: '" + a.name + "' acts in rounds; " + to_string(a.kind) + " actors do not");
    const std::int32_t digests = plan_.program("digest");
    const bool own_program = digest == (a.program == digests) && saves == (a.program == plan_.program("snapshot"));
    if ((optimizer && a.program != 0) || !own_program)
      return refuse(name + "belongs to program '" + plan_.programs[a.program] + "', where there is no " +
                    to_string(a.kind));
    for (const auto* ports : {&a.in, &a.out})
      for (auto id : *ports)
        if (!among(id, role_.channels.size())) return refuse(name + "has a port without a channel");
    if (a.ops.size() != 1 && a.kind == Kind::user)
      return refuse(name + "has " + std::to_string(a.ops.size()) + " kinds; a user-defined actor has one");
    if (a.exchange >= 0 && a.kind != Kind::exchange && a.kind != Kind::update)
      return refuse(name + "has an exchange; exchange and update actors only do");
    if (!a.ops.empty() && a.kind != Kind::user && a.kind != Kind::segment)
      return refuse(name + "has ops and is no segment");
    if (a.op_scratch_offset < 0 || a.op_scratch_offset % tensor_alignment != 0 ||
        a.scratch_bytes < a.op_scratch_offset || a.scratch_bytes > bytes_max)
      return refuse(name + "has no proper scratch memory");
    return {};
  }

  /// A channel and the actors at its ends name each other, and tokens are written and read at rates that balance.
  Status check_channel(std::int32_t id) const {
    const PlanChannel& c = role_.channels[id];
    if (c.slots < 1 || c.slots > count_max)
      return refuse(c, "has " + std::to_string(c.slots) + " slots; it needs at least 1");
    if (!known(c.rate) || c.kind > PlanChannel::Kind::snapshot)
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
      if (w.rate == Rate::microbatch && c.rate == Rate::step && c.kind != PlanChannel::Kind::gradient)
        return refuse("imbalance: '" + w.name + "' acts once per microbatch and channel '" + c.name +
                      "' carries one token per step");
      if (!goes_with(w.rate, c.rate)) return refuse("imbalance: '" + w.name + "' acts at another rate than it fills channel '" + c.name + "'");
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
      if (!goes_with(a.rate, c.rate)) return refuse("imbalance: '" + a.name + "' acts at another rate than it reads channel '" + c.name + "'");
      // Another program has other steps and microbatches. Only tokens of parameters name the programs that read them.
      if (c.kind == PlanChannel::Kind::parameter) continue;
      const PlanActor& other = role_.actors[c.writer >= 0 ? c.writer : c.readers[0].actor];
      if (other.program != a.program)
        return refuse("imbalance: channel '" + c.name + "' carries tokens of '" + other.name + "' in program '" +
                      plan_.programs[other.program] + "', and its reader '" + a.name + "' acts in program '" +
                      plan_.programs[a.program] + "': programs share parameters only");
    }
    return {};
  }

  /// An act has one token of the channel, or shares one with other acts, or (the last round) has none.
  static bool goes_with(Rate actor, Rate channel) {
    if (actor == channel || channel == Rate::step) return true;
    return actor != Rate::step;
  }

  Status check_ports(std::int32_t index) const {
    const PlanActor& a = role_.actors[index];
    for (std::size_t p = 0; p < a.in.size(); ++p) {
      const PlanChannel& c = in(a, static_cast<std::int32_t>(p));
      if (std::find(c.readers.begin(), c.readers.end(), PlanReader{index, static_cast<std::int32_t>(p)}) ==
          c.readers.end())
        return refuse(c, "does not know its reader '" + a.name + "'");
    }
    for (std::size_t p = 0; p < a.out.size(); ++p)
      if (const PlanChannel& c = out(a, static_cast<std::int32_t>(p));
          c.writer != index || c.writer_port != static_cast<std::int32_t>(p))
        return refuse(c, "does not know its writer '" + a.name + "'");
    return {};
  }

  /// Actors whose outputs no actor of their program reads at the place close its step, except updates.
  Status check_closer(const PlanActor& a) const {
    bool read = false;
    for (auto id : a.out)
      for (const auto& r : role_.channels[id].readers)
        read |= role_.actors[r.actor].program == a.program && role_.channels[id].kind != PlanChannel::Kind::turn;
    const bool closes = !read && a.kind != PlanActor::Kind::update;
    if (a.closes_step != closes)
      return refuse("actor '" + a.name +
                    (closes ? "' does not close its step, although nobody waits for it"
                            : "' closes its step, although others act after it"));
    return {};
  }

  /// The writer, readers, rate and payload of a channel are those of its kind.
  Status check_kind(const PlanChannel& c) const {
    using Kind = PlanChannel::Kind;
    const PlanActor* w = c.writer >= 0 ? &role_.actors[c.writer] : nullptr;
    if (c.control() != (w == nullptr)) return refuse(c, w ? "is a control channel and has a writer" : "has no writer");
    if ((c.kind == Kind::parameter) != (w && w->kind == PlanActor::Kind::update && c.kind != Kind::turn))
      return refuse(c, "is of kind " + std::string(to_string(c.kind)) +
                           "; parameters, and only they, are written by update actors, and turns of the memory that they have read");
    if (c.initial && c.kind != Kind::parameter && c.kind != Kind::turn)
      return refuse(c, "holds a token before the first act and is neither parameter nor turn");
    TROUPE_TRY(check_round_channel(plan_, role_, c));
    if (c.kind == Kind::parameter && (c.slots != 1 || c.rate != Rate::step))
      return refuse(c, "has " + std::to_string(c.slots) + " slots; parameters are updated in their only one");
    if (c.kind == Kind::gradient &&
        (w->kind != PlanActor::Kind::segment || w->rate != Rate::microbatch || w->program != 0 ||
         (c.rate != Rate::step && c.rate != Rate::microbatch)))
      return refuse(c, "accumulates gradients, and '" + w->name + "' is no segment that makes some per microbatch");
    if (c.kind == Kind::snapshot || (w && w->kind == PlanActor::Kind::snapshot)) TROUPE_TRY(check_snapshot(c));
    if (w) return {};
    const bool commit = c.kind == Kind::commit, feed = c.kind == Kind::feed;
    if (feed && c.at_once < 1) return refuse(c, "feeds " + std::to_string(c.at_once) + " microbatches at once; the first waits for nothing");
    if (feed && !c.after.empty() && !reported(c)) return refuse(c, "waits for report '" + c.after + "', which no actor of its program makes");
    if (feed != (c.rate == Rate::microbatch))
      return refuse(c, "does not have the rate of its kind, " + std::string(to_string(c.kind)));
    if (c.readers.empty() || (feed && (c.tensors.size() != 1 || !here(c.tensors[0]))))
      return refuse(c, "has no reader, or is no feed of one tensor");
    if (!commit)
      for (const auto& r : c.readers)
        if (role_.actors[r.actor].program != c.program)
          return refuse(c, "is of another program than its reader '" + role_.actors[r.actor].name + "'");
    std::int64_t payload = commit ? actors::commit_bytes(plan_.params.size()) : 0;
    if (feed) payload = elements(plan_.tensors[c.tensors[0]].shape) * size_of(plan_.tensors[c.tensors[0]].dtype);
    if (c.bytes < payload)
      return refuse(c, "has slots of " + std::to_string(c.bytes) + " bytes; the session sends " +
                           std::to_string(payload));
    for (const auto& r : c.readers)
      if (const PlanActor& a = role_.actors[r.actor]; (a.kind == PlanActor::Kind::update || rounds_sums(a)) != commit)
        return refuse(c, "is read by '" + a.name + "'; updates, gathers of the gradients that they read, and no others wait for 'commit'");
    return {};
  }

  /// Whether an actor of any stage makes the report that the feed waits for.
  bool reported(const PlanChannel& feed) const {
    for (const auto& role : plan_.roles)
      for (const auto& a : role.actors)
        if (a.program == feed.program && a.reports(feed.after)) return true;
    return false;
  }

  /// One snapshot actor fills the channel and one writer reads it. It has no bytes in the plan: each place computes
  /// them (SavedParts).
  Status check_snapshot(const PlanChannel& c) const {
    const bool proper = c.kind == PlanChannel::Kind::snapshot && c.writer >= 0 && role_.actors[c.writer].kind == PlanActor::Kind::snapshot &&
                        c.readers.size() == 1 && role_.actors[c.readers[0].actor].kind == PlanActor::Kind::writer && c.rate == Rate::step;
    if (!proper || !c.tensors.empty() || c.bytes != 0 || c.slots != plan_.snapshot_slots())
      return refuse(c, "is no snapshot's: one of those writes it, a writer reads it, and all have as many slots");
    return {};
  }

  /// A gather of gradients for updates: it begins with the commit, in the memory of the place's own sums.
  bool rounds_sums(const PlanActor& a) const {
    return a.kind == PlanActor::Kind::exchange && !a.out.empty() && out(a, 0).kind == PlanChannel::Kind::rounded;
  }

  /// Every tensor of a channel has room of its own in a slot.
  Status check_memory(const PlanChannel& c) {
    if (c.bytes < 0 || c.bytes > bytes_max / c.slots || c.bytes % tensor_alignment != 0 ||
        c.tensors.size() != c.offsets.size())
      return refuse(c, "has no proper memory");
    if ((bytes_ += c.bytes * c.slots) > bytes_max) return refuse(c, "and those before it are larger than any memory");
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
        return refuse(c, "has slots of " + std::to_string(c.bytes) + " bytes; '" + t.name + "' needs " +
                             std::to_string(bytes) + " from byte " + std::to_string(c.offsets[i]));
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
  PlanChannel::Kind kind_of(const PlanTensor& t, PlanChannel::Kind have) const {
    using Kind = PlanChannel::Kind;
    if (t.gradient_of >= 0) return plan_.unreduced(t) ? Kind::gradient : t.dtype == DType::sum64 ? Kind::reduced : Kind::rounded;
    return have == Kind::gradient || have == Kind::reduced || have == Kind::rounded ? Kind::activation : have;
  }

  bool lies(const PlanActor& a, const PlanOperand& o) const {
    if (!here(o.tensor)) return false;
    if (o.where == PlanOperand::Where::scratch)
      return a.kind == PlanActor::Kind::segment && plan_.tensors[o.tensor].rate == a.rate && o.offset >= 0 &&
             o.offset % tensor_alignment == 0 && o.offset <= a.op_scratch_offset - local_bytes(o.tensor);
    if (o.where > PlanOperand::Where::scratch) return false;
    const auto& ports = o.where == PlanOperand::Where::in ? a.in : a.out;
    if (!among(o.port, ports.size())) return false;
    const auto& tensors = role_.channels[ports[o.port]].tensors;
    return among(o.index, tensors.size()) && tensors[o.index] == o.tensor;
  }

  Status check_operands(const PlanActor& a) const {
    for (const auto& op : a.ops) {
      const std::string name = "op '" + op.name + "' of '" + a.name + "' ";
      for (const auto* side : {&op.in, &op.out})
        for (const auto& o : *side) {
          const bool user = a.kind == PlanActor::Kind::user, written = side == &op.out;
          const bool backwards = written ? o.where == PlanOperand::Where::in
                                         : user && o.where == PlanOperand::Where::out;
          if (!lies(a, o) || backwards) return refuse(name + "has an argument that is nowhere");
          const PlanTensor& t = plan_.tensors[o.tensor];
          if (written && plan_.unreduced(t) && exponent_of(plan_, role_, a, t.gradient_of).port < 0)
            return refuse(name + "makes the gradient '" + t.name + "', and '" + a.name + "' does not read the slot that has its exponent");
        }
      if (!op.op.empty()) continue;
      if (op.in.size() != 1 || !op.out.empty()) return refuse(name + "reports, and has not exactly one argument");
      const DType dtype = plan_.tensors[op.in[0].tensor].dtype;
      if (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::i32 && dtype != DType::i64)
        return refuse(name + "reports numbers of type " + to_string(dtype));
    }
    return {};
  }

  /// An op reads from scratch memory only what an earlier op of the act has left there, and its outputs overlap none of
  /// its own arguments.
  Status check_scratch(const PlanActor& a) const {
    std::map<std::int64_t, std::int32_t> left;   // offset -> tensor
    for (const auto& op : a.ops) {
      const std::string name = "op '" + op.name + "' of '" + a.name + "' ";
      std::map<std::int64_t, std::int32_t> own;
      auto skip = [&](const PlanOperand& o) {
        return o.where != PlanOperand::Where::scratch || local_bytes(o.tensor) == 0;
      };
      for (const auto& o : op.in) {
        if (skip(o)) continue;
        if (const auto it = left.find(o.offset); it == left.end() || it->second != o.tensor)
          return refuse(name + "reads '" + plan_.tensors[o.tensor].name + "' where no op before it left it");
        own.insert({o.offset, o.tensor});
      }
      for (const auto& o : op.out) {
        if (skip(o)) continue;
        const std::int64_t end = o.offset + local_bytes(o.tensor);
        auto overlaps = [&](const auto& kept) {
          return kept.first < end && o.offset < kept.first + local_bytes(kept.second);
        };
        if (std::any_of(own.begin(), own.end(), overlaps))
          return refuse(name + "writes '" + plan_.tensors[o.tensor].name + "' where another argument is");
        std::erase_if(left, overlaps);
        left[o.offset] = own[o.offset] = o.tensor;
      }
    }
    return {};
  }

  /// A writer takes one snapshot to disk.
  Status check_writer(const PlanActor& a) const {
    if (a.in.size() != 1 || role_.channels[a.in[0]].kind != PlanChannel::Kind::snapshot || !a.out.empty() || !a.ops.empty())
      return refuse("writer '" + a.name + "' does more, or less, than to write one snapshot");
    return {};
  }

  /// An end of an exchange reads what its stage has of the moved tensors, and writes what its stage gets.
  Status check_exchange_end(const PlanActor& a) {
    if (!among(a.exchange, plan_.exchanges.size())) return refuse("actor '" + a.name + "' has no exchange");
    const PlanExchange& x = plan_.exchanges[a.exchange];
    ++ends_[a.exchange];
    if (x.rate != a.rate || x.program != a.program)
      return refuse("imbalance: actor '" + a.name + "' acts at another rate or in another program than its exchange '" +
                    x.name + "'");
    const auto turns = std::count_if(a.out.begin(), a.out.end(), [&](auto id) { return role_.channels[id].kind == PlanChannel::Kind::turn; });
    const auto written = static_cast<std::ptrdiff_t>(a.out.size()) - turns;
    if (written > 1 || (written == 1 && out(a, 0).kind == PlanChannel::Kind::turn) || !a.params.empty())
      return refuse("actor '" + a.name + "' writes " + std::to_string(written) +
                    " channels; an exchange writes one, its first");
    auto on = [&](const std::vector<std::int32_t>& ports, std::int32_t tensor) {
      std::int64_t n = 0;
      for (auto id : ports)
        n += std::count(role_.channels[id].tensors.begin(), role_.channels[id].tensors.end(), tensor);
      return n;
    };
    std::set<std::pair<std::int32_t, std::int32_t>> made;
    for (const auto& m : x.moves) {
      if (on(a.in, m.from) != (here(m.from) ? 1 : 0))
        return refuse("actor '" + a.name + "' does not have '" + plan_.tensors[m.from].name + "' on one of its inputs");
      // Uses of a parameter are added into one sum.
      const bool fresh = made.insert({plan_.reduces(x) ? m.from : 0, m.to}).second;
      if (on(a.out, m.to) != (here(m.to) ? 1 : 0) || !fresh)
        return refuse("actor '" + a.name + "' does not have '" + plan_.tensors[m.to].name + "' on its output");
      const PlanTensor &from = plan_.tensors[m.from], &to = plan_.tensors[m.to];
      if (from.dtype != to.dtype && exponent_of(plan_, role_, a, from.gradient_of).port < 0)
        return refuse("actor '" + a.name + "' converts '" + from.name + "' and does not read the slot that has its exponent");
    }
    return {};
  }

  /// A stage that takes part in an exchange has one actor for it.
  Status check_exchange_ends() const {
    for (std::size_t i = 0; i < plan_.exchanges.size(); ++i) {
      const auto& x = plan_.exchanges[i];
      const int want = here(x.moves[0].from) || here(x.moves[0].to) ? 1 : 0;
      const auto it = ends_.find(static_cast<std::int32_t>(i));
      if (const int have = it == ends_.end() ? 0 : it->second; have != want)
        return refuse("exchange '" + x.name + "' has " + std::to_string(have) + " actors here; it needs " +
                      std::to_string(want));
    }
    return {};
  }

  const Plan& plan_;
  const std::int32_t stage_;
  const PlanRole& role_;
  const std::string where_;
  std::int64_t bytes_ = 0;             // of all channels and states so far
  std::map<std::int32_t, int> ends_;   // exchange -> actors
  OptimizerCheck optimizer_;
};

}  // namespace

Expected<Trained> check_role(const Plan& plan, std::int32_t stage) {
  RoleCheck check(plan, stage);
  TROUPE_TRY(check.run());
  return check.trained();
}

}  // namespace troupe::runtime
