#include "actors/snapshot.h"

#include <cstring>

namespace troupe::actors {

void copy_runs(const std::vector<SnapshotCopy>& copies, const std::byte* from, std::byte* to, Parallel& par,
               const kernels::DeviceOps* device) {
  if (void* const queue = par.queue()) {
    for (const SnapshotCopy& copy : copies) device->copy(queue, to + copy.to, from + copy.from, copy.bytes);
    return;
  }
  par.for_each(static_cast<std::int64_t>(copies.size()), [&](std::int64_t i) {
    if (par.stopping()) return;
    const SnapshotCopy& copy = copies[static_cast<std::size_t>(i)];
    std::memcpy(to + copy.to, from + copy.from, static_cast<std::size_t>(copy.bytes));
  });
}

Status SnapshotBody::run(const ActContext& c, Parallel& par) {
  copy_runs(copies_, params_.at(c.act.in[0].token.slot), arena_.at(c.act.out[0].slot), par, device_);
  return par.stopping() ? stopped() : Status();
}

}  // namespace troupe::actors
