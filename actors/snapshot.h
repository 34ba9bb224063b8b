// Snapshot: one more reader of a group's parameter slot. It copies this place's part of the parameters and their
// moments into a slot of the arena while the next forward and backward run. The arena is a place's host memory for
// snapshots (LocalPlan::arena_bytes, planned in runtime/place/memory.cpp). Its ack lets an update overwrite the slot.
//
// After CheckFreq (Mohan et al., 2021) and DataStates-LLM (Maurya et al., 2024): copy lazily, write later. Here the
// slots say, for each group of parameters, when a copy must be over and whether the arena has room for it.
#pragma once

#include <vector>

#include "actors/executor.h"
#include "kernels/device_ops.h"

namespace troupe::actors {

/// A run of bytes that a snapshot copies.
struct SnapshotCopy {
  std::int64_t from = 0, to = 0;  ///< byte of the parameter slot, of the arena's slot
  std::int64_t bytes = 0;
};

/// Copies the runs of a parameter slot `from` to `to`; some are missing where it is stopped. On a stream of a device it
/// issues the copies by `device`.
void copy_runs(const std::vector<SnapshotCopy>& copies, const std::byte* from, std::byte* to, Parallel& parallel,
               const kernels::DeviceOps* device);

class SnapshotBody final : public Body {
 public:
  SnapshotBody(std::vector<SnapshotCopy> copies, PortMemory params, PortMemory arena,
               const kernels::DeviceOps* device = nullptr)
      : copies_(std::move(copies)), params_(params), arena_(arena), device_(device) {}
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  std::vector<SnapshotCopy> copies_;
  PortMemory params_;
  PortMemory arena_;
  const kernels::DeviceOps* device_;
};

}  // namespace troupe::actors
