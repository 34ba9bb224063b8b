// A network in one thread under virtual time, for simulated clusters.
//
// Every link (from, to) has a latency and a bandwidth. In exact integer nanoseconds:
//   announced  = sent + latency + jitter                  the header arrives
//   matched    = max(announced, posted)                   back-pressure: the payload waits for its receive
//   delivered  = max(matched, link free) + bytes/bandwidth   rounded up; the link is busy until then
//   send done  = delivered + ack time (by default the latency) of the way back
// Bytes are copied at `delivered`, when the receive ends; the sender must keep its buffer until `send done`.
//
//   SN-1  (same seed) events run in the order of (due time, sequence): same calls, same seed, same order and times;
//   SN-2  (callbacks) callbacks run inside run_due() and run_one() only;
//   SN-3  (cut links) events that come due on a cut or clogged link wait, and run in their order when the cut or clog
//         ends;
//   SN-4  (killed rank) a killed rank is never called back; its peers learn of it `detect_ns` later.
//
// Owned by the simulation's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "comm/transport.h"
#include "devices/base/clock.h"

namespace troupe::comm {

struct SimLink {
  std::int64_t latency_ns = 1'000;
  std::int64_t bytes_per_second = 0;  ///< 0: no limit
  std::int64_t ack_ns = -1;           ///< until the other end's sender knows; -1: as the latency
};

/// A message whose payload has arrived, just before its receive ends.
struct SimDelivery {
  std::int64_t at_ns = 0;
  Rank from = 0, to = 0;
  const Header& header;
  std::span<const std::byte> payload;
};

struct SimNetworkOptions {
  std::int32_t ranks = 2;
  SimLink link;  ///< of every pair; set_link() changes one. A rank to itself: no delay at all
  std::uint64_t seed = 0;
  std::int64_t jitter_ns = 0;  ///< each announcement is late by a random 0 .. jitter_ns
  std::int64_t detect_ns = 1'000'000;
  std::function<void(const SimDelivery&)> on_delivery;  ///< sees each; may be empty
};

class SimNetwork {
 public:
  /// `clock` outlives the network; the simulation sets it to next_due_ns() before it calls run_due() or run_one().
  SimNetwork(const Clock& clock, const SimNetworkOptions& options);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  /// Opens the end of one rank. Opening a rank again, after its transport was shut down or killed, restarts it.
  /// REQUIRES that the rank, here and below, is in [0, options.ranks) and has no open end. Transports must be destroyed
  /// before the network.
  std::unique_ptr<Transport> open(Rank rank, std::uint64_t job = 0, std::uint32_t generation = 0);

  /// The time of the next event; empty if there is none.
  std::optional<std::int64_t> next_due_ns() const;
  /// Runs the first event that is due at or before `now_ns`, or parks it on its link (SN-3). False: there is none.
  bool run_one(std::int64_t now_ns);
  /// Runs every event that is due at or before `now_ns`.
  void run_due(std::int64_t now_ns);

  /// For announcements and payloads that begin after the call.
  void set_link(Rank from, Rank to, const SimLink& link);
  /// Stops the way from -> to (headers, payloads and acknowledgements) until heal(); what comes due meanwhile waits
  /// (SN-3).
  void cut(Rank from, Rank to);
  void heal(Rank from, Rank to);
  /// Stops the way from -> to for `for_ns` from now.
  void clog(Rank from, Rank to, std::int64_t for_ns);
  /// Ends the rank at once: its messages that are not delivered yet are lost (SN-4).
  void kill(Rank rank);

 private:
  class End;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::comm
