// StallMeter: how long a place's updates waited for its snapshots. An update of step v may begin when the commit of step v has
// arrived; it then waits for nothing of its snapshot if every copy of version v is over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

namespace troupe::runtime {

/// Thread-safe.
class StallMeter {
 public:
  /// One group's parameters of a version have been copied.
  void copied(std::int64_t version, std::int64_t now_ns) {
    std::lock_guard lock(mutex_);
    auto& end = copied_[version];
    end = std::max(end, now_ns);
  }
  /// The commit that overwrites a version has arrived.
  void committed(std::int64_t version, std::int64_t now_ns) {
    std::lock_guard lock(mutex_);
    committed_ = {version, now_ns};
  }
  /// From the commit to the end of the last copy, if that came later: the most that an update waited. All copies of the
  /// version are over. A commit that is still to come finds them over.
  std::int64_t stall_ns(std::int64_t version) {
    std::lock_guard lock(mutex_);
    const auto it = copied_.find(version);
    if (it == copied_.end()) return 0;
    copied_.erase(copied_.begin(), it);   // nobody asks for an older one any more
    return committed_.first == version ? std::max<std::int64_t>(0, it->second - committed_.second) : 0;
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> copied_;   // version -> end of its last copy
  std::pair<std::int64_t, std::int64_t> committed_{-1, 0};
};

}  // namespace troupe::runtime
