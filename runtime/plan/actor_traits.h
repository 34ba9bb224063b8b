// What all actors of a kind have in common, in one row per kind, which the planner, the verifier, the texts and the
// worker read. They test for a kind by name only for what no other kind has: the moments and the commit of an update,
// the gradients of a norm, the slot of a snapshot, the time of an act (planner/finish.cpp). A new kind is a row here,
// its time there if it has one, a check in verify_role.cpp, and a factory in worker_actors.cpp (both tables are as long
// as this one, or the build fails).
#pragma once

#include <array>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

struct ActorTraits {
  /// The programs that have actors of the kind: any but "digest", "snapshot" and "copy"; a step program; one of those
  /// three, which have no actors of other kinds.
  enum class Home : std::uint8_t { any, step, digest, snapshot, copy };
  /// What its actors do with parameters: nothing; read gradients of them (and update them); read a version of them.
  enum class Params : std::uint8_t { none, gradients, version };
  enum class Ops : std::uint8_t { none, one, any };

  PlanActor::Kind kind;
  const char* name;
  const char* stream;  ///< see PlanActor::stream
  Home home = Home::any;
  Params params = Params::none;
  Ops ops = Ops::none;
  bool once_per_step = false;  ///< else at the rate of its data
  bool rounds = false;         ///< may act in rounds
  bool starts = false;         ///< may have no input: messages of other places say of which step it acts
  bool exchanges = false;      ///< may have an exchange (PlanActor::exchange)
  /// false: the next step waits for what it writes, so the end of the step does not
  bool closes_step = true;
  /// its node in plan_dot: Graphviz attributes; of a forward pass where passes differ
  const char* dot = "";
  const char* dot_backward = "";  ///< "": as `dot`
};

inline constexpr std::size_t actor_kinds = 9;

/// REQUIRES: known(kind).
const ActorTraits& traits(PlanActor::Kind kind);
inline bool known(PlanActor::Kind kind) { return static_cast<std::size_t>(kind) < actor_kinds; }

}  // namespace troupe::runtime
