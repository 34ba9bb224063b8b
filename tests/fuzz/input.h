// What the fuzz targets share: the bytes that the fuzzer has drawn, and a check that ends the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace troupe::fuzz {

using Bytes = std::vector<std::byte>;

/// Ends the process where a promise does not hold: the fuzzer keeps the input.
inline void must(bool holds) {
  if (!holds) std::abort();
}

/// Takes the drawn bytes apart, from the front. Where none are left, numbers are 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const std::byte*>(data), size) {}
  std::uint8_t number() {
    const auto first = take(1);
    return first.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(first[0]);
  }
  std::span<const std::byte> take(std::size_t most) {
    const auto first = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(first.size());
    return first;
  }
  Bytes rest() {
    const auto all = take(rest_.size());
    return {all.begin(), all.end()};
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace troupe::fuzz
