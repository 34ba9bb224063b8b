// Channels that only some actors write or read: sums of gradients, and what the dp coordinates of a stage do in rounds
// (the k-th acts of all of them together: MicrobatchOwners).
#include <fmt/format.h>

#include <algorithm>

#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

Status refuse(const PlanRole& role, const std::string& what) {
  return invalid(fmt::format("stage {}: {}", role.stage, what));
}

}  // namespace

Status check_round_channel(const Plan& plan, const PlanRole& role, const PlanChannel& c) {
  using Kind = PlanChannel::Kind;
  const auto end = [&](std::int32_t actor, Rate rate, bool reduces) {
    const PlanActor& a = role.actors[actor];
    return a.kind == PlanActor::Kind::exchange && a.rate == rate && among(a.exchange, plan.exchanges.size()) &&
           plan.reduces(plan.exchanges[a.exchange]) == reduces;
  };
  bool fits = true;
  switch (c.kind) {
    case Kind::reduced: {
      const PlanActor& w = role.actors[c.writer];
      fits = c.rate == Rate::step && c.slots == 1 && w.kind == PlanActor::Kind::exchange &&
             (w.rate == Rate::step || end(c.writer, Rate::round, true));
      break;
    }
    case Kind::rounded: fits = c.rate == Rate::step && c.slots == 1 && end(c.writer, Rate::step, false); break;
    case Kind::gathered:
      fits = c.rate == Rate::round && end(c.writer, Rate::round, false) && !c.readers.empty();
      for (const auto& r : c.readers)
        fits = fits && (role.actors[r.actor].kind == PlanActor::Kind::segment ||
                        role.actors[r.actor].kind == PlanActor::Kind::user);
      break;
    case Kind::turn: fits = c.tensors.empty() && c.bytes == 0 && !c.readers.empty(); break;
    case Kind::gradient:
      if (c.rate == Rate::step) break;
      fits = !c.readers.empty();
      for (const auto& r : c.readers) fits = fits && end(r.actor, Rate::round, true);
      break;
    default: fits = c.rate == Rate::step || c.rate == Rate::microbatch;
  }
  if (fits) return {};
  return refuse(role, "channel '" + c.name + "' is of kind " + to_string(c.kind) +
                          ", and its rate, writer or readers are of another");
}

}  // namespace troupe::runtime
