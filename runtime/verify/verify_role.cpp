// The actors of a stage: each fits its kind, its channels and its program, and all its arguments have memory.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/place/local_plan.h"
#include "runtime/plan/update_ops.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

/// One stage of the plan.
class RoleCheck : private StageView {
 public:
  RoleCheck(const Plan& plan, std::int32_t stage)
      : StageView(plan, stage), channels_(plan, stage), optimizer_(plan, stage) {}

  Status run() {
    if (role_.stage != stage_) return refuse(fmt::format("its role says that it is of stage {}", role_.stage));
    for (const auto& a : role_.actors) TROUPE_TRY(check_basics(a));
    for (std::size_t c = 0; c < role_.channels.size(); ++c)
      TROUPE_TRY(channels_.check_ends(static_cast<std::int32_t>(c)));
    for (std::size_t a = 0; a < role_.actors.size(); ++a) TROUPE_TRY(check_ports(static_cast<std::int32_t>(a)));
    for (const auto& c : role_.channels) {
      TROUPE_TRY(channels_.check_kind(c));
      TROUPE_TRY(channels_.check_memory(c));
    }
    std::int64_t bytes = channels_.bytes();
    TROUPE_TRY(check_rings(plan_, stage_));
    for (const auto& a : role_.actors) {
      TROUPE_TRY(check_closer(a));
      TROUPE_TRY(check_operands(a));
      TROUPE_TRY(check_scratch(a));
      TROUPE_TRY(check_state(plan_, stage_, a, bytes));
      TROUPE_TRY(check_kind(a));
    }
    TROUPE_TRY(check_exchange_ends());
    TROUPE_TRY(optimizer_.check_params());
    return check_areas(plan_, stage_);
  }

  const Trained& trained() const { return optimizer_.trained(); }

 private:
  Status check_basics(const PlanActor& a) const {
    using Kind = PlanActor::Kind;
    using Ops = ActorTraits::Ops;
    const std::string name = "actor '" + a.name + "' ";
    if (!known(a.kind) || !known(a.rate) || !sensible(a.cost_s))
      return refuse(name + "has a kind, rate or cost that this version does not know");
    if (!among(a.program, plan_.programs.size())) return refuse("'" + a.name + "' belongs to no program");
    if (a.pass > Pass::weights ||
        !among(a.virtual_stage, static_cast<std::size_t>(plan_.stages * plan_.pipeline.chunks)))
      return refuse(name + "is part of no pass of the pipeline");
    if (a.takes_turns && (a.kind != Kind::segment || !plan_.is_step_program(a.program) || a.rate != Rate::microbatch))
      return refuse(name + "takes turns; segments of '" + plan_.programs[plan_.step_program()].name +
                    "' do that act once per microbatch");
    if (a.in.empty() && a.out.empty()) return refuse(name + "has no port: nothing says when it acts");
    const ActorTraits& kind = traits(a.kind);
    if (a.in.empty() && !kind.starts) return refuse(name + "has no input: nothing says of which step it acts");
    if (a.stream != kind.stream)
      return refuse(name + "is on stream '" + a.stream + "'; " + kind.name + " actors run on '" + kind.stream + "'");
    if (kind.once_per_step && a.rate != Rate::step)
      return refuse("imbalance: '" + a.name + "' acts once per microbatch; " + to_string(a.kind) +
                    " actors act once per step");
    if (a.rate == Rate::round && !kind.rounds)
      return refuse("imbalance: '" + a.name + "' acts in rounds; " + to_string(a.kind) + " actors do not");
    if (!at_home(a))
      return refuse(name + "belongs to program '" + plan_.programs[a.program].name + "', where there is no " +
                    to_string(a.kind));
    for (const auto* ports : {&a.in, &a.out})
      for (auto id : *ports)
        if (!among(id, role_.channels.size())) return refuse(name + "has a port without a channel");
    if (kind.ops == Ops::one && a.ops.size() != 1)
      return refuse(fmt::format("{}has {} kinds; a user-defined actor has one", name, a.ops.size()));
    if (a.exchange >= 0 && !kind.exchanges) return refuse(name + "has an exchange; exchange and update actors only do");
    if (a.finishes() && !plan_.is_step_program(a.program))
      return refuse(name + "ends the run, and its program '" + plan_.programs[a.program].name +
                    "' is none of those whose steps it consists of");
    if (kind.ops == Ops::none && !a.ops.empty()) return refuse(name + "has ops and is no segment");
    if (a.op_scratch_offset < 0 || a.op_scratch_offset % tensor_alignment != 0 ||
        a.scratch_bytes < a.op_scratch_offset || a.scratch_bytes > bytes_max)
      return refuse(name + "has no proper scratch memory");
    return {};
  }

  /// An actor is of a program that has actors of its kind.
  bool at_home(const PlanActor& a) const {
    using Home = ActorTraits::Home;
    const Home home = traits(a.kind).home;
    auto fits = [&](const char* program, Home own) { return (home == own) == (a.program == plan_.program(program)); };
    return fits("digest", Home::digest) && fits("snapshot", Home::snapshot) && fits("copy", Home::copy) &&
           (home != Home::step || plan_.is_step_program(a.program));
  }

