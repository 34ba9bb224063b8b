// What travels in UCX's headers: a tensor message's, and the control messages hello, ack and bye.
//
//   message   Wire, then the payload; eager ones end with the receiver's ack.
//   hello     connects; it says nothing else.
//   ack       the eager message `send_id` was copied into its slot.
//   bye       the sender shuts down.
//
// Values and functions of them only: no state.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "comm/transport.h"

namespace troupe::comm::ucx {

/// UCX's ids of the two kinds of active messages.
constexpr unsigned kMessageId = 1, kControlId = 2;
/// A message from a rank that is not below this is garbage.
constexpr Rank kRanksMax = 1 << 20;

/// The UCX header of a message: ours, the sender's rank, and the id that an acknowledgement names.
struct Wire {
  Header header;
  std::int32_t from = 0;
  std::uint32_t eager = 0;  ///< 1: the receiver acknowledges `send_id`
  std::uint64_t send_id = 0;
};
static_assert(sizeof(Wire) == 88);

enum class Control : std::uint32_t { hello, ack, bye };

/// The UCX header of everything that is not a message.
struct ControlWire {
  std::uint32_t magic = Header().magic;
  Control kind = Control::hello;
  std::uint64_t job = 0;
  std::uint32_t generation = 0;
  std::int32_t from = 0;
  std::uint64_t send_id = 0;
};
static_assert(sizeof(ControlWire) == 32);

/// Copies a W out of the network's bytes and checks none of its fields. Empty where `bytes` has another size.
template <class W>
std::optional<W> read_as(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(W)) return std::nullopt;
  W wire;
  std::memcpy(static_cast<void*>(&wire), bytes.data(), sizeof wire);
  return wire;
}

/// True for a control message (magic, kind, rank: MA-2 garbage) of any job and generation.
bool makes_sense(const ControlWire& wire);

}  // namespace troupe::comm::ucx
