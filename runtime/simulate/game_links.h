// The network interfaces and links of a place in the token game, and when messages are through them: LinkCost, in whole
// nanoseconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/route.h"
#include "placement/cost.h"

namespace troupe::runtime {

/// Virtual time is counted in whole nanoseconds, in 64 bits: a game of 285 years fits.
inline constexpr double game_s_max = 9e9;
/// A time beyond game_s_max is taken for it: no such game is played.
inline std::int64_t to_ns(double s) { return static_cast<std::int64_t>(std::llround(std::min(s, game_s_max) * 1e9)); }

/// A transfer of an exchange, at one of its ends.
struct GameMessage {
  Rank peer = 0;
  bool sent = false;                    ///< by this place: else received
  std::int32_t place = -1;              ///< where the peer is played
  std::size_t interface = 0, link = 0;  ///< what of GameLinks it passes, one after the other
  std::int64_t interface_ns = 0, link_ns = 0;
  std::int64_t latency_ns = 0;  ///< of what is received
  static bool before(const GameMessage& one, const GameMessage& other) {
    return std::pair(one.place, one.sent) < std::pair(other.place, other.sent);
  }
  /// Seconds of a message that meets no other one.
  double alone_s() const {
    return 1e-9 * (static_cast<double>(interface_ns) + static_cast<double>(link_ns) + static_cast<double>(latency_ns));
  }
};

/// What of a place carries messages: its interfaces and its links, each way by itself, one message after the other.
class GameLinks {
 public:
  /// `costs` outlives it.
  GameLinks(const CostModel& costs, Rank self) : costs_(costs), self_(self) {}

  /// The messages of an act on `route`, in its order; `place` is left to the caller.
  std::vector<GameMessage> messages(const comm::Route& route);
  /// Carries a message from `now_ns` on. Returns when it is through the link.
  std::int64_t carry(const GameMessage& message, std::int64_t now_ns);

  /// Interfaces and links, each way counted, by GameMessage::interface and GameMessage::link.
  std::size_t size() const { return free_at_ns_.size(); }
  std::int64_t free_at_ns(std::size_t i) const { return free_at_ns_[i]; }

 private:
  GameMessage message(Rank peer, bool sent, std::int64_t bytes);

  const CostModel& costs_;
  const Rank self_;
  std::vector<std::int64_t> free_at_ns_ = std::vector<std::int64_t>(4);  // the interfaces first
  /// By twice the peer, plus 1 on the way out; ascending: few of many ranks are peers.
  std::vector<std::pair<std::int64_t, std::size_t>> links_;
};

}  // namespace troupe::runtime
