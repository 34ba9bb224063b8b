#include "checkpoint/requests.h"

#include <algorithm>

#include "devices/base/storage.h"
#include "placement/shape.h"

namespace troupe::checkpoint {

namespace {

/// True when `b` begins where `a` and its padding end.
bool follows_in_file(const StoredRun& a, const StoredRun& b) {
  return a.file == b.file && b.offset == aligned(a.offset + a.bytes, storage_alignment);
}

}  // namespace

std::vector<IoRequest> cut_requests(const std::vector<StoredRun>& runs) {
  std::vector<IoRequest> out;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const StoredRun& run = runs[r];
    bool follows = r > 0 && follows_in_file(runs[r - 1], run);
    std::size_t index = 0;
    for (std::int64_t begin = 0; begin < run.bytes; begin += block_bytes, ++index) {
      const RequestBlock block{r, index, run.offset + begin, std::min(block_bytes, run.bytes - begin)};
      const std::int64_t end = aligned(block.offset + block.bytes, storage_alignment);
      if (!follows || end - out.back().offset > request_bytes) out.push_back({run.file, block.offset, 0, {}});
      out.back().bytes = end - out.back().offset;
      out.back().blocks.push_back(block);
      follows = true;
    }
  }
  return out;
}

}  // namespace troupe::checkpoint
