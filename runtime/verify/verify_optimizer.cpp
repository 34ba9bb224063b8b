// Norms, updates and digests: whole gradients in the parameter's own parts, each parameter taken once.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

Status OptimizerCheck::check(const PlanActor& a) {
  using Kind = PlanActor::Kind;
  const std::string name = std::string(to_string(a.kind)) + " actor '" + a.name + "' ";
  const auto commits = std::count_if(a.in.begin(), a.in.end(),
                                     [&](auto id) { return role_.channels[id].kind == PlanChannel::Kind::commit; });
  if (commits != (a.kind == Kind::update ? 1 : 0)) return refuse(fmt::format("{}has {} commit ports", name, commits));
  const bool reads = traits(a.kind).params == ActorTraits::Params::version;
  const auto turns = std::count_if(a.out.begin(), a.out.end(),
                                   [&](auto id) { return role_.channels[id].kind == PlanChannel::Kind::turn; });
  const auto written = static_cast<std::ptrdiff_t>(a.out.size()) - turns;
  if (written != (a.kind == Kind::update || a.kind == Kind::snapshot ? 1 : 0) ||
      (written == 1 && role_.channels[a.out[0]].kind == PlanChannel::Kind::turn))
    return refuse(fmt::format("{}writes {} channels, or a turn before them", name, written));
  if (a.gathers()) TROUPE_TRY(check_gather(a));
  if (reads && (a.in.size() != 1 || in(a, 0).kind != PlanChannel::Kind::parameter))
    return refuse(name + "does not read one channel of parameters");
  if (!a.params.empty() && !reads) TROUPE_TRY(check_exponents(a));
  for (const auto& ref : a.params) {
    if (!among(ref.param, plan_.params.size()) || !here(plan_.params[ref.param].tensor))
      return refuse("'" + a.name + "' has a parameter that is nowhere");
    const PlanParam& p = plan_.params[ref.param];
    ++refs_[{a.kind, ref.param}];
    if (!reads && p.program != a.program)
      return refuse(name + "is of program '" + plan_.programs[a.program].name + "', which does not train parameter '" +
                    p.name + "'");
    if (a.kind != Kind::norm) {
      const auto& tensors = (a.kind == Kind::update ? role_.channels[a.out[0]] : in(a, 0)).tensors;
      if (!among(ref.index, tensors.size()) || tensors[ref.index] != p.stored())
        return refuse("'" + a.name + "' does not find parameter '" + p.name + "' in its channel");
    }
    // What only updates read need not be gathered, and lies beside what is.
    const bool whole = p.share >= 0 && !p.stored_as_share;
    if (a.kind == Kind::update && a.gathers() != whole && (whole || !p.by_ops))
      return refuse(name + (a.gathers() ? "gathers" : "does not gather") + " the shares of parameter '" + p.name + "'");
    if (p.by_ops && a.kind == Kind::update && ref.grads.empty()) continue;
    if (ref.grads.empty() != reads) return refuse("'" + a.name + "' has no gradient of parameter '" + p.name + "'");
    TROUPE_TRY(check_gradients(a, ref));
  }
  return {};
}

/// An update of shares gathers the shares of its own parameters, all of these and no others, into its output.
Status OptimizerCheck::check_gather(const PlanActor& a) const {
  if (!among(a.exchange, plan_.exchanges.size())) return refuse("actor '" + a.name + "' has no exchange");
  const PlanExchange& x = plan_.exchanges[a.exchange];
  std::set<std::pair<std::int32_t, std::int32_t>> own, moved;
  for (const auto& ref : a.params)
    if (among(ref.param, plan_.params.size()) && !plan_.params[ref.param].stored_as_share &&
        !(plan_.params[ref.param].by_ops && plan_.params[ref.param].share < 0))
      own.insert({plan_.params[ref.param].share, plan_.params[ref.param].tensor});
  for (const auto& m : x.moves) moved.insert({m.from, m.to});
  if (x.rate != a.rate || x.program != a.program || own.empty() || own != moved || moved.size() != x.moves.size())
    return refuse("actor '" + a.name + "' does not gather the shares of its parameters with exchange '" + x.name + "'");
  return {};
}

/// Every place of the stage has the same part of two tensors of one shape.
bool OptimizerCheck::same_parts(std::int32_t a, std::int32_t b) const {
  const PlanTensor &x = plan_.tensors[a], &y = plan_.tensors[b];
  if (x.mesh == y.mesh && x.rate == y.rate && x.shape == y.shape && x.sbp == y.sbp) return true;
  const auto& ranks = plan_.meshes[stage_].ranks;
  return std::all_of(ranks.begin(), ranks.end(), [&](Rank r) { return plan_.extent(a, r) == plan_.extent(b, r); });
}

