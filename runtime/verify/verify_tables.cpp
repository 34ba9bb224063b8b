// The tables of a plan: programs, meshes, tensors, exchanges, parameters.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "actors/token.h"
#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t terms_max = std::int64_t{1} << 40;  // term_bits leaves each 22 bits then
static_assert(tensor_bytes_max <= bytes_max, "verify refuses no tensor that a graph may have");

Status check_programs(const Plan& plan) {
  if (plan.stages < 1 || !among(plan.stages - 1, plan.meshes.size()) || plan.programs.empty())
    return invalid("the plan has no stages or programs");
  const auto steps = std::count_if(plan.programs.begin(), plan.programs.end(),
                                   [](const PlanProgram& p) { return p.steps; });
  if (steps < 1 || (!plan.trains() && steps > 1))
    return invalid(fmt::format("{} programs of the plan run once a step; it needs one, or those that train", steps));
  const auto& pipeline = plan.pipeline;
  if (pipeline.kind > Pipeline::Kind::zero_bubble || pipeline.chunks < 1 || plan.roles.empty() ||
      !among(pipeline.chunks - 1, plan.roles[0].actors.size()) ||
      (pipeline.chunks > 1 && pipeline.kind != Pipeline::Kind::interleaved) || pipeline.ahead < 0 ||
      pipeline.ahead > count_max || ((pipeline.ahead > 0 || pipeline.weights_apart) && pipeline.ordered()))
    return invalid(
        fmt::format("the plan has no pipeline schedule that this version knows: {} with {} chunks a stage "
                    "and {} microbatches ahead{}",
                    to_string(pipeline), pipeline.chunks, pipeline.ahead,
                    pipeline.weights_apart ? ", weight gradients apart" : ""));
  if (plan.programs.size() > 8 * sizeof(actors::ProgramMask))
    return invalid(fmt::format("the plan has {} programs; {} are possible", plan.programs.size(),
                               8 * sizeof(actors::ProgramMask)));
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    const auto& spec = plan.programs[p].spec;
    if (plan.program(plan.programs[p].name) != static_cast<std::int32_t>(p))
      return invalid("the plan has two programs '" + plan.programs[p].name + "'");
    if (spec.microbatches < 1 || spec.microbatches > count_max || spec.samples < 0 || spec.samples > bytes_max >> 20)
      return invalid(fmt::format("program '{}' has {} microbatches of {} samples; possible are 1 to {} of at most {}",
                                 plan.programs[p].name, spec.microbatches, spec.samples, count_max, bytes_max >> 20));
    if (plan.trains() && plan.programs[p].steps != plan.programs[p].optimizer.has_value())
      return invalid("program '" + plan.programs[p].name + "' " +
                     (plan.programs[p].steps ? "runs once a step and has no optimizer"
                                             : "has an optimizer and does not run once a step"));
    const std::int64_t blocks = plan.programs[p].blocks;
    if (blocks < 1 || blocks > spec.microbatches || (blocks > 1 && (spec.sequential || !plan.programs[p].steps)))
      return invalid(
          fmt::format("program '{}' runs {} microbatches in {} blocks that take turns: expected 1 block, or, "
                      "where they run in any order once a step, as many as there are microbatches",
                      plan.programs[p].name, spec.microbatches, blocks));
    if (spec.stateful && (!spec.sequential || plan.programs[p].optimizer))
      return invalid("program '" + plan.programs[p].name + "' is stateful, and " +
                     (spec.sequential ? "trains" : "not sequential") +
                     ": its microbatches would not all run at one place in order");
  }
  if (plan.program("digest") < 0) return invalid("the plan has no program 'digest'");
  if (plan.keeps_version() && plan.keeps_copies())
    return invalid("the plan keeps a version in slots, and copies of others: one is enough");
  for (const char* reads : {"digest", "snapshot", "copy"})
    if (plan.is_step_program(plan.program(reads)))
      return invalid("program '" + std::string(reads) + "' runs once a step, and it only reads versions");
  return {};
}

