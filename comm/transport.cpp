#include "comm/transport.h"

#include <fmt/format.h>

#include <type_traits>

namespace troupe::comm {

// The header travels as raw bytes: it must stay a plain, packed little-endian struct.
static_assert(std::is_trivially_copyable_v<Header>);
static_assert(alignof(Header) == 8);

std::string name_of(Rank rank) { return fmt::format("rank {}", rank); }

}  // namespace troupe::comm
