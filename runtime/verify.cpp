#include "runtime/verify.h"

#include <algorithm>
#include <set>

#include "runtime/token_game.h"

namespace troupe::runtime {

namespace {

/// "12 MiB": whole units, never fewer than are needed and never more than are there.
std::string in_units(std::int64_t bytes, bool up) {
  const int shift = bytes >= (1 << 20) ? 20 : 10;
  return std::to_string((bytes + (up ? (std::int64_t{1} << shift) - 1 : 0)) >> shift) + (shift == 20 ? " MiB" : " KiB");
}

bool among(std::int32_t index, std::size_t size) { return index >= 0 && static_cast<std::size_t>(index) < size; }

/// Meshes, tensors, exchanges, parameters: every index points at something.
Status check_tables(const Plan& plan) {
  if (plan.stages < 1 || !among(plan.stages - 1, plan.meshes.size()) || plan.programs.empty() ||
      plan.programs.size() != plan.program_specs.size() || plan.lanes < 1)
    return invalid("the plan has no stages, programs or lanes");
  for (const auto& spec : plan.program_specs)
    if (spec.microbatches < 1 || spec.samples < 0) return invalid("a program of the plan has no microbatches");
  for (const auto& t : plan.tensors) {
    if (!among(t.mesh, plan.meshes.size())) return invalid("tensor '" + t.name + "' is on no mesh of the plan");
    if (size_of(t.dtype) == 0) return invalid("tensor '" + t.name + "' has a dtype that this version does not know");
    const Layout layout{t.shape, t.dtype, plan.meshes[t.mesh], t.sbp};
    if (Status s = layout.validate(); !s.ok()) return s.in("tensor '" + t.name + "'");
    if (t.lane_terms && dp_axis(layout.mesh) < 0) return invalid("gradient '" + t.name + "' is on a mesh without a dp axis");
  }
  for (const auto& x : plan.exchanges) {
    if (x.moves.empty() || !among(x.program, plan.programs.size())) return invalid("exchange '" + x.name + "' moves nothing");
    for (const auto& m : x.moves)
      if (!among(m.from, plan.tensors.size()) || !among(m.to, plan.tensors.size()))
        return invalid("exchange '" + x.name + "' moves a tensor that the plan does not have");
  }
  for (const auto& p : plan.params)
    if (!among(p.tensor, plan.tensors.size())) return invalid("parameter '" + p.name + "' has no tensor");
  return {};
}

/// Operands and parameter references of an actor lie in its channels or in its scratch memory.
Status check_operands(const Plan& plan, const PlanRole& role, const PlanActor& a, const std::string& where) {
  auto in_channel = [&](const std::vector<std::int32_t>& ports, std::int32_t port, std::int32_t index) {
    return among(port, ports.size()) && among(index, role.channels[ports[port]].tensors.size());
  };
  for (const auto& op : a.ops)
    for (const auto* side : {&op.in, &op.out})
      for (const auto& o : *side) {
        const bool known = among(o.tensor, plan.tensors.size());
        const bool placed = o.where == PlanOperand::Where::scratch ? o.offset >= 0 && o.offset <= a.op_scratch_offset
                            : o.where == PlanOperand::Where::in    ? in_channel(a.in, o.port, o.index)
                                                                   : in_channel(a.out, o.port, o.index);
        if (!known || !placed) return invalid(where + "op '" + op.name + "' of '" + a.name + "' has an argument that is nowhere");
      }
  for (const auto& ref : a.params) {
    bool good = among(ref.param, plan.params.size());
    for (const auto& use : ref.grads) good = good && in_channel(a.in, use.port, use.index);
    if (!good) return invalid(where + "'" + a.name + "' has a parameter or gradient that is nowhere");
  }
  if (!among(a.program, plan.programs.size())) return invalid(where + "'" + a.name + "' belongs to no program");
  return {};
}

}  // namespace

Status check_structure(const Plan& plan) {
  TROUPE_TRY(check_tables(plan));
  if (plan.roles.size() != static_cast<std::size_t>(plan.stages)) return invalid("the plan has no role for some stage");
  for (const auto& role : plan.roles) {
    const std::string where = "stage " + std::to_string(role.stage) + ": ";
    const auto channels = static_cast<std::int32_t>(role.channels.size());
    for (std::int32_t id = 0; id < channels; ++id) {
      const PlanChannel& c = role.channels[id];
      if (c.slots < 1) return invalid(where + "channel '" + c.name + "' has " + std::to_string(c.slots) + " slots; it needs at least 1");
      if (c.bytes < 0 || c.tensors.size() != c.offsets.size()) return invalid(where + "channel '" + c.name + "' has no proper memory");
      for (std::size_t i = 0; i < c.tensors.size(); ++i)
        if (!among(c.tensors[i], plan.tensors.size()) || c.offsets[i] < 0 || c.offsets[i] > c.bytes)
          return invalid(where + "channel '" + c.name + "' carries a tensor that the plan does not have");
      if (c.writer >= 0) {
        if (c.writer >= static_cast<std::int32_t>(role.actors.size())) return invalid(where + "channel '" + c.name + "' has no writer");
        const PlanActor& w = role.actors[c.writer];
        if (c.writer_port < 0 || c.writer_port >= static_cast<std::int32_t>(w.out.size()) || w.out[c.writer_port] != id)
          return invalid(where + "channel '" + c.name + "' names '" + w.name + "' as its writer, which does not write it");
        if (w.rate == Rate::step && c.rate == Rate::microbatch)
          return invalid(where + "imbalance: '" + w.name + "' acts once per step and cannot fill channel '" + c.name + "' once per microbatch");
        if (w.rate == Rate::microbatch && c.rate == Rate::step && c.kind != PlanChannel::Kind::gradient)
          return invalid(where + "imbalance: '" + w.name + "' acts once per microbatch and channel '" + c.name + "' carries one token per step");
      }
      for (const auto& r : c.readers) {
        if (r.actor < 0 || r.actor >= static_cast<std::int32_t>(role.actors.size())) return invalid(where + "channel '" + c.name + "' has a reader that is no actor");
        const auto& ports = role.actors[r.actor].in;
        if (r.port < 0 || r.port >= static_cast<std::int32_t>(ports.size()) || ports[r.port] != id)
          return invalid(where + "channel '" + c.name + "' names '" + role.actors[r.actor].name + "' as a reader, which does not read it");
        if (std::count(c.readers.begin(), c.readers.end(), r) > 1)
          return invalid(where + "channel '" + c.name + "' names its reader '" + role.actors[r.actor].name + "' twice");
        if (role.actors[r.actor].rate == Rate::step && c.rate == Rate::microbatch)
          return invalid(where + "imbalance: '" + role.actors[r.actor].name + "' acts once per step and reads channel '" + c.name + "', which carries one token per microbatch");
      }
    }
    for (const auto& a : role.actors)
      for (const auto* ports : {&a.in, &a.out})
        for (auto id : *ports)
          if (id < 0 || id >= channels) return invalid(where + "actor '" + a.name + "' has a port without a channel");
    for (std::size_t i = 0; i < role.actors.size(); ++i) {
      const PlanActor& a = role.actors[i];
      if (a.in.empty() && a.out.empty()) return invalid(where + "actor '" + a.name + "' has no port: nothing says when it acts");
      for (std::size_t p = 0; p < a.in.size(); ++p) {
        const auto& readers = role.channels[a.in[p]].readers;
        if (std::find(readers.begin(), readers.end(), PlanReader{static_cast<std::int32_t>(i), static_cast<std::int32_t>(p)}) == readers.end())
          return invalid(where + "channel '" + role.channels[a.in[p]].name + "' does not know its reader '" + a.name + "'");
      }
      for (std::size_t p = 0; p < a.out.size(); ++p)
        if (const auto& c = role.channels[a.out[p]]; c.writer != static_cast<std::int32_t>(i) || c.writer_port != static_cast<std::int32_t>(p))
          return invalid(where + "channel '" + c.name + "' does not know its writer '" + a.name + "'");
      if (a.kind == PlanActor::Kind::exchange && (a.exchange < 0 || a.exchange >= static_cast<std::int32_t>(plan.exchanges.size())))
        return invalid(where + "actor '" + a.name + "' has no exchange");
      TROUPE_TRY(check_operands(plan, role, a, where));
    }
  }
  return {};
}

Status verify(const Plan& plan, std::int64_t memory_bytes_max) {
  auto result = play(plan);
  if (!result.ok()) return result.status();
  if (memory_bytes_max <= 0) return {};
  // Every dp coordinate counts, played or not: an unaligned share of the lanes holds more gradient copies.
  for (std::int32_t s = 0; s < plan.stages; ++s) {
    std::set<std::int64_t> seen;
    for (Rank rank : plan.meshes[s].ranks) {
      if (!seen.insert(plan.dp_index(rank)).second) continue;
      TROUPE_ASSIGN(const LocalPlan local, local_plan(plan, rank));
      if (local.memory.total() > memory_bytes_max)
        return Status(Code::exhausted, "the plan needs " + in_units(local.memory.total(), true) + " on rank " + std::to_string(rank) +
                                           " and there are " + in_units(memory_bytes_max, false) +
                                           ": use a smaller microbatch, more stages (pp) or fewer lanes");
    }
  }
  return {};
}

}  // namespace troupe::runtime
