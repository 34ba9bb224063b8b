// A place is one device of the job with the actors on it. The three passes that make a rank's LocalPlan, in this order:
// actors and channels, routes, memory. Internal to actors_and_channels.cpp, routes.cpp, memory.cpp and local_plan.cpp.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "placement/boxing.h"
#include "runtime/place/local_plan.h"

namespace troupe::runtime {

/// What the passes share. REQUIRES: LocalPlan::rank, stage and dp_index are set.
class LocalPass {
 protected:
  LocalPass(const Plan& plan, LocalPlan& local)
      : plan_(plan), local_(local), rank_(local.rank), role_(&plan.roles[local.stage]) {}
  const PlanActor& plan_actor(const LocalActor& a) const { return role_->actors[a.actor]; }
  /// The owners that an actor's acts follow.
  MicrobatchOwners owners_of(const PlanActor& a) const {
    return a.rate == Rate::round ? plan_.owners_of(plan_.exchanges[a.exchange])
                                 : plan_.owners_of(a.program, local_.stage);
  }
  std::int32_t acts_of(const PlanActor& a) const { return owners_of(a).acts(a.rate, local_.dp_index); }

  const Plan& plan_;
  LocalPlan& local_;
  const Rank rank_;
  const PlanRole* const role_;
};

/// Which actors and channels the place has, and every actor's ports, microbatches and turns.
class LocalActors : LocalPass {
 public:
  LocalActors(const Plan& plan, LocalPlan& local) : LocalPass(plan, local) {}
  void run();

 private:
  void choose_actors();
  void make_channels();
  void make_specs();
  void make_turns();
  std::vector<actors::Phase> cycle(const PlanActor& a, const PlanChannel& c) const;

  std::vector<std::vector<std::int32_t>> microbatches_;  // per program
  std::vector<std::int32_t> actor_at_, channel_at_;      // role -> local
};

/// What the place's exchanges send, receive and add. Error: a boxing that cannot be.
class LocalRoutes : LocalPass {
 public:
  LocalRoutes(const Plan& plan, LocalPlan& local) : LocalPass(plan, local) {}
  Status run();

 private:
  struct Position {  // of a tensor in this actor's ports
    std::int32_t port = -1, index = 0;
  };
  Position find(const std::vector<std::int32_t>& channels, std::int32_t tensor) const;
  Status make_routes(LocalActor& l);
  /// A place that only receives, and gets no value (its parts are empty, or zeros: the terms of a sum that other places
  /// have), still gets an empty message, from which it learns that an act takes place, and of which step. Adds to
  /// `boxings` such messages that this place sends or gets.
  void tell_the_empty(const PlanExchange& x, std::int64_t from_dp, std::int64_t to_dp,
                      std::vector<BoxingPlan>& boxings) const;
  Expected<BoxingPlan> own_boxing(Layout from, const Layout& to) const;
  /// Where an exchange finds the exponent of a gradient's exact sum: in the slot of its parameter.
  void find_exponent(const PlanActor& a, std::int32_t gradient_of, comm::MoveEnds& ends) const;
  /// The route of a reduction: the terms that this place brings, and its part of the sums. In a round only the dp
  /// coordinates that take part bring terms.
  Status add_reduction(LocalActor& l, const PlanActor& a, const PlanExchange& x,
                       const std::function<bool(std::int64_t)>& takes_part);
  Status add_route(LocalActor& l, const PlanActor& a, const PlanExchange& x, std::int64_t from_dp, std::int64_t to_dp);
  /// Rounds in which the same dp coordinates take part are alike.
  Status make_round_routes(LocalActor& l, const PlanActor& a, const PlanExchange& x);
  /// Parameters whole, for the places that run a microbatch in this round.
  Status add_gather(LocalActor& l, const PlanActor& a, const PlanExchange& x, std::int32_t round);
  void keep_route(LocalActor& l, const PlanActor& a, comm::Route route);
};

/// Offsets of everything in the place's pool, arena and copies, and their sizes by purpose.
class LocalMemory : LocalPass {
 public:
  LocalMemory(const Plan& plan, LocalPlan& local) : LocalPass(plan, local) {}
  void run();

 private:
  std::int64_t take(std::int64_t bytes, std::int64_t alignment = tensor_alignment);
  void place_state();
  void place_copies();
  void place_channels();
  void place_rings();
  void place_staging();
  void find_device_channels();
  /// Adds a tenant of `bytes` bytes to a shared area, beside the tenants of this shift so far. place_areas() sets
  /// `offsets`, which count in the pool.
  void add_tenant(std::int32_t area, std::int32_t shift, std::int64_t bytes, std::vector<std::int64_t*> offsets);
  void place_areas();

  struct Area {
    std::map<std::int32_t, std::int64_t> shifts;  // -> bytes so far
    // bytes into the area, offsets to set
    std::vector<std::pair<std::int64_t, std::vector<std::int64_t*>>> tenants;
  };
  std::map<std::int32_t, Area> areas_;
  std::int64_t at_ = 0;
};

}  // namespace troupe::runtime