  /// The actors at a channel's ends are known to it.
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
        read |= role_.actors[r.actor].program == a.program && role_.channels[id].passes_on();
    const bool closes = !read && traits(a.kind).closes_step;
    if (a.closes_step != closes)
      return refuse("actor '" + a.name +
                    (closes ? "' does not close its step, although no actor waits for it"
                            : "' closes its step, although others act after it"));
    return {};
  }

  /// What only actors of one kind must hold.
  Status check_kind(const PlanActor& a) {
    using Check = Status (RoleCheck::*)(const PlanActor&);
    static constexpr auto checks = std::to_array<Check>({
        &RoleCheck::check_computes,      // segment
        &RoleCheck::check_computes,      // user
        &RoleCheck::check_exchange_end,  // exchange
        &RoleCheck::check_optimizer,     // norm
        &RoleCheck::check_optimizer,     // update
        &RoleCheck::check_optimizer,     // digest
        &RoleCheck::check_optimizer,     // snapshot
        &RoleCheck::check_writer,        // writer
        &RoleCheck::check_optimizer,     // copy
    });
    static_assert(checks.size() == actor_kinds, "a check for each kind");
    return (this->*checks[static_cast<std::size_t>(a.kind)])(a);
  }

  Status check_computes(const PlanActor& a) {
    if (!a.params.empty()) return refuse("'" + a.name + "' updates a parameter and is no optimizer");
    return {};
  }

  Status check_optimizer(const PlanActor& a) {
    TROUPE_TRY(optimizer_.check(a));
    if (a.kind == PlanActor::Kind::update) TROUPE_TRY(check_update_ops(plan_, stage_, a));
    if (a.gathers()) ++ends_[a.exchange];
    return {};
  }

  /// Whether an operand lies where it says, and the tensor is the one that lies there.
  bool lies(const PlanActor& a, const PlanOperand& o) const {
    if (!here(o.tensor)) return false;
    const bool update = a.kind == PlanActor::Kind::update;
    if (o.where == PlanOperand::Where::scratch)
      return (update || a.kind == PlanActor::Kind::segment) && plan_.tensors[o.tensor].rate == a.rate &&
             o.offset >= 0 && o.offset % tensor_alignment == 0 &&
             o.offset <= a.op_scratch_offset - local_bytes(o.tensor);
    if (o.where > PlanOperand::Where::scratch) return false;
    if (update &&
        (o.where == PlanOperand::Where::out || o.port == update_ops::own_version)) {  // a parameter of its own
      if ((o.where == PlanOperand::Where::out && o.port != 0) || !among(o.index, a.params.size()) ||
          !among(a.params[o.index].param, plan_.params.size()))
        return false;
      return update_ops::part_of(plan_.params[a.params[o.index].param]) == o.tensor;
    }
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
            return refuse(name + "makes the gradient '" + t.name + "', and '" + a.name +
                          "' does not read the slot that has its exponent");
        }
      for (const auto& o : op.in)
        if (a.kind == PlanActor::Kind::segment && o.where == PlanOperand::Where::in && in(a, o.port).lag > 0 &&
            op.op != "delay")
          return refuse(name + "reads channel '" + in(a, o.port).name +
                        "' late, and is not 'delay': the first microbatches of a step have nothing there");
      if (!op.op.empty()) continue;
      if (a.kind == PlanActor::Kind::update) return refuse(name + "reports, and updates make no reports");
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
    std::map<std::int64_t, std::int32_t> left;  // offset -> tensor
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
  Status check_writer(const PlanActor& a) {
    if (a.in.size() != 1 || role_.channels[a.in[0]].kind != PlanChannel::Kind::snapshot || !a.out.empty() ||
        !a.ops.empty())
      return refuse("writer '" + a.name + "' does more, or less, than to write one snapshot");
    return check_computes(a);
  }

  /// An end of an exchange reads what its stage has of the moved tensors, and writes what its stage gets.
  Status check_exchange_end(const PlanActor& a) {
    if (!among(a.exchange, plan_.exchanges.size())) return refuse("actor '" + a.name + "' has no exchange");
    const PlanExchange& x = plan_.exchanges[a.exchange];
    ++ends_[a.exchange];
    if (x.rate != a.rate || x.program != a.program)
      return refuse("imbalance: actor '" + a.name + "' acts at another rate or in another program than its exchange '" +
                    x.name + "'");
    const auto turns = std::count_if(a.out.begin(), a.out.end(),
                                     [&](auto id) { return role_.channels[id].kind == PlanChannel::Kind::turn; });
    const auto written = static_cast<std::ptrdiff_t>(a.out.size()) - turns;
    if (written > 1 || (written == 1 && out(a, 0).kind == PlanChannel::Kind::turn) || !a.params.empty())
      return refuse(fmt::format("actor '{}' writes {} channels; an exchange writes one, its first", a.name, written));
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
        return refuse("actor '" + a.name + "' converts '" + from.name +
                      "' and does not read the slot that has its exponent");
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
        return refuse(fmt::format("exchange '{}' has {} actors here; it needs {}", x.name, have, want));
    }
    return {};
  }

  std::map<std::int32_t, int> ends_;  // exchange -> actors
  ChannelCheck channels_;
  OptimizerCheck optimizer_;
};

}  // namespace

Expected<Trained> check_role(const Plan& plan, std::int32_t stage) {
  RoleCheck check(plan, stage);
  TROUPE_TRY(check.run());
  return check.trained();
}

}  // namespace troupe::runtime
