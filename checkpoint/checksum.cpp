// Compiled for the CPU kernels' instruction set, with the hash inlined: see checkpoint/CMakeLists.txt.
#include "checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>

namespace troupe::checkpoint {

std::string hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string to_string(const Checksum& sum) { return hexadecimal(sum.high) + hexadecimal(sum.low); }

Checksum checksum(const std::byte* data, std::int64_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, static_cast<std::size_t>(bytes));
  return {hash.low64, hash.high64};
}

std::vector<Checksum> block_checksums(const std::byte* data, std::int64_t bytes) {
  std::vector<Checksum> sums;
  for (std::int64_t at = 0; at < bytes; at += block_bytes)
    sums.push_back(checksum(data + at, std::min(block_bytes, bytes - at)));
  return sums;
}

}  // namespace troupe::checkpoint
