// The header in front of every tensor message, and the key by which it is matched.
#pragma once

#include <cstdint>

namespace troupe::comm {

/// The fixed binary header of every tensor message. Little-endian, no padding; layout fixed by version.
struct Header {
  std::uint32_t magic = 0x45505254;  ///< "TRPE"
  std::uint16_t version = 1;
  std::uint16_t program = 0;
  std::uint64_t job = 0;
  std::uint32_t generation = 0;
  std::uint32_t channel = 0;   ///< the boxing, in the plan
  std::uint32_t part = 0;      ///< which of the boxing's transfers from this sender to this receiver
  std::uint32_t sequence = 0;  ///< act of the boxing: numbers the messages of (channel, part)
  std::uint64_t step = 0;
  std::int32_t microbatch = -1;
  std::uint32_t slot = 0;  ///< the sender's slot: for traces and reports
  std::int32_t term_lo = 0, term_hi = 1;
  std::int64_t rows = -1;   ///< actual length of a ragged dim; -1: as planned
  std::uint64_t bytes = 0;  ///< payload; zero is legal and still sent
};
static_assert(sizeof(Header) == 72);

/// A receive is matched by this and the sender's rank.
struct Key {
  std::uint32_t channel = 0, part = 0, sequence = 0;
  bool operator==(const Key&) const = default;
};

}  // namespace troupe::comm
