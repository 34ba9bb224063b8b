#include "runtime/plan/schedule.h"

#include <algorithm>

namespace troupe::runtime {

std::vector<std::int32_t> Schedule::microbatches(std::int64_t dp_index) const {
  const auto all = static_cast<std::int32_t>(program_.microbatches);
  const bool in_turn = !program_.stateful && !owners_;
  std::vector<std::int32_t> out;
  for (auto m = in_turn ? static_cast<std::int32_t>(dp_index) : 0; m < all;
       m += in_turn ? static_cast<std::int32_t>(width_) : 1)
    if (owner(m) == dp_index) out.push_back(m);
  return out;
}

std::int32_t Schedule::count(std::int64_t dp_index) const {
  if (program_.stateful) return dp_index == 0 ? static_cast<std::int32_t>(program_.microbatches) : 0;
  if (owners_) return static_cast<std::int32_t>(std::count(owners_->begin(), owners_->end(), dp_index));
  return static_cast<std::int32_t>((program_.microbatches - dp_index + width_ - 1) / width_);
}

std::int32_t Schedule::rounds() const {
  if (program_.sequential) return static_cast<std::int32_t>(program_.microbatches);
  if (!owners_) return count(0);  // coordinate 0 has most
  std::vector<std::int32_t> counts(static_cast<std::size_t>(width_), 0);
  for (auto owner : *owners_) ++counts[static_cast<std::size_t>(owner)];
  return *std::max_element(counts.begin(), counts.end());
}

bool Schedule::runs_in_round(std::int64_t dp_index, std::int32_t round) const {
  return program_.sequential ? owner(round) == dp_index : round < count(dp_index);
}

std::int32_t Schedule::acts(Rate rate, std::int64_t dp_index) const {
  switch (rate) {
    case Rate::step: return 1;
    case Rate::microbatch: return count(dp_index);
    case Rate::round: return rounds();
  }
  return 1;
}

}  // namespace troupe::runtime
