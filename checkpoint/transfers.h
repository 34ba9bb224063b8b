// How extents are read and written: in runs of whole blocks, small neighbours together, large extents in parts, so that a disk
// sees few large transfers, several threads share them, and each block is summed up by the thread that has just had it.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checksum.h"

namespace troupe::checkpoint {

/// Where an extent lies.
struct StoredRun {
  std::int32_t file = 0;
  std::int64_t offset = 0;             ///< a multiple of storage_alignment
  std::int64_t bytes = 0;              ///< more than none
};

/// A part of a transfer: one block of one extent.
struct TransferBlock {
  std::size_t run = 0;                 ///< which
  std::size_t index = 0;               ///< of the block in its extent
  std::int64_t offset = 0;             ///< in the file
  std::int64_t bytes = 0;
};

/// What is read or written at once: consecutive bytes of a file.
struct IoRequest {
  std::int32_t file = 0;
  std::int64_t offset = 0, bytes = 0;  ///< multiples of storage_alignment
  std::vector<TransferBlock> blocks;   ///< by offset
};

/// Bytes of a transfer, at most: as fast as any size where we measured (docs/measurements), and so small that threads end together.
inline constexpr std::int64_t transfer_bytes = std::int64_t{2} << 20;

/// All blocks of runs that are given by (file, offset) and do not overlap. Runs go together where nothing but the padding up to
/// storage_alignment lies between them: a transfer has no byte of anybody else.
std::vector<IoRequest> cut_transfers(const std::vector<StoredRun>& runs);

}  // namespace troupe::checkpoint
