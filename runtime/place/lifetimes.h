// When memory of a place is in use, as the edges of its role say: whether two tenants can ever be live at the same
// time. A tenant is a channel, all its slots together, or the staging memory of exchanges that take turns in it. It is
// live from the begin of the act that fills a slot to the end of the last act that reads it.
//
// An edge is a channel, its ack, or the commit, for which the session waits until every actor that closes the step has
// ended it at every place (SE-1 one commit). The actor at the head of an edge acts after the actor at its tail has
// ended, whatever the timing: within the compute stream a token passes when an act starts, and the stream's order does
// the rest (PA-2 notification).
//
//   LT-1  (acts) among actors that act once per microbatch, an edge with n tokens puts act k of its tail before act
//         k + n of its head, and a path adds its tokens up. Two tenants of one slot take turns if the paths from the
//         readers of each to the writer of the other have one token in all: it goes round with the memory. (With none
//         the actors on the paths never act: the token game refuses such a plan.)
//   LT-2  (steps) an edge that carries one token a step, with n tokens, puts all acts of step k of its tail before all
//         acts of step k + n of its head; so does a path of such edges and of edges of acts without tokens. Two tenants
//         take turns if the paths there and back have one token in all: each has its part of every step.
//   LT-3  (programs) no edge leads from one program to another that says when its next run begins: which programs run
//         is decided version by version. Tenants of two programs never take turns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// What lies in memory, and which actors begin and end its use.
struct Tenant {
  std::string name;  ///< "channel 'x'", "the staging memory of 'y'": for people
  std::int32_t program = 0;
  std::vector<std::int32_t> begins, ends;  ///< actors of the role
  bool one_act = false;                    ///< LT-1 applies: one slot, filled and read once per microbatch
};

/// The edges of one role. REQUIRES: its actors and channels name each other; the plan outlives this object.
class Lifetimes {
 public:
  Lifetimes(const Plan& plan, const PlanRole& role);

  /// A channel as a tenant; none for one whose tokens outlive a step, wait for other programs, or lie in a ring.
  std::optional<Tenant> channel(std::int32_t id) const;
  /// The staging memory that these exchanges share; none where one of them acts more than once a step.
  std::optional<Tenant> staging(const std::vector<std::int32_t>& actors) const;
  /// Whether LT-1 or LT-2 proves that the two are never live at the same time.
  bool exclude(const Tenant& a, const Tenant& b) const;
  /// Tokens on the path of acts from one actor to another that has fewest (LT-1); `apart` where that is more than 1.
  std::int32_t tokens_between(std::int32_t from, std::int32_t to) const {
    return acts_from(from)[static_cast<std::size_t>(to)];
  }
  static constexpr std::int32_t apart = 2;

 private:
  struct Edge {
    std::int32_t to = 0, tokens = 0;
  };
  using Tokens = std::vector<std::uint8_t>;  // by actor
  const Tokens& acts_from(std::int32_t actor) const;
  const Tokens& steps_from(std::int32_t actor) const;
  template <class From>
  std::int32_t most(const std::vector<std::int32_t>& from, const std::vector<std::int32_t>& to, From&& tokens) const;

  const Plan& plan_;
  const PlanRole& role_;
  std::vector<std::vector<Edge>> act_edges_, step_edges_;  // by actor; the last is the commit
  mutable std::vector<Tokens> acts_, steps_;               // by actor, once asked for
};

/// The staging memories of a role: the exchanges that use each, all that take turns in one buffer of a ring together.
std::vector<std::vector<std::int32_t>> staging_users(const PlanRole& role);

}  // namespace troupe::runtime
