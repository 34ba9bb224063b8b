// StallMeter: how long a place's updates waited for its snapshots. An update may begin when its step's commit has
// arrived; it overwrites the version that its step has read, or, where versions have two slots, the one before, and
// then waits for nothing of its snapshot if every copy of that version is over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

namespace troupe::runtime {

/// Thread-safe.
class StallMeter {
 public:
  /// One group's parameters of a version have been copied. The commit behind the one that overwrites the version cannot
  /// have arrived: it needs the update for which this copy had to end.
  void copied(std::int64_t version, std::int64_t now_ns) {
    std::lock_guard lock(mutex_);
    auto& stall_ns = stalls_[version];
    if (committed_.first == version) stall_ns = std::max(stall_ns, now_ns - committed_.second);
  }
  /// The commit of a step whose updates overwrite `version` has arrived.
  void committed(std::int64_t version, std::int64_t now_ns) {
    std::lock_guard lock(mutex_);
    committed_ = {version, now_ns};
  }
  /// Returns the time from the commit of a version to the end of its last copy so far, 0 if that ended before: the most
  /// that an update waited. Forgets older versions.
  std::int64_t stall_ns(std::int64_t version) {
    std::lock_guard lock(mutex_);
    const auto it = stalls_.find(version);
    if (it == stalls_.end()) return 0;
    stalls_.erase(stalls_.begin(), it);
    return it->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> stalls_;  // by version
  std::pair<std::int64_t, std::int64_t> committed_{-1, 0};
};

}  // namespace troupe::runtime
