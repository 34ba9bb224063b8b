// Inventory: which versions lie where, and who takes what of them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/elastic/place_id.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// What places hold of the layout of a plan.
class Inventory {
 public:
  explicit Inventory(const Plan& plan) : plan_(plan) {}
  /// `versions`: that lie whole with the rank; nullopt: it has no part in them. A rank that is never named holds
  /// nothing.
  void holds(Rank rank, const std::optional<std::vector<std::int64_t>>& versions);
  /// The newest version of `allowed`, of which every element is held.
  std::optional<std::int64_t> newest(const std::function<bool(std::int64_t)>& allowed) const;
  /// Whether the rank lacks nothing that it would have of a version.
  bool holds(Rank rank, std::int64_t version) const;
  /// Whether something of a version lies with the rank, and all that it would have.
  bool has(Rank rank, std::int64_t version) const;

 private:
  const Plan& plan_;
  std::map<std::int64_t, std::set<Rank>> holders_;  // by version
  std::set<Rank> without_;                          // that have no part in any
};

/// Which place runs which rank of `next`: each rank the place whose memory has most of what the rank needs, then that
/// which had it before, then the earliest place; `home`: by rank of `before`, the place that has its state. Returns a
/// place for each rank. REQUIRES: `left` has at least as many places as `next` has ranks.
std::vector<PlaceId> seat(const Plan& next, const Plan& before, std::span<const PlaceId> home,
                          std::span<const PlaceId> left);

}  // namespace troupe::runtime
