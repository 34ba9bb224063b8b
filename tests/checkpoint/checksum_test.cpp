#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "checkpoint/checksum.h"

using namespace troupe::checkpoint;

namespace {

Checksum of(const std::string& text) {
  return checksum(reinterpret_cast<const std::byte*>(text.data()), static_cast<std::int64_t>(text.size()));
}

}  // namespace

TEST_CASE("checksums are what xxhsum -H2 prints") {
  CHECK(to_string(of("")) == "99aa06d3014798d86001c324468d497f");
  CHECK(to_string(of("a")) == "a96faf705af16834e6c632b61e964e1f");
  CHECK(to_string(of("Troupe")) == "b81be2f3f060a247b049da1abdfbf12e");
  std::string longer;
  for (int i = 0; i < 100'000; ++i) longer += static_cast<char>(i * 31 % 251);
  CHECK(to_string(of(longer)) == "28684b2ad44cd4a402df1e985a776b74");
}

TEST_CASE("one checksum for each block of 1 MiB and one for the rest, wherever the bytes lie in memory") {
  std::vector<std::byte> data(2 * block_bytes + 64 + 5);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * i >> 7);
  const std::int64_t bytes = 2 * block_bytes + 5;
  const auto sums = block_checksums(data.data(), bytes);
  REQUIRE(sums.size() == 3);
  CHECK(sums[1] == checksum(data.data() + block_bytes, block_bytes));
  CHECK(sums[2] == checksum(data.data() + 2 * block_bytes, 5));
  CHECK(block_checksums(data.data(), 0).empty());
  std::memmove(data.data() + 1, data.data(), static_cast<std::size_t>(bytes));
  CHECK(block_checksums(data.data() + 1, bytes) == sums);
}
