// How the reads and writes of extents are cut into requests.
#include <doctest/doctest.h>

#include "checkpoint/requests.h"
#include "devices/base/philox.h"
#include "devices/base/storage.h"
#include "placement/shape.h"

using namespace troupe;
using namespace troupe::checkpoint;

TEST_CASE(
    "requests have each block once, in order, with no byte of another extent, and are as few as their size allows") {
  std::uint64_t draws = 0;
  auto random = [&](std::int64_t n) {
    return static_cast<std::int64_t>(philox(11, ++draws, 0)[0] % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<StoredRun> runs;
    std::int32_t file = 0;
    std::int64_t end = 4096;
    for (std::int64_t i = 0; i < 1 + random(30); ++i) {
      if (random(5) == 0) ++file, end = 4096;
      else if (random(3) == 0) end += 4096 * (1 + random(3));  // of other tensors
      runs.push_back({file, end, 1 + random(random(2) ? 20'000 : 9 << 20)});
      end = aligned(end + runs.back().bytes, storage_alignment);
    }
    const auto requests = cut_requests(runs);
    std::size_t run = 0, index = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const IoRequest& t = requests[i];
      REQUIRE(!t.blocks.empty());
      CHECK(t.bytes <= request_bytes);
      CHECK(t.offset == t.blocks.front().offset);
      CHECK(t.offset + t.bytes == aligned(t.blocks.back().offset + t.blocks.back().bytes, storage_alignment));
      std::int64_t at = t.offset;
      for (const auto& b : t.blocks) {
        CHECK(b.run == run);
        CHECK(b.index == index);
        CHECK(runs[run].file == t.file);
        CHECK(b.offset == at);  // nothing between two blocks but padding
        CHECK(b.offset == runs[run].offset + static_cast<std::int64_t>(index) * block_bytes);
        CHECK(b.bytes == std::min(block_bytes, runs[run].offset + runs[run].bytes - b.offset));
        at = aligned(b.offset + b.bytes, storage_alignment);
        if (b.offset + b.bytes == runs[run].offset + runs[run].bytes) ++run, index = 0;
        else ++index;
      }
      const bool next_fits =
          i + 1 < requests.size() && requests[i + 1].file == t.file && requests[i + 1].offset == t.offset + t.bytes &&
          t.bytes + aligned(requests[i + 1].blocks.front().bytes, storage_alignment) <= request_bytes;
      CHECK(!next_fits);
    }
    CHECK(run == runs.size());
  }
  CHECK(cut_requests({}).empty());
}
