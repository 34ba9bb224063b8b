// The matching table that every transport shares: posted receives meet announced messages.
//
// Whichever of a receive and its message comes first waits here; both carry the same (from, Key). The
// transport's handle of a waiting message (a descriptor, bytes, a sender's buffer) is a `token` that the
// table never looks at. Every header that comes from outside passes through admit() first.
//
//   MA-1  (pairs) a pair meets once; equal keys from one peer meet in the order in which they arrived;
//   MA-2  (garbage) arbitrary bytes never get past admit(): they are counted, and logged once per peer;
//   MA-3  (backlog) at most `announced_max` messages wait: more means a broken peer, and announce() reports it.
//
// A plain class without threads: owned by the transport's progress thread or by the simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "comm/transport.h"

namespace troupe::comm {

/// A receive that was posted.
struct Posted {
  Rank from = 0;
  Key key;
  std::span<std::byte> into;
  RecvDone done;
};

/// A message whose header has arrived; `token` is its transport's handle.
struct Announced {
  Rank from = 0;
  Header header;
  std::uint64_t token = 0;
};

class MatchTable {
 public:
  struct Limits {
    std::size_t announced_max = std::size_t{1} << 20;
    std::uint64_t bytes_max = std::uint64_t{1} << 40;  ///< largest payload a header may claim
  };

  MatchTable(std::uint64_t job, std::uint32_t generation) : MatchTable(job, generation, Limits()) {}
  MatchTable(std::uint64_t job, std::uint32_t generation, Limits limits)
      : job_(job), generation_(generation), limits_(limits) {}

  /// Returns the header in `bytes`, if it is one of this job and generation; otherwise it is counted as stale
  /// (TR-3 generations) or as garbage (MA-2) and must be dropped. `from` only names the peer in the log.
  std::optional<Header> admit(Rank from, std::span<const std::byte> bytes);
  /// Counts and logs (once per peer) a message that its transport has found to make no sense.
  void drop_garbage(Rank from, const char* why);

  /// A message has arrived. Returns its receive if one was posted; otherwise the message waits. Where the table has no
  /// room (MA-3), sets `full`: the message does not wait, and the caller must give up its sender.
  std::optional<Posted> announce(const Announced& message, bool& full);
  /// A receive is posted. Returns its message if that waits; otherwise the receive waits, and `receive` is moved from.
  std::optional<Announced> post(Posted& receive);

  /// Takes out the receives and messages of one peer, or of all peers.
  struct Taken {
    std::vector<Posted> posted;
    std::vector<Announced> announced;
  };
  Taken take(Rank from);
  Taken take_all();

  std::size_t posted() const { return posted_.size(); }
  std::size_t announced() const { return announced_.size(); }
  std::uint64_t announced_most() const { return announced_most_; }
  std::uint64_t stale_dropped() const { return stale_dropped_; }
  std::uint64_t garbage_dropped() const { return garbage_dropped_; }

 private:
  /// What a receive and its message have in common (TR-2 matching).
  struct MatchKey {
    Rank from;
    std::uint32_t channel, part, sequence;
    auto operator<=>(const MatchKey&) const = default;
  };
  static MatchKey match_key(Rank from, const Key& key) { return {from, key.channel, key.part, key.sequence}; }

  std::uint64_t job_;
  std::uint32_t generation_;
  Limits limits_;
  std::multimap<MatchKey, Posted> posted_;
  std::multimap<MatchKey, Announced> announced_;
  std::uint64_t announced_most_ = 0, stale_dropped_ = 0, garbage_dropped_ = 0;
  std::set<Rank> logged_;
};

/// Returns the key by which the table finds the receive of a message.
inline Key key_of(const Header& header) { return {header.channel, header.part, header.sequence}; }

/// Whether a message fits a receive: equal sizes, or a ragged one that is shorter. Otherwise `invalid`,
/// naming the message and both sizes.
Status check_size(Rank from, const Header& header, std::size_t into_bytes);

}  // namespace troupe::comm
