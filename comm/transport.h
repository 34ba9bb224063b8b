// The Transport seam: tensor messages between places, matched by key, received straight into slots.
//
// A message is announced by its header; its payload stays with the sender until the receiver has
// posted where it goes (rendezvous). The wait is the network's whole back-pressure: a slot that is not
// free is a receive that is not posted, and a send that is not done.
//
//   TR-1  (rendezvous) a send is done when its buffer may be reused, which is after the receive was posted;
//   TR-2  (matching) messages match by (from, Key) alone: no order between messages is assumed or needed;
//   TR-3  (generations) a message of another generation or job is counted and dropped, never matched;
//   TR-4  (shutdown) after shutdown() or abort() no callback runs and no buffer is touched; sends and receives do
//         nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/message_header.h"
#include "devices/base/status.h"
#include "placement/mesh.h"

namespace troupe::comm {

/// Called once, when a send or receive has ended. Where a receive ends without a message, the header has only the key's
/// fields.
using SendDone = std::function<void(Status)>;
using RecvDone = std::function<void(Status, const Header&)>;

/// "rank 3": how a peer is called in errors.
std::string name_of(Rank rank);

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
  /// As shutdown() (TR-4), but says goodbye to no peer and waits for none: for a generation that ends, whose peers may
  /// be dead or stopped. A peer that goes on may never learn of it. Idempotent, also after and before shutdown().
  virtual void abort() { shutdown(); }
};

}  // namespace troupe::comm
