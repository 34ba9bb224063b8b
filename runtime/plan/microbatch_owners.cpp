#include "runtime/plan/microbatch_owners.h"

#include <algorithm>

#include "placement/sbp.h"

namespace troupe::runtime {

std::int64_t MicrobatchOwners::place(std::int64_t microbatch) const {
  if (blocks_ <= 1) return microbatch;
  const Range all{0, program_.microbatches};
  const std::int64_t block = parts_overlapping(all, blocks_, {microbatch, microbatch + 1}).lo;
  return (microbatch - split_range(all, blocks_, block).lo) * blocks_ + block;
}

std::int64_t MicrobatchOwners::at(std::int64_t place) const {
  if (blocks_ <= 1) return place;
  return split_range({0, program_.microbatches}, blocks_, place % blocks_).lo + place / blocks_;
}

std::vector<std::int32_t> MicrobatchOwners::microbatches(std::int64_t dp_index) const {
  const bool in_turn = !program_.stateful && !owners_;
  const auto size = static_cast<std::size_t>(count(dp_index));
  std::vector<std::int32_t> out;
  out.reserve(size);
  for (std::int64_t p = in_turn ? dp_index : 0; out.size() < size; p += in_turn ? width_ : 1)
    if (owner(at(p)) == dp_index) out.push_back(static_cast<std::int32_t>(at(p)));
  return out;
}

std::int32_t MicrobatchOwners::microbatch_at(std::int64_t dp_index, std::int64_t act) const {
  if (owners_) return microbatches(dp_index)[static_cast<std::size_t>(act)];
  return static_cast<std::int32_t>(program_.stateful ? act : at(act * width_ + dp_index));
}

const std::vector<std::int32_t>& MicrobatchOwners::counts() const {
  if (counts_.empty()) {
    counts_.assign(static_cast<std::size_t>(width_), 0);
    for (auto owner : *owners_) ++counts_[static_cast<std::size_t>(owner)];
  }
  return counts_;
}

std::int32_t MicrobatchOwners::count(std::int64_t dp_index) const {
  if (program_.stateful) return dp_index == 0 ? static_cast<std::int32_t>(program_.microbatches) : 0;
  if (owners_) return counts()[static_cast<std::size_t>(dp_index)];
  return static_cast<std::int32_t>((program_.microbatches - dp_index + width_ - 1) / width_);
}

std::int32_t MicrobatchOwners::rounds() const {
  if (program_.sequential) return static_cast<std::int32_t>(program_.microbatches);
  if (!owners_) return count(0);  // coordinate 0 has most
  return *std::max_element(counts().begin(), counts().end());
}

bool MicrobatchOwners::runs_in_round(std::int64_t dp_index, std::int32_t round) const {
  return program_.sequential ? owner(round) == dp_index : round < count(dp_index);
}

std::int32_t MicrobatchOwners::acts(Rate rate, std::int64_t dp_index) const {
  switch (rate) {
    case Rate::step: return 1;
    case Rate::microbatch: return count(dp_index);
    case Rate::round: return rounds();
  }
  return 1;
}

}  // namespace troupe::runtime
