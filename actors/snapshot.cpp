#include "actors/snapshot.h"

#include <cstring>

namespace troupe::actors {

Status SnapshotBody::run(const ActContext& c, Parallel& par) {
  const std::byte* params = params_.at(c.act.in[0].token.slot);
  std::byte* arena = arena_.at(c.act.out[0].slot);
  par.for_each(static_cast<std::int64_t>(copies_.size()), [&](std::int64_t i) {
    if (par.stopping()) return;
    const SnapshotCopy& copy = copies_[static_cast<std::size_t>(i)];
    std::memcpy(arena + copy.to, params + copy.from, static_cast<std::size_t>(copy.bytes));
  });
  return par.stopping() ? stopped() : Status();
}

}  // namespace troupe::actors
