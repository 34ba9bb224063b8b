// What the dp coordinates of a stage do in rounds: which channels go with it, and the sums of what arrives.
#include <algorithm>

#include "runtime/verify_parts.h"

namespace troupe::runtime {

namespace {

Status refuse(const PlanRole& role, const std::string& what) { return invalid("stage " + std::to_string(role.stage) + ": " + what); }

}  // namespace

Status check_round_channel(const Plan& plan, const PlanRole& role, const PlanChannel& c) {
  using Kind = PlanChannel::Kind;
  auto end = [&](std::int32_t actor, Rate rate) {
    const PlanActor& a = role.actors[actor];
    return a.kind == PlanActor::Kind::exchange && a.rate == rate && among(a.exchange, plan.exchanges.size());
  };
  auto all = [&](PlanActor::Kind kind) {
    return !c.readers.empty() &&
           std::all_of(c.readers.begin(), c.readers.end(), [&](const auto& r) { return role.actors[r.actor].kind == kind; });
  };
  const bool from_sum = c.writer >= 0 && role.actors[c.writer].kind == PlanActor::Kind::sum;
  if (from_sum && c.kind != Kind::sum && c.kind != Kind::turn)
    return refuse(role, "channel '" + c.name + "' is written by '" + role.actors[c.writer].name + "' and is no sum");
  bool fits = true;
  switch (c.kind) {
    case Kind::part: fits = c.rate == Rate::lane_round && end(c.writer, c.rate) && all(PlanActor::Kind::sum) && c.readers.size() == 1; break;
    case Kind::sum: fits = c.rate == Rate::step && from_sum && c.slots == 1; break;
    case Kind::gathered: fits = c.rate == Rate::round && end(c.writer, c.rate) && all(PlanActor::Kind::segment); break;
    case Kind::turn: fits = c.tensors.empty() && c.bytes == 0 && !c.readers.empty(); break;
    case Kind::gradient:
      if (c.rate != Rate::lane) break;
      fits = !c.readers.empty();
      for (const auto& r : c.readers) fits = fits && end(r.actor, Rate::lane_round);
      break;
    default: fits = c.rate == Rate::step || c.rate == Rate::microbatch;
  }
  if (fits) return {};
  return refuse(role, "channel '" + c.name + "' is of kind " + to_string(c.kind) + ", and its rate, writer or readers are of another");
}

Status check_sum(const Plan& plan, const PlanRole& role, const PlanActor& a) {
  auto proper = [&](const std::vector<std::int32_t>& ports, PlanChannel::Kind kind) {
    for (std::size_t p = 0; p < ports.size(); ++p)
      if (role.channels[ports[p]].kind != (p == 0 ? kind : PlanChannel::Kind::turn)) return false;
    return !ports.empty();
  };
  if (!proper(a.in, PlanChannel::Kind::part) || !proper(a.out, PlanChannel::Kind::sum) || !a.params.empty())
    return refuse(role, "actor '" + a.name + "' does not add up the parts of one channel into one other");
  const PlanChannel &parts = role.channels[a.in[0]], &sums = role.channels[a.out[0]];
  bool same = parts.bytes == sums.bytes && parts.offsets == sums.offsets && parts.tensors.size() == sums.tensors.size();
  for (std::size_t i = 0; same && i < parts.tensors.size(); ++i) {
    const PlanTensor &part = plan.tensors[parts.tensors[i]], &sum = plan.tensors[sums.tensors[i]];
    same = part.shape == sum.shape && part.dtype == DType::f32 && sum.dtype == DType::f32 && part.mesh == sum.mesh && part.sbp == sum.sbp;
  }
  return same ? Status{} : refuse(role, "actor '" + a.name + "' adds up tensors that do not lie alike");
}

}  // namespace troupe::runtime
