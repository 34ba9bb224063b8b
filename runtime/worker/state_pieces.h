// StatePieces: where a version of parameters and moments lies in memory that a place has kept.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "placement/extent.h"
#include "runtime/place/local_plan.h"
#include "runtime/place/state_part.h"

namespace troupe::runtime {

/// What a place has of a part of a parameter's state.
struct StatePiece {
  Extent extent = {{{0, 0}}};
  const std::byte* data = nullptr;  ///< null: nothing
};

/// By index of the plan's parameters and by StatePart.
using StatePieces = std::vector<std::array<StatePiece, std::size(state_parts)>>;

/// The pieces that `rank` of a plan has of a version in its kept memory, in slots or as copies; nullopt: it does not
/// hold that version whole. Error: as local_plan.
Expected<std::optional<StatePieces>> state_pieces(const Plan& plan, Rank rank, std::byte* kept, std::int64_t version);

/// The same of what is guarded of `rank`: `slots` is where its part lies (GuardLayout).
Expected<std::optional<StatePieces>> guarded_pieces(const Plan& plan, Rank rank, const std::byte* slots,
                                                    std::int64_t version);

}  // namespace troupe::runtime
