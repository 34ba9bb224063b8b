// What the parts of the verifier share. Internal to verify*.cpp.
#pragma once

#include <cmath>
#include <map>

#include "runtime/verify.h"

namespace troupe::runtime {

/// Far above any machine, far below overflow.
inline constexpr std::int64_t bytes_max = std::int64_t{1} << 46, count_max = 1 << 20;

inline bool among(std::int32_t index, std::size_t size) { return index >= 0 && static_cast<std::size_t>(index) < size; }
inline bool known(Rate rate) { return rate <= Rate::round; }
inline bool sensible(double seconds) { return std::isfinite(seconds) && seconds >= 0 && seconds < 1e6; }

/// Whether the places of a stage are among those of a mesh.
inline bool holds(const Plan& plan, std::int32_t mesh, std::int32_t stage) {
  if (mesh < plan.stages) return mesh == stage;
  return plan.meshes[mesh].find(plan.meshes[stage].ranks[0]) >= 0;
}

/// Programs, meshes, tensors, exchanges and parameters, without the roles.
Status check_tables(const Plan& plan);

/// The parameters that a stage trains, and the gradients that it adds up for each: one per use, in graph order.
using Trained = std::map<std::int32_t, std::vector<std::int32_t>>;

/// A channel that only acts in rounds write or read: kind, rate, writer and readers go together. All know each other.
Status check_round_channel(const Plan& plan, const PlanRole& role, const PlanChannel& channel);
/// A sum adds up what one exchange brings, tensor by tensor, where it lies.
Status check_sum(const Plan& plan, const PlanRole& role, const PlanActor& actor);

/// Rings and their turns: channels that share memory never hold it at the same time. The actors and channels of the
/// stage know each other.
Status check_rings(const Plan& plan, std::int32_t stage);

/// The actors and channels of one stage and their memory. The plan has passed check_tables.
Expected<Trained> check_role(const Plan& plan, std::int32_t stage);

}  // namespace troupe::runtime
