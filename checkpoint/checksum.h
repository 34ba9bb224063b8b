// xxh3-128 of blocks, by which readers find damaged bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::checkpoint {

/// Bytes that one checksum covers; the last block of an extent may be shorter, none reaches beyond its extent.
inline constexpr std::int64_t block_bytes = std::int64_t{1} << 20;

/// XXH3, 128 bit (xxHash 0.8), seed 0.
struct Checksum {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Checksum&) const = default;
};
/// 16 hexadecimal digits.
std::string hexadecimal(std::uint64_t number);
/// 32 hexadecimal digits, high half first, as xxhsum -H2 prints it.
std::string to_string(const Checksum& sum);

Checksum checksum(const std::byte* data, std::int64_t bytes);
/// One checksum per block of block_bytes of the `bytes` bytes at `data`; the last block may be shorter.
std::vector<Checksum> block_checksums(const std::byte* data, std::int64_t bytes);

}  // namespace troupe::checkpoint
