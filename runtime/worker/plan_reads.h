// What one place reads of a checkpoint, and what it then sends and receives: its own part of a boxing from extents in
// files to the layout of a plan. All places decide alike who reads an extent; a place works out nothing else of others.
#pragma once

#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "comm/exchange.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// Where a place's parameters and moments lie.
struct RestorePlaces {
  std::byte* base = nullptr;
  std::vector<std::int64_t> params;   ///< byte offset of each parameter; -1: it is not here
  std::vector<std::int64_t> moments;  ///< of its first moment, the second follows; -1: none
};

/// One tensor's way from a batch's buffer to this place and to others.
struct TensorMove {
  const checkpoint::StoredTensor* tensor = nullptr;
  comm::Route route;
  std::uint32_t channel = 0;
};

/// Tensors that are read together: their extents side by side, so that neighbours in a file are read at once.
struct ReadBatch {
  std::vector<checkpoint::ExtentRead> reads;
  std::int64_t bytes = 0;  ///< of the buffer
  std::vector<TensorMove> moves;
};

/// Bytes of a batch, read or received, unless one tensor has more.
inline constexpr std::int64_t read_batch_bytes = std::int64_t{32} << 20;

/// Every extent is read once in the job, by the place that has least to read so far, in the manifest's order, of those
/// that need a part of it; then by the lowest rank. Errors: invalid, for the checkpoint of another model, naming the
/// tensor; not_found, for extents that the manifest lacks. REQUIRES: `manifest` outlives the result.
Expected<std::vector<ReadBatch>> plan_reads(const Plan& plan, Rank rank, const checkpoint::Manifest& manifest,
                                            const RestorePlaces& places);

}  // namespace troupe::runtime
