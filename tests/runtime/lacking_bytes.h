// How many bytes of state places lack that go on with another plan: counted element by element, for tests.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/place/state_places.h"

namespace troupe::test {

/// Calls f with the coordinates of each element of `extent`.
template <class F>
void each_element(const Extent& extent, F&& f) {
  if (extent.empty()) return;
  std::vector<std::int64_t> at;
  for (const Range& dim : extent.dims) at.push_back(dim.lo);
  for (;;) {
    f(at);
    std::size_t d = at.size();
    while (d > 0 && ++at[d - 1] == extent.dims[d - 1].hi) {
      --d;
      at[d] = extent.dims[d].lo;
    }
    if (d == 0) return;
  }
}

/// Of all that rank `to` of `next` has of parameters and moments, what rank `from` of `before` has not; -1: no rank.
inline std::int64_t lacking_bytes(const runtime::Plan& next, Rank to, const runtime::Plan& before, Rank from) {
  std::int64_t bytes = 0;
  for (const runtime::PlanParam& param : next.params) {
    const auto old = std::find_if(before.params.begin(), before.params.end(),
                                  [&](const runtime::PlanParam& p) { return p.name == param.name; });
    for (const runtime::StatePart part : runtime::state_parts) {
      Extent have{{Range{0, 0}}};
      if (from >= 0 && old != before.params.end()) have = runtime::extent_of(before, *old, part, from);
      each_element(runtime::extent_of(next, param, part, to), [&](const std::vector<std::int64_t>& at) {
        bool there = !have.empty();
        for (std::size_t d = 0; there && d < at.size(); ++d)
          there = have.dims[d].lo <= at[d] && at[d] < have.dims[d].hi;
        if (!there) bytes += runtime::item_bytes(next, param, part);
      });
    }
  }
  return bytes;
}

/// What all ranks of `next` lack together where they are given to places so that it is least. `had`: the rank of
/// `before` of each place that is left; -1: none. REQUIRES: at least as many places as ranks, and few: all orders are
/// tried.
inline std::int64_t least_lacking_bytes(const runtime::Plan& next, const runtime::Plan& before,
                                        const std::vector<Rank>& had) {
  const auto ranks = static_cast<std::size_t>(next.workers());
  std::vector<std::vector<std::int64_t>> lacking(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    for (const Rank from : had) lacking[r].push_back(lacking_bytes(next, static_cast<Rank>(r), before, from));
  std::vector<std::size_t> order(had.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  do {
    std::int64_t bytes = 0;
    for (std::size_t r = 0; r < ranks; ++r) bytes += lacking[r][order[r]];
    least = std::min(least, bytes);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

/// Whether a job has moved what its new layout lacks, or at most a tenth more. `all_hold`: all places that are left
/// hold the version with which it goes on; else some of them may lack it, as where a place was lost before others had
/// what they needed of it for their updates.
inline bool moves_what_is_lacking(std::int64_t moved, const runtime::Plan& next, const runtime::Plan& before,
                                  const std::vector<Rank>& had, bool all_hold) {
  for (unsigned without = 0; without < (all_hold ? 1U : 1U << had.size()); ++without) {
    std::vector<Rank> holding = had;
    for (std::size_t p = 0; p < had.size(); ++p)
      if ((without >> p & 1U) != 0) holding[p] = -1;
    const std::int64_t least = least_lacking_bytes(next, before, holding);
    if (moved >= least && 10 * moved <= 11 * least) return true;
  }
  return false;
}

}  // namespace troupe::test
