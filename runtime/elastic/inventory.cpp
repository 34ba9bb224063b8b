#include "runtime/elastic/inventory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "devices/base/check.h"
#include "runtime/place/kept_extents.h"
#include "runtime/place/state_places.h"
#include "runtime/worker/remains.h"

namespace troupe::runtime {

void Inventory::holds(Rank rank, const std::optional<std::vector<std::int64_t>>& versions) {
  if (!versions) without_.insert(rank);
  else
    for (const std::int64_t v : *versions) holders_[v].insert(rank);
}

bool Inventory::has(Rank rank, std::int64_t version) const {
  const auto it = holders_.find(version);
  return it != holders_.end() && it->second.count(rank) > 0;
}

bool Inventory::holds(Rank rank, std::int64_t version) const { return without_.count(rank) > 0 || has(rank, version); }

std::optional<std::int64_t> Inventory::newest(const std::function<bool(std::int64_t)>& allowed) const {
  for (auto it = holders_.rbegin(); it != holders_.rend(); ++it) {
    if (!allowed(it->first)) continue;
    const bool all = static_cast<Rank>(it->second.size() + without_.size()) == plan_.workers();
    if (all || is_whole(plan_, [&](Rank r) { return holds(r, it->first); })) return it->first;
  }
  return std::nullopt;
}

namespace {

/// Bytes of what rank `to` of `next` needs that a rank of `before` keeps.
std::int64_t common_bytes(const Plan& next, Rank to, const std::map<std::string, std::int32_t>& index_before,
                          const KeptExtents& kept, Rank from) {
  std::int64_t bytes = 0;
  for (const PlanParam& p : next.params) {
    const auto old = index_before.find(p.name);
    if (old == index_before.end()) continue;
    for (const StatePart part : state_parts) {
      const Extent want = extent_of(next, p, part, to), have = kept.of(from, old->second, part);
      if (want.dims.size() == have.dims.size() && !want.empty())
        bytes += intersect(want, have).elements() * item_bytes(next, p, part);
    }
  }
  return bytes;
}

}  // namespace

std::vector<PlaceId> seat(const Plan& next, const Plan& before, std::span<const PlaceId> home,
                          std::span<const PlaceId> left) {
  const Rank ranks = next.workers();
  REQUIRE(std::ssize(left) >= ranks, left.size(), ranks);
  struct Pair {
    std::int64_t bytes;
    bool has_other;  // rank before
    Rank rank;
    std::size_t place;  // index into `left`
  };
  const KeptExtents kept(before);
  std::map<std::string, std::int32_t> index_before;  // of parameters
  for (std::size_t i = 0; i < before.params.size(); ++i)
    index_before[before.params[i].name] = static_cast<std::int32_t>(i);
  std::vector<Pair> pairs;
  for (Rank r = 0; r < ranks; ++r)
    for (std::size_t p = 0; p < left.size(); ++p) {
      const auto own = std::find(home.begin(), home.end(), left[p]);
      const Rank before_it = own == home.end() ? -1 : static_cast<Rank>(own - home.begin());
      pairs.push_back({before_it < 0 ? 0 : common_bytes(next, r, index_before, kept, before_it), before_it != r, r, p});
    }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return std::tuple(-a.bytes, a.has_other, a.rank, a.place) < std::tuple(-b.bytes, b.has_other, b.rank, b.place);
  });
  std::vector<std::optional<PlaceId>> seats(static_cast<std::size_t>(ranks));
  std::set<std::size_t> taken;
  for (const Pair& pair : pairs)
    if (auto& seat = seats[static_cast<std::size_t>(pair.rank)]; !seat && taken.insert(pair.place).second)
      seat = left[pair.place];
  std::vector<PlaceId> out;
  for (const auto& seat : seats) out.push_back(*seat);
  return out;
}

}  // namespace troupe::runtime
