// The ports and links of a place in the token game, and when messages are through them: LinkCost, in whole nanoseconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "comm/route.h"
#include "placement/cost.h"

namespace troupe::runtime {

/// Virtual time is counted in whole nanoseconds, in 64 bits: a game of 285 years fits.
inline constexpr double game_s_max = 9e9;
/// A time beyond game_s_max is taken for it: no such game is played.
inline std::int64_t to_ns(double s) { return static_cast<std::int64_t>(std::llround(std::min(s, game_s_max) * 1e9)); }

/// What an act of an exchange sends to another rank, or gets from it.
struct GameMessage {
  Rank peer = 0;
  std::int32_t place = -1;         ///< where the peer is played
  std::size_t port = 0, link = 0;  ///< the ways of GameLinks that it goes through, one after the other
  std::int64_t port_ns = 0, link_ns = 0, latency_ns = 0;
  /// Seconds of a message that meets no other one.
  double alone_s() const {
    return 1e-9 * (static_cast<double>(port_ns) + static_cast<double>(link_ns) + static_cast<double>(latency_ns));
  }
};

/// The ports and links of a place: out of it and into it, as ways that carry one message after the other. Each end of a
/// message occupies its own ways.
class GameLinks {
 public:
  /// `costs` outlives it.
  GameLinks(const CostModel& costs, Rank self) : costs_(costs), self_(self) {}

  /// The messages of an act on `route`: at most one each way for each other rank; `place` is left to the caller.
  std::vector<GameMessage> messages(const comm::Route& route);
  /// Carries a message from `now_ns` on. Returns when it has been sent, or delivered.
  std::int64_t carry(const GameMessage& message, std::int64_t now_ns);

  std::size_t ways() const { return free_at_ns_.size(); }
  std::int64_t free_at_ns(std::size_t way) const { return free_at_ns_[way]; }

 private:
  const CostModel& costs_;
  const Rank self_;
  std::vector<std::int64_t> free_at_ns_ = std::vector<std::int64_t>(4);  // the ports first
  std::map<std::pair<Rank, bool>, std::size_t> links_;                   // by peer and whether it is the way out
};

}  // namespace troupe::runtime
