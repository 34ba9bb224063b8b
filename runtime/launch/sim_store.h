// SimStore: the store of one simulated job as it is at a moment of virtual time: a claim and the lease of its leader,
// as an etcd has them (runtime/store/etcd_store.h). Its calls are done at once: the world (sim_machine_store.cpp) says
// how long they take, and which answers are lost.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "runtime/store/store.h"

namespace troupe::runtime {

class SimStore {
 public:
  /// `compares`: false: its compare-and-set does not compare, and its lease keeps no other process out.
  SimStore(std::int64_t lease_ns, bool compares) : lease_ns_(lease_ns), compares_(compares) {}

  /// As Store's.
  std::optional<StoredClaim> read(std::int64_t now_ns) const;
  std::optional<std::int64_t> advance(std::int64_t expected, const Claim& next, bool takes_lead, std::int64_t now_ns);
  bool keep_lead(std::uint64_t leader, std::int64_t now_ns);
  Status withdraw(std::uint64_t leader, std::int64_t now_ns);

  /// What a transaction that comes late finds: it is done where nothing has come between, and has no effect else.
  void advance_late(std::int64_t expected, const Claim& next, bool takes_lead, std::int64_t now_ns) {
    if (revision() == expected && lives(now_ns) != takes_lead) (void)advance(expected, next, takes_lead, now_ns);
  }

  std::int64_t keep_every_ns() const { return lease_ns_ / 3; }
  /// Whether a lease has not ended; when it ends.
  bool lives(std::int64_t now_ns) const { return leader_ != 0 && now_ns < ends_ns_; }
  std::int64_t ends_ns() const { return ends_ns_; }
  /// The leader to which a generation was given; 0: it was given to none.
  std::uint64_t given_to(std::uint32_t generation) const {
    const auto given = given_.find(generation);
    return given == given_.end() ? 0 : given->second;
  }
  /// Two leaders were given the same generation; empty: never.
  const std::string& violation() const { return violation_; }

 private:
  std::int64_t revision() const { return stored_ ? stored_->revision : 0; }

  const std::int64_t lease_ns_;
  const bool compares_;
  std::optional<StoredClaim> stored_;
  std::int64_t newest_revision_ = 0;
  std::uint64_t leader_ = 0;  // that has the lease
  std::int64_t ends_ns_ = 0;  // the lease
  std::map<std::uint32_t, std::uint64_t> given_;
  std::string violation_;
};

}  // namespace troupe::runtime