Status check_meshes(const Plan& plan) {
  TROUPE_TRY(check_stage_meshes({plan.meshes.begin(), plan.meshes.begin() + plan.stages}));
  for (const std::int32_t p : plan.training())
    for (std::int32_t s = 0; s < plan.stages; ++s)
      if (plan.runs_on(p, s) && plan.dp_width(s) > plan.spec(p).microbatches)
        return invalid(fmt::format("stage {} has dp={}, more than the {} microbatches of a step of program '{}'", s,
                                   plan.dp_width(s), plan.spec(p).microbatches, plan.programs[p].name));
  TROUPE_TRY(check_owners(plan.owners, plan));
  for (std::size_t m = static_cast<std::size_t>(plan.stages); m < plan.meshes.size(); ++m) {
    const Mesh& mesh = plan.meshes[m];
    const std::string where = fmt::format("mesh {} ", m);
    TROUPE_TRY(check_mesh(mesh, where));
    if (mesh.ranks.empty() || std::set<Rank>(mesh.ranks.begin(), mesh.ranks.end()).size() != mesh.ranks.size())
      return invalid(where + "has no ranks, or one twice");
    const auto stages = plan.stages_on(static_cast<std::int32_t>(m));
    for (const std::int32_t s : stages) {
      if (!same_model_axes(plan.meshes[s], plan.meshes[stages.front()]))
        return invalid(
            fmt::format("{}is made of stages {} and {}, whose model axes differ in size", where, stages.front(), s));
      Mesh own = mesh;  // that of all stages together has one axis more that divides
      for (Axis& axis : own.axes)
        if (axis.name == stages_axis) axis.size = 1;
      if (!same_model_axes(own, plan.meshes[s]))
        return invalid(fmt::format("{}{} has other model axes than stage {}, which it has", where, to_string(mesh), s));
    }
    std::int64_t covered = 0;  // it is a union of stages
    for (std::int32_t s = 0; s < plan.stages; ++s)
      if (plan.on_mesh(static_cast<std::int32_t>(m), s))
        for (Rank r : plan.meshes[s].ranks) covered += mesh.find(r) >= 0 ? 1 : mesh.size();
    if (covered != mesh.size()) return invalid(where + "is not made of whole stages");
  }
  return {};
}

Status check_tensor(const Plan& plan, const PlanTensor& t) {
  const std::string where = "tensor '" + t.name + "' ";
  if (!among(t.mesh, plan.meshes.size())) return invalid(where + "is on no mesh of the plan");
  if (t.dtype > DType::sum64 || size_of(t.dtype) == 0)
    return invalid(where + "has a dtype that this version does not know");
  if (!known(t.rate)) return invalid(where + "has a rate that this version does not know");
  std::int64_t bytes = size_of(t.dtype);
  for (auto n : t.shape) {
    if (n < 0 || n > bytes_max) return invalid(fmt::format("{}has a dim of {}", where, n));
    const std::int64_t times = std::max<std::int64_t>(n, 1);
    if (times > bytes_max / bytes) return invalid(where + "is larger than any memory");
    bytes *= times;
  }
  const Mesh& mesh = plan.meshes[t.mesh];
  if (Status s = Layout{t.shape, t.dtype, mesh, t.sbp}.validate(); !s.ok()) return s.in("tensor '" + t.name + "'");
  const int dp = dp_axis(mesh);
  for (std::size_t a = 0; a < t.sbp.size(); ++a) {
    if (t.sbp[a].kind > Sbp::Kind::partial || t.sbp[a].unit > bytes_max)
      return invalid(where + "has an SBP that this version does not know");
    if (t.sbp[a].is_partial() && t.dtype != DType::f32 && t.dtype != DType::f64 && t.dtype != DType::sum64)
      return invalid(where + "is a partial sum of " + to_string(t.dtype) + ", which no exchange adds");
  }
  // On several stages only where each dp coordinate has a place on every one of them.
  const bool runs = mesh.axis_size("dp") == plan.dp_width(plan.stages_on(t.mesh).front());
  const bool gradient = t.gradient_of >= 0, unreduced = gradient && dp >= 0 && t.sbp[dp].is_partial();
  if (t.rate == Rate::microbatch && (!runs || (dp >= 0 && !unreduced && !(t.sbp[dp] == Sbp::S(0)))))
    return invalid(where + "is made once per microbatch, and not on the dp coordinate of the stages that run it");
  if (gradient && !t.shape.empty() && t.shape[0] > gradient_rows_max)
    return invalid(fmt::format("gradient '{}' has {} rows: the norm adds squares of at most {}", t.name, t.shape[0],
                               gradient_rows_max));
  if (!gradient) return t.dtype == DType::sum64 ? invalid(where + "is an exact sum and no gradient") : Status{};
  if (!among(t.gradient_of, plan.params.size()) || dp < 0)
    return invalid("gradient '" + t.name + "' is of no parameter, or on a mesh without a dp axis");
  if (unreduced && (!runs || (t.rate != Rate::step && t.rate != Rate::microbatch)))
    return invalid("gradient '" + t.name + "' is not made at its stage's own rate");
  // A single term may be f32; a sum of several acts is exact; a sum that is rounded is f32.
  const bool proper = unreduced ? t.dtype == DType::sum64 || (t.rate == Rate::microbatch && t.dtype == DType::f32)
                                : t.rate == Rate::step &&
                                      (t.dtype == DType::sum64 || (t.dtype == DType::f32 && !t.sbp[dp].is_split()));
  if (!proper) return invalid("gradient '" + t.name + "' is neither a term, nor an exact sum, nor one that is rounded");
  return {};
}

