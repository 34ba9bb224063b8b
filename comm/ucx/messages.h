// What travels in UCX's headers: a tensor message's, and the control messages hello, ack and bye.
//
//   message   Wire, then the payload; eager ones end with the receiver's ack.
//   hello     connects; nothing else is meant by it.
//   ack       the eager message `send_id` was copied into its slot.
//   bye       the sender shuts down.
//
// Values and functions of them only: nobody owns state here.
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
/// A rank from outside is below this, or garbage.
constexpr Rank kRanksMax = 1 << 20;

/// The UCX header of a message: ours, who sends it, and what an acknowledgement has to name.
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

/// A W from the network's bytes, nothing in it checked yet. Empty: they have another size.
template <class W>
std::optional<W> read_as(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(W)) return std::nullopt;
  W wire;
  std::memcpy(static_cast<void*>(&wire), bytes.data(), sizeof wire);
  return wire;
}

/// Whether it is a control message at all (MA-2), of whatever job and generation.
bool makes_sense(const ControlWire& wire);

/// "rank 3": how a peer is called in errors.
std::string name_of(Rank rank);

/// What UCX's status means for the peer called `what`: ok, `unavailable` or `io`.
Status status_of(ucs_status_t s, const std::string& what);

}  // namespace troupe::comm::ucx
