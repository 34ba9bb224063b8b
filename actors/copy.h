// Copy: one more reader of a group's parameter slot, of jobs that recover from copies. It copies this place's part of
// the parameters and their moments to memory that outlives its process, as a snapshot does, but keeps what it has
// copied until the next copy is whole: the memory has two slots, and no writer waits there.
//
//   CO-7  (copies) step s, whose update overwrites version s, is committed only when the copies of versions up to s
//         have closed at all places (Decisions). So at any time all places hold the newest version that is copied, or
//         all the one that was copied before it.
//
// After Gemini (Wang et al., 2023): checkpoints in host memory, from which most losses are recovered.
#pragma once

#include <vector>

#include "actors/executor.h"
#include "actors/snapshot.h"

namespace troupe::actors {

/// Two slots, one behind the other, each with a VersionWord.
struct CopyMemory {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  std::int64_t version_offset = 0;  ///< of the word, in a slot
};

class CopyBody final : public Body {
 public:
  /// `kept`: the slot with the version that the job goes on from, which the first copy leaves as it is; -1: none.
  CopyBody(std::vector<SnapshotCopy> copies, PortMemory params, CopyMemory memory, std::int32_t kept,
           const kernels::DeviceOps* device = nullptr)
      : copies_(std::move(copies)), params_(params), memory_(memory), newest_(kept), device_(device) {}
  Status run(const ActContext& context, Parallel& parallel) override;

 private:
  std::vector<SnapshotCopy> copies_;
  PortMemory params_;
  CopyMemory memory_;
  std::int32_t newest_;
  const kernels::DeviceOps* device_;
};

}  // namespace troupe::actors