/// A gather that acts in rounds makes a parameter whole at each place of `to`'s mesh, from shares on a mesh that has
/// all these places.
Status check_gather(const Plan& plan, const PlanExchange& x, const PlanTensor& from, const PlanTensor& to) {
  const std::string where = "exchange '" + x.name + "' ";
  const Mesh &wide = plan.meshes[from.mesh], &narrow = plan.meshes[to.mesh];
  for (Rank r : narrow.ranks)
    if (wide.find(r) < 0)
      return invalid(where + "moves '" + from.name + "' between meshes of which neither has all places");
  for (auto s : plan.stages_on(to.mesh))
    if (plan.dp_width(s) != narrow.axis_size("dp"))
      return invalid(where + "is made in rounds of stages that differ in dp");
  for (std::size_t a = 0; a < from.sbp.size(); ++a)
    if (to.sbp[a].is_partial())
      return invalid(where + "moves '" + from.name + "' to '" + to.name + "', which is a sum over other places");
  return {};
}

/// A reduction adds one parameter's gradients, whatever uses and places made them, to a sum on the parameter's own
/// mesh: each place gets a part of what all places have.
Status check_reduction(const Plan& plan, const PlanExchange& x, const PlanTensor& from, const PlanTensor& to) {
  const std::string where = "exchange '" + x.name + "' ";
  const Mesh &from_mesh = plan.meshes[from.mesh], &to_mesh = plan.meshes[to.mesh];
  if (!plan.is_step_program(x.program))
    return invalid(where + "reduces the gradient '" + from.name + "' outside of the step program");
  if (x.program != plan.params[static_cast<std::size_t>(from.gradient_of)].program)
    return invalid(where + "reduces the gradient '" + from.name + "' of a parameter that another program trains");
  if (to.gradient_of != from.gradient_of || plan.unreduced(to) || to.dtype != DType::sum64)
    return invalid(where + "adds '" + from.name + "' to '" + to.name + "', which is no exact sum of the same gradient");
  for (Rank r : from_mesh.ranks)
    if (to_mesh.find(r) < 0)
      return invalid(where + "adds '" + from.name + "' to '" + to.name +
                     "', and the latter's mesh lacks places of the former's");
  NdSbp have = from.sbp, get = to.sbp;
  for (std::size_t a = 0; a < have.size(); ++a)
    if (have[a].is_partial() || get[a].is_partial()) {
      const bool fits = static_cast<int>(a) == dp_axis(from_mesh) || !(have[a].is_split() || get[a].is_split());
      if (!fits)
        return invalid(where + "adds '" + from.name + "' to '" + to.name + "', which is divided over axis " +
                       from_mesh.axes[a].name);
      have[a] = get[a] = Sbp::B();
    }
  if (!same_layout(have, get, from.shape, from_mesh))
    return invalid(where + "adds '" + from.name + "' to '" + to.name + "', of which its places have other parts");
  return {};
}