/// The gradients are whole sums, and all uses have the same parts. Those of an update are the parts of the parameter;
/// check_trained compares the gradients of norms over the stages.
Status OptimizerCheck::check_gradients(const PlanActor& a, const PlanParamRef& ref) {
  const PlanParam& p = plan_.params[ref.param];
  std::int32_t first = -1;
  for (const auto& use : ref.grads) {
    const bool placed = among(use.port, a.in.size()) && among(use.index, in(a, use.port).tensors.size());
    if (!placed) return refuse("'" + a.name + "' has a gradient of parameter '" + p.name + "' that is nowhere");
    if (std::count(ref.grads.begin(), ref.grads.end(), use) > 1)
      return refuse("'" + a.name + "' adds '" + plan_.tensors[in(a, use.port).tensors[use.index]].name +
                    "' to the gradient of parameter '" + p.name + "' twice");
    const std::int32_t tensor = in(a, use.port).tensors[use.index];
    if (first < 0) first = tensor;
    const PlanTensor& g = plan_.tensors[tensor];
    // Sums over all places; where dp has one coordinate an op makes them whole.
    const bool whole = g.mesh == plan_.tensors[p.tensor].mesh &&
                       (!plan_.unreduced(g) || plan_.meshes[g.mesh].axis_size("dp") == 1);
    bool sums = true;  // on all axes but dp, which `whole` covers
    for (std::size_t axis = 0; axis < g.sbp.size(); ++axis)
      sums &= !g.sbp[axis].is_partial() || static_cast<int>(axis) == dp_axis(plan_.meshes[g.mesh]) ||
              plan_.meshes[g.mesh].axes[axis].size == 1;
    const bool rounded = g.dtype == DType::f32 && a.kind == PlanActor::Kind::update && ref.grads.size() == 1;
    bool fits = g.gradient_of == ref.param && (g.dtype == DType::sum64 || rounded) && g.rate == Rate::step && whole &&
                sums;
    fits = fits && same_parts(tensor, a.kind != PlanActor::Kind::update ? first : p.share >= 0 ? p.share : p.tensor);
    if (!fits) return refuse("'" + a.name + "' takes '" + g.name + "' for a gradient of parameter '" + p.name + "'");
    if (a.kind != PlanActor::Kind::norm) continue;
    // NU-2 (topologies): a row is summed in one place, whatever dp is.
    const int dp = dp_axis(plan_.meshes[g.mesh]);
    if (dp >= 0 && plan_.meshes[g.mesh].axes[dp].size > 1 && g.sbp[dp].is_split() && g.sbp[dp].dim != 0)
      return refuse(
          fmt::format("'{}' takes '{}', whose rows are split along dim {} over dp", a.name, g.name, g.sbp[dp].dim));
    norms_[ref.param].push_back(tensor);
  }
  return {};
}

/// The last tensor of a slot of trained parameters has an exponent for each tensor before it.
Status OptimizerCheck::check_exponents(const PlanActor& a) const {
  const PlanChannel* params = a.kind == PlanActor::Kind::update ? &role_.channels[a.out[0]] : nullptr;
  for (auto id : a.in)
    if (const PlanChannel& c = role_.channels[id]; c.kind == PlanChannel::Kind::parameter && &c != params)
      params = params ? nullptr : &c;
  if (params && !params->tensors.empty()) {
    const PlanTensor& t = plan_.tensors[params->tensors.back()];
    const bool everywhere = std::all_of(t.sbp.begin(), t.sbp.end(), [](Sbp sbp) { return sbp.is_broadcast(); });
    if (t.dtype == DType::i32 && everywhere &&
        elements(t.shape) == static_cast<std::int64_t>(params->tensors.size()) - 1)
      return {};
  }
  return refuse("'" + a.name + "' does not find the exponents of its gradients' sums in one slot of parameters");
}

Status OptimizerCheck::check_params() const {
  for (std::size_t p = 0; p < plan_.params.size(); ++p) {
    const auto& param = plan_.params[p];
    std::int64_t homes = 0;
    for (const auto& c : role_.channels)
      if (c.kind == PlanChannel::Kind::parameter)
        homes += std::count(c.tensors.begin(), c.tensors.end(), param.stored());
    if (homes != (here(param.tensor) ? 1 : 0))
      return refuse(fmt::format("parameter '{}' lies in {} channels", param.name, homes));
    const auto index = static_cast<std::int32_t>(p);
    const int norms = references(PlanActor::Kind::norm, index), updates = references(PlanActor::Kind::update, index);
    const auto each = [&](PlanActor::Kind kind, bool taken, const char* what) {
      const int made = references(kind, index), wanted = homes > 0 && taken ? 1 : 0;
      if (made == wanted) return Status();
      return refuse(fmt::format("parameter '{}' has {} {}; it needs {}", param.name, made, what, wanted));
    };
    TROUPE_TRY(each(PlanActor::Kind::snapshot, plan_.program("snapshot") >= 0, "snapshots"));
    TROUPE_TRY(each(PlanActor::Kind::copy, plan_.keeps_copies(), "copies"));
    if (param.by_ops && updates == 1 && norms == 0) continue;  // and no loss
    if (norms != updates || norms > 1)                         // none: no loss depends on it
      return refuse(fmt::format("parameter '{}' has {} norms and {} updates", param.name, norms, updates));
  }
  return {};
}

int OptimizerCheck::references(PlanActor::Kind kind, std::int32_t param) const {
  const auto it = refs_.find({kind, param});
  return it == refs_.end() ? 0 : it->second;
}

}  // namespace troupe::runtime
