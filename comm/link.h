// What a link between two places can do: the arithmetic that simulated and throttled links share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace troupe::comm {

/// Time that `bytes` occupy a link, rounded up to whole nanoseconds. A rate of zero is no limit: no time.
inline std::int64_t transfer_ns(std::uint64_t bytes, std::int64_t bytes_per_second) {
  if (bytes_per_second <= 0) return 0;
  using Wide = unsigned __int128;
  const Wide rate = static_cast<Wide>(bytes_per_second);
  return static_cast<std::int64_t>((static_cast<Wide>(bytes) * 1'000'000'000u + rate - 1) / rate);
}

/// Occupies a link, which carries one message at a time, first come first served, from `ready_ns` on, or from
/// `free_at_ns` if that is later. Returns the time at which the last byte is through, and sets `free_at_ns` to it.
inline std::int64_t occupy(std::int64_t& free_at_ns, std::int64_t ready_ns, std::uint64_t bytes,
                           std::int64_t bytes_per_second) {
  return free_at_ns = std::max(ready_ns, free_at_ns) + transfer_ns(bytes, bytes_per_second);
}

}  // namespace troupe::comm
