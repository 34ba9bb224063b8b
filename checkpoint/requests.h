// How extents are read and written: in requests of whole blocks, small neighbours together, large extents in parts, so
// that a disk sees few large requests, several threads share them, and each thread checksums the blocks of its request
// while they are in its cache.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/checksum.h"

namespace troupe::checkpoint {

/// Where an extent lies.
struct StoredRun {
  std::int32_t file = 0;
  std::int64_t offset = 0;  ///< a multiple of storage_alignment
  std::int64_t bytes = 0;   ///< > 0
};

/// A part of a request: one block of one extent.
struct RequestBlock {
  std::size_t run = 0;      ///< its run's index
  std::size_t index = 0;    ///< of the block in its extent
  std::int64_t offset = 0;  ///< in the file
  std::int64_t bytes = 0;
};

/// One read or write: consecutive bytes of a file.
struct IoRequest {
  std::int32_t file = 0;
  std::int64_t offset = 0, bytes = 0;  ///< multiples of storage_alignment
  std::vector<RequestBlock> blocks;    ///< by offset
};

/// The most bytes of a request: as fast as any size in docs/measurements, and so small that threads end together.
inline constexpr std::int64_t request_bytes = std::int64_t{2} << 20;

/// The requests for all blocks of `runs`. Runs share a request where only the padding up to storage_alignment lies
/// between them: a request has no byte of any other run. REQUIRES runs in the order of (file, offset) that do not
/// overlap.
std::vector<IoRequest> cut_requests(const std::vector<StoredRun>& runs);

}  // namespace troupe::checkpoint
