// What the parts of the verifier share. Internal to verify*.cpp.
#pragma once

#include <cmath>
#include <map>

#include "runtime/plan/actor_traits.h"
#include "runtime/verify/verify.h"

namespace troupe::runtime {

inline bool among(std::int32_t index, std::size_t size) { return index >= 0 && static_cast<std::size_t>(index) < size; }
inline bool known(Rate rate) { return rate <= Rate::round; }
inline bool sensible(double seconds) { return std::isfinite(seconds) && seconds >= 0 && seconds < 1e6; }

/// Checks programs, meshes, tensors, exchanges and parameters, without the roles.
Status check_tables(const Plan& plan);

/// The parameters that a stage trains, and the sums of gradients that its norm reads for each: one of all uses, or one
/// per use.
using Trained = std::map<std::int32_t, std::vector<std::int32_t>>;

/// One stage of a plan, as the checks of its actors and channels see it.
class StageView {
 protected:
  StageView(const Plan& plan, std::int32_t stage)
      : plan_(plan), stage_(stage), role_(plan.roles[stage]), where_("stage " + std::to_string(stage) + ": ") {}

  Status refuse(const std::string& what) const { return invalid(where_ + what); }
  Status refuse(const PlanChannel& c, const std::string& what) const {
    return refuse("channel '" + c.name + "' " + what);
  }
  const PlanChannel& in(const PlanActor& a, std::int32_t port) const { return role_.channels[a.in[port]]; }
  const PlanChannel& out(const PlanActor& a, std::int32_t port) const { return role_.channels[a.out[port]]; }
  /// Bytes of a tensor at position 0, which has the largest part.
  std::int64_t local_bytes(std::int32_t tensor) const { return plan_.layout(tensor, 0).bytes_at(0); }
  /// Whether the index names a tensor, and the stage has a part of it.
  bool here(std::int32_t tensor) const {
    return among(tensor, plan_.tensors.size()) && plan_.on_mesh(plan_.tensors[tensor].mesh, stage_);
  }

  const Plan& plan_;
  const std::int32_t stage_;
  const PlanRole& role_;
  const std::string where_;
};

/// The channels of one stage. REQUIRES: its actors have passed RoleCheck::check_basics.
class ChannelCheck : private StageView {
 public:
  ChannelCheck(const Plan& plan, std::int32_t stage) : StageView(plan, stage) {}
  /// A channel and the actors at its ends name each other, and tokens are written and read at rates that balance.
  Status check_ends(std::int32_t id) const;
  /// The writer, readers, rate and payload of a channel are those of its kind. REQUIRES: check_ends of all channels.
  Status check_kind(const PlanChannel& c) const;
  /// Every tensor of a channel has room of its own in a slot. REQUIRES: check_kind.
  Status check_memory(const PlanChannel& c);
  /// Of all slots of the channels that check_memory has seen.
  std::int64_t bytes() const { return bytes_; }

 private:
  static bool goes_with(Rate actor, Rate channel);
  Status check_delay(const PlanChannel& c) const;
  Status check_kept(const PlanChannel& c) const;
  Status check_snapshot(const PlanChannel& c) const;
  Status check_versions(const PlanChannel& c) const;
  std::ptrdiff_t count_makers(const PlanChannel& feed) const;
  bool rounds_sums(const PlanActor& a) const;
  PlanChannel::Kind kind_of(const PlanTensor& t, PlanChannel::Kind have) const;

  std::int64_t bytes_ = 0;
};

/// The optimizer of one stage, actor by actor. REQUIRES: the channels have passed ChannelCheck.
class OptimizerCheck : private StageView {
 public:
  OptimizerCheck(const Plan& plan, std::int32_t stage) : StageView(plan, stage) {}
  /// Checks an actor that has to do with parameters (ActorTraits::params).
  Status check(const PlanActor& a);
  /// Each parameter of which the stage has a part lies in one channel, with one snapshot where the plan takes
  /// checkpoints, and with one norm and one update or, where no loss depends on it, neither. REQUIRES: check() of all
  /// actors that have to do with parameters.
  Status check_params() const;
  const Trained& trained() const { return norms_; }

 private:
  Status check_gather(const PlanActor& a) const;
  Status check_exponents(const PlanActor& a) const;
  Status check_gradients(const PlanActor& a, const PlanParamRef& ref);
  bool same_parts(std::int32_t a, std::int32_t b) const;
  int references(PlanActor::Kind kind, std::int32_t param) const;

  std::map<std::pair<PlanActor::Kind, std::int32_t>, int> refs_;  // (kind, parameter) -> references
  Trained norms_;
};

/// Checks a channel of gradients or of acts in rounds: kind, rate, writer and readers go together. REQUIRES: channel,
/// writer and readers name each other, and the plan's exchanges have passed check_tables.
Status check_round_channel(const Plan& plan, const PlanRole& role, const PlanChannel& channel);

/// Checks which parameters the ops of an update make, and that none reads what is overwritten. REQUIRES: its operands
/// lie where they say.
Status check_update_ops(const Plan& plan, std::int32_t stage, const PlanActor& update);

/// Checks what a segment's ops keep from act to act. Adds its bytes to `bytes`, those of the stage so far.
Status check_state(const Plan& plan, std::int32_t stage, const PlanActor& actor, std::int64_t& bytes);

/// Checks rings and their turns: channels that share memory never hold it at the same time. REQUIRES: the actors and
/// channels of the stage name each other.
Status check_rings(const Plan& plan, std::int32_t stage);

/// Checks shared areas: tenants of different shifts are never live at the same time (runtime/place/lifetimes.h).
/// REQUIRES: as check_rings; each actor that closes its step says so.
Status check_areas(const Plan& plan, std::int32_t stage);

/// Checks the actors and channels of one stage and their memory. Returns the parameters that the stage trains.
/// REQUIRES: the plan has passed check_tables.
Expected<Trained> check_role(const Plan& plan, std::int32_t stage);

}  // namespace troupe::runtime
