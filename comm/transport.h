// The Transport seam: tensor messages between places, matched by key, received straight into slots.
//
// A message is announced by its header; its payload stays with the sender until the receiver has
// posted where it goes (rendezvous). That is the network's whole back-pressure: a slot that is not
// free is a receive that is not posted, and a send that is not done.
//
//   TR-1  a send is done when its buffer may be reused, which is after the receive was posted;
//   TR-2  messages match by (from, Key) alone: no order between messages is assumed or needed;
//   TR-3  a message of another generation or job is counted and dropped, never matched;
//   TR-4  after shutdown() no callback runs and no buffer is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "devices/base/status.h"
#include "placement/mesh.h"

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

/// Called once, when a send or receive has ended. Where a receive ends without a message, the header has only the key's
/// fields.
using SendDone = std::function<void(Status)>;
using RecvDone = std::function<void(Status, const Header&)>;

struct TransportStats {
  std::uint64_t sent_messages = 0, sent_bytes = 0;
  std::uint64_t received_messages = 0, received_bytes = 0;
  std::uint64_t stale_dropped = 0;   ///< other job or generation
  std::uint64_t unexpected_max = 0;  ///< most announced messages that waited for their receive
};

/// One place's end of the network. All calls are thread-safe, but in a simulation, which has one thread; callbacks run
/// on the transport's own thread (or in the simulation's loop), must not block, and may call back into the transport.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Rank rank() const = 0;
  /// Sends `data` to `to`. `header.bytes` is set here. `data` stays valid until `done`. A send to the own
  /// rank is legal.
  virtual void send(Rank to, Header header, std::span<const std::byte> data, SendDone done) = 0;
  /// Receives the message with `key` from `from` into `into`. A payload of any other size than
  /// `into.size()` is an error (`invalid`, both sizes named) unless header.rows says it is ragged and it
  /// is shorter. `into` stays valid until `done`.
  virtual void recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) = 0;
  /// Called once per peer that is found dead (connection error); sends and receives with it end with
  /// `unavailable`. Set before the first send.
  virtual void on_peer_down(std::function<void(Rank, Status)> f) = 0;
  virtual TransportStats stats() const = 0;
  /// Cancels everything outstanding without calling back, then returns. Idempotent.
  virtual void shutdown() = 0;
};

}  // namespace troupe::comm
