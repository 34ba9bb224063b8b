// ThrottledTransport: delays the callbacks of another transport as a given network would. For experiments with real
// processes on one machine, and for tests.
//
// Every link (from, to) has a latency and a bandwidth. Once the transport underneath has moved a message, each end
// computes, by its own clock:
//   left       = max(moved, link free) + bytes/bandwidth   rounded up; the link is busy until then
//   send done  = left
//   delivered  = left + latency
// So the delay comes on top of the time of the transport underneath, and a message that waits for its receive occupies
// no link: back-pressure is unchanged.
//
//   TH-1  (delay) no send or receive ends earlier than these formulas say, and the messages of one link end in the
//         order in which they were moved;
//   TH-2  (no delay) errors, reports of dead peers, and a rank's messages to itself are not delayed;
//   TH-3  (alarm) every callback runs on the alarm.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/transport.h"
#include "devices/base/alarm.h"

namespace troupe::comm {

/// How slow the links between two ranks are, each way.
struct Throttle {
  Rank a = -1, b = -1;  ///< -1: any. Of several throttles of a link the last counts
  std::int64_t latency_ns = 0;
  std::int64_t bytes_per_second = 0;  ///< 0: no limit
  /// True when this is a throttle of the links between `x` and `y`.
  bool concerns(Rank x, Rank y) const;
  bool operator==(const Throttle&) const = default;
};

class ThrottledTransport final : public Transport {
 public:
  /// `alarm`: no other object uses it.
  ThrottledTransport(std::unique_ptr<Transport> inner, std::unique_ptr<Alarm> alarm, std::vector<Throttle> links);
  ~ThrottledTransport() override;
  ThrottledTransport(const ThrottledTransport&) = delete;
  ThrottledTransport& operator=(const ThrottledTransport&) = delete;

  Rank rank() const override { return inner_->rank(); }
  void send(Rank to, Header header, std::span<const std::byte> data, SendDone done) override;
  void recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) override;
  void on_peer_down(std::function<void(Rank, Status)> f) override;
  /// Of the transport underneath: counts also messages whose callbacks are still delayed here.
  TransportStats stats() const override { return inner_->stats(); }
  /// REQUIRES, as abort(), that no callback calls it.
  void shutdown() override;
  void abort() override;

 private:
  struct Way {
    Throttle link;
    std::int64_t free_at_ns = 0;
  };
  using Ways = std::map<Rank, Way>;
  /// The time at which the last byte of a message that has just been moved is through; sets `latency_ns` to the link's.
  std::int64_t left_ns(Ways& ways, Rank peer, std::uint64_t bytes, std::int64_t& latency_ns);

  const std::vector<Throttle> links_;
  std::mutex mutex_;
  Ways out_, in_;  ///< by peer; guarded by mutex_
  std::unique_ptr<Alarm> alarm_;
  std::unique_ptr<Transport> inner_;  ///< last: its callbacks use all of the above
};

}  // namespace troupe::comm