Status check_exchange(const Plan& plan, const PlanExchange& x) {
  const std::string where = "exchange '" + x.name + "' ";
  if (x.moves.empty()) return invalid(where + "moves nothing");
  if (!among(x.program, plan.programs.size()) || !known(x.rate))
    return invalid(where + "is of no program, or has no rate");
  if (!sensible(x.seconds) || !(x.latency_s >= 0 && x.latency_s <= x.seconds))
    return invalid(
        fmt::format("{}takes {:f} s, {:f} s of it latency: no time that can be", where, x.seconds, x.latency_s));
  for (const auto& m : x.moves)
    if (!among(m.from, plan.tensors.size()) || !among(m.to, plan.tensors.size()))
      return invalid(where + "moves a tensor that the plan does not have");
  const PlanTensor &from = plan.tensors[x.moves[0].from], &to = plan.tensors[x.moves[0].to];
  const bool reduces = plan.unreduced(from), rounds = x.rate == Rate::round;
  const Rate from_rate = rounds ? reduces ? Rate::microbatch : Rate::step : x.rate,
             to_rate = rounds && reduces ? Rate::step : x.rate;
  for (const auto& m : x.moves) {
    const PlanTensor &f = plan.tensors[m.from], &t = plan.tensors[m.to];
    // Between sums and f32 an exchange converts.
    const bool converts = f.gradient_of >= 0 && t.gradient_of == f.gradient_of &&
                          (f.dtype == DType::sum64 || t.dtype == DType::sum64);
    if (f.shape != t.shape || (f.dtype != t.dtype && !converts))
      return invalid(where + "moves '" + f.name + "' to '" + t.name + "', which is another type");
    // The uses of a parameter may lie on several stages.
    if ((f.mesh != from.mesh && !reduces) || t.mesh != to.mesh || plan.unreduced(f) != reduces || plan.unreduced(t))
      return invalid(where + "moves '" + f.name + "' to '" + t.name + "' and '" + from.name + "' to '" + to.name +
                     "', which do not travel together");
    if (f.rate != from_rate || t.rate != to_rate)
      return invalid("imbalance: " + where + "moves '" + f.name + "' to '" + t.name + "' at another rate than its own");
    if (reduces) TROUPE_TRY(check_reduction(plan, x, f, t));
    else if (rounds) TROUPE_TRY(check_gather(plan, x, f, t));
    if (reduces && rounds && f.mesh != from.mesh)
      return invalid(where + "adds gradients of several stages in rounds of one");
  }
  return {};
}

}  // namespace

Status check_tables(const Plan& plan) {
  TROUPE_TRY(check_programs(plan));
  TROUPE_TRY(check_meshes(plan));
  TROUPE_TRY(plan.costs.validate().in("the plan's costs"));
  for (const auto& t : plan.tensors) TROUPE_TRY(check_tensor(plan, t));
  std::map<std::int32_t, int> added;  // gradient -> exchanges that add it up
  for (const auto& x : plan.exchanges) {
    TROUPE_TRY(check_exchange(plan, x));
    if (plan.reduces(x))
      for (const auto& m : x.moves) ++added[m.from];
  }
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    const PlanTensor& grad = plan.tensors[t];
    if (!plan.unreduced(grad) || plan.meshes[grad.mesh].axis_size("dp") == 1) continue;
    if (const int n = added[static_cast<std::int32_t>(t)]; n != 1)
      return invalid(fmt::format("gradient '{}' is added up by {} exchanges; it needs one", grad.name, n));
  }
  std::set<std::int32_t> tensors;
  for (const auto& p : plan.params) {
    if (!among(p.tensor, plan.tensors.size())) return invalid("parameter '" + p.name + "' has no tensor");
    const PlanTensor& t = plan.tensors[p.tensor];
    if (!tensors.insert(p.tensor).second || t.rate != Rate::step || (t.dtype != DType::f32 && !p.kept) ||
        t.gradient_of >= 0 || p.init > Init::Kind::normal ||
        std::any_of(t.sbp.begin(), t.sbp.end(), [](Sbp sbp) { return sbp.is_partial(); }))
      return invalid("parameter '" + p.name + "' has no tensor '" + t.name +
                     "' of its own that lasts for a step, f32 where AdamW makes it");
    if (p.program != -1 &&
        !(among(p.program, plan.programs.size()) && plan.programs[static_cast<std::size_t>(p.program)].optimizer))
      return invalid("parameter '" + p.name + "' is trained by a program that does not train");
    if (p.kept && (!p.by_ops || p.init != Init::Kind::constant || p.init_value != 0))
      return invalid("parameter '" + p.name + "' is kept by a delay, and AdamW makes it, or it does not begin with 0");
    if (p.terms < 1 || p.terms > terms_max)
      return invalid(
          fmt::format("a step adds {} terms to the gradient of parameter '{}'; 1 to {} are possible: see OpDef::terms",
                      p.terms, p.name, terms_max));
    if (p.share == -1) {
      if (p.stored_as_share) return invalid("parameter '" + p.name + "' is stored as shares that it does not have");
      continue;
    }
    if (!among(p.share, plan.tensors.size())) return invalid("parameter '" + p.name + "' has no tensor of shares");
    PlanTensor share = plan.tensors[p.share];
    if (const int dp = dp_axis(plan.meshes[t.mesh]); share.mesh == t.mesh && dp >= 0 && share.sbp[dp] == Sbp::S(0))
      share.sbp[dp] = Sbp::B();
    share.name = t.name;
    if (!(share == t)) return invalid("the shares of parameter '" + p.name + "' are not its rows divided over dp");
  }
  return {};
}

}  // namespace troupe::runtime
