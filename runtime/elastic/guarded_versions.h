// GuardedVersions: which version the places of a generation guard whole, known from their votes alone (CO-8 guards).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/place/guard_rule.h"
#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

/// A version that is guarded whole, and what a job needs to go on from it.
struct GuardedVersion {
  std::int64_t version = 0;
  SumState sums;
  std::vector<std::int32_t> machines;  ///< GuardRule::machines of the generation that has guarded it
};

class GuardedVersions {
 public:
  /// A generation begins with this version, and has guarded none.
  void begin(GuardRule rule, std::int64_t first) {
    rule_ = std::move(rule);
    first_ = first;
    sums_.clear();
  }
  bool on() const { return rule_.on(); }
  /// These are the sums of a version, which places may guard from now on.
  void made(std::int64_t version, const SumState& sums) {
    if (!rule_.due(version, first_)) return;
    sums_[version] = sums;
    while (std::ssize(sums_) > kept) sums_.erase(sums_.begin());
  }
  /// The newest version that is whole at its guards where so many steps are committed; nullopt: none is.
  std::optional<GuardedVersion> newest(std::int64_t committed) const {
    const auto it = sums_.find(rule_.whole_at_vote(committed - 1, first_));
    if (it == sums_.end()) return {};
    return GuardedVersion{it->first, it->second, rule_.machines};
  }

 private:
  /// Of versions that are due: the newest, which may not be committed, the one that is guarded, the whole one.
  static constexpr std::ptrdiff_t kept = 4;
  GuardRule rule_;
  std::int64_t first_ = 0;
  std::map<std::int64_t, SumState> sums_;
};

}  // namespace troupe::runtime
