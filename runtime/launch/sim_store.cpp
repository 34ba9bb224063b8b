#include "runtime/launch/sim_store.h"

#include <fmt/format.h>

namespace troupe::runtime {

std::optional<StoredClaim> SimStore::read(std::int64_t now_ns) const {
  if (!stored_) return std::nullopt;
  return StoredClaim{stored_->claim, stored_->revision, lives(now_ns)};
}

std::optional<std::int64_t> SimStore::advance(std::int64_t expected, const Claim& next, bool takes_lead,
                                              std::int64_t now_ns) {
  const bool leads = lives(now_ns) && leader_ == next.leader;
  const bool is_next = stored_ && stored_->claim == next;
  if (leads && takes_lead) ends_ns_ = now_ns + lease_ns_;
  if (is_next && leads && revision() != expected) return revision();
  if (compares_) {
    if (lives(now_ns) ? !leads : !takes_lead) return std::nullopt;
    // One's own claim, whose lease has ended since, is stored once more.
    if (revision() != expected && !is_next) return std::nullopt;
  }
  if (!takes_lead) {
    const auto [given, fresh] = given_.emplace(next.generation.number, next.leader);
    if (!fresh && given->second != next.leader && violation_.empty())
      violation_ = fmt::format("the store has given generation {} to two leaders", next.generation.number);
  }
  stored_ = StoredClaim{next, ++newest_revision_, true};
  if (!leads) leader_ = next.leader, ends_ns_ = now_ns + lease_ns_;
  return newest_revision_;
}

bool SimStore::keep_lead(std::uint64_t leader, std::int64_t now_ns) {
  if (!lives(now_ns) || leader_ != leader) return false;
  ends_ns_ = now_ns + lease_ns_;
  return true;
}

Status SimStore::withdraw(std::uint64_t leader, std::int64_t now_ns) {
  if (lives(now_ns) ? leader_ != leader : stored_.has_value())
    return {Code::superseded, "this process does not lead the job (any more)"};
  stored_.reset();
  leader_ = 0;
  return {};
}

}  // namespace troupe::runtime
