#include "runtime/plan/actor_traits.h"

#include "devices/base/check.h"

namespace troupe::runtime {

namespace {

using Kind = PlanActor::Kind;
using Params = ActorTraits::Params;
using Ops = ActorTraits::Ops;

constexpr std::array<ActorTraits, actor_kinds> rows{{
    {.kind = Kind::segment,
     .name = "segment",
     .stream = "compute",
     .ops = Ops::any,
     .dot = "shape=box, fillcolor=\"#bcd9f2\"",
     .dot_backward = "shape=box, fillcolor=\"#f7c6b4\""},
    {.kind = Kind::user,
     .name = "user",
     .stream = "host",
     .ops = Ops::one,
     .dot = "shape=component, fillcolor=\"#f6e3a1\""},
    {.kind = Kind::exchange,
     .name = "exchange",
     .stream = "comm",
     .rounds = true,
     .starts = true,
     .exchanges = true,
     .dot = "shape=ellipse, fillcolor=\"#d9c8ef\""},
    {.kind = Kind::norm,
     .name = "norm",
     .stream = "compute",
     .home = ActorTraits::Home::step,
     .params = Params::gradients,
     .once_per_step = true,
     .dot = "shape=diamond, fillcolor=\"#e4e4e4\""},
    {.kind = Kind::update,
     .name = "update",
     .stream = "compute",
     .home = ActorTraits::Home::step,
     .params = Params::gradients,
     .ops = Ops::any,
     .once_per_step = true,
     .exchanges = true,
     .closes_step = false,
     .dot = "shape=house, fillcolor=\"#bfe3c0\""},
    {.kind = Kind::digest,
     .name = "digest",
     .stream = "compute",
     .home = ActorTraits::Home::digest,
     .params = Params::version,
     .once_per_step = true,
     .dot = "shape=note, fillcolor=\"#e4e4e4\""},
    {.kind = Kind::snapshot,
     .name = "snapshot",
     .stream = "snapshot",
     .home = ActorTraits::Home::snapshot,
     .params = Params::version,
     .once_per_step = true,
     .dot = "shape=cylinder, fillcolor=\"#e4e4e4\""},
    {.kind = Kind::writer,
     .name = "writer",
     .stream = "disk",
     .home = ActorTraits::Home::snapshot,
     .once_per_step = true,
     .dot = "shape=cylinder, fillcolor=\"#e4e4e4\""},
    {.kind = Kind::copy,
     .name = "copy",
     .stream = "snapshot",
     .home = ActorTraits::Home::copy,
     .params = Params::version,
     .once_per_step = true,
     .dot = "shape=cylinder, fillcolor=\"#bfe3c0\""},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (static_cast<std::size_t>(rows[i].kind) != i) return false;
  return true;
}
static_assert(in_order(), "row i is of kind i");

}  // namespace

const ActorTraits& traits(PlanActor::Kind kind) {
  ASSERT(known(kind), static_cast<int>(kind));
  return rows[static_cast<std::size_t>(kind)];
}

const char* to_string(PlanActor::Kind kind) { return known(kind) ? traits(kind).name : "?"; }

}  // namespace troupe::runtime
