// ThrottledTransport: another transport, made as slow as a given network, in code. For experiments with real
// processes on one machine, and for tests.
//
// Every link (from, to) has a latency and a bandwidth. Once the transport underneath has moved a message, each of its
// ends answers, by its own clock:
//   left       = max(moved, link free) + bytes/bandwidth   rounded up; the link is busy until then
//   send done  = left
//   delivered  = left + latency
// So what the transport underneath takes itself comes on top, and a message that waits for its receive occupies no
// link: back-pressure is what it was.
//
//   TH-1  nothing ends earlier than this, and on one link everything ends in the order in which it was moved;
//   TH-2  what ends with an error, and news of dead peers, are not delayed; a rank's messages to itself neither;
//   TH-3  every callback runs on the alarm.
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
  Rank a = -1, b = -1;                ///< -1: any. Of several that fit the last counts
  std::int64_t latency_ns = 0;
  std::int64_t bytes_per_second = 0;  ///< 0: no limit
  bool concerns(Rank x, Rank y) const;
  bool operator==(const Throttle&) const = default;
};

class ThrottledTransport final : public Transport {
 public:
  /// The alarm is this transport's own.
  ThrottledTransport(std::unique_ptr<Transport> inner, std::unique_ptr<Alarm> alarm, std::vector<Throttle> links);
  ~ThrottledTransport() override;
  ThrottledTransport(const ThrottledTransport&) = delete;
  ThrottledTransport& operator=(const ThrottledTransport&) = delete;

  Rank rank() const override { return inner_->rank(); }
  void send(Rank to, Header header, std::span<const std::byte> data, SendDone done) override;
  void recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) override;
  void on_peer_down(std::function<void(Rank, Status)> f) override;
  /// Of the transport underneath: counts what it has moved, also what is still under way here.
  TransportStats stats() const override { return inner_->stats(); }
  /// Not from a callback.
  void shutdown() override;

 private:
  struct Way {
    Throttle link;
    std::int64_t free_at_ns = 0;
  };
  using Ways = std::map<Rank, Way>;
  /// When the last byte of a message that has just been moved is through.
  std::int64_t left_ns(Ways& ways, Rank peer, std::uint64_t bytes, std::int64_t& latency_ns);

  const std::vector<Throttle> links_;
  std::mutex mutex_;
  Ways out_, in_;                     ///< by peer; guarded by mutex_
  std::unique_ptr<Alarm> alarm_;
  std::unique_ptr<Transport> inner_;  ///< last: its callbacks use all of the above
};

}  // namespace troupe::comm
