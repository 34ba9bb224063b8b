// Every call back to the user of the transport, counted; and none of them after shutdown (TR-4 shutdown).
//
// Owned by the progress thread, except on_peer_down() and the counters, which any thread may use.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "comm/match.h"
#include "comm/transport.h"

namespace troupe::comm::ucx {

/// Written by the progress thread, read by any.
struct Counters {
  std::atomic<std::uint64_t> sent_messages{0}, sent_bytes{0}, received_messages{0}, received_bytes{0};
  std::atomic<std::uint64_t> stale{0}, unexpected_max{0}, garbage{0};
};

class Callbacks {
 public:
  /// Sets the function to call for each dead peer. From any thread.
  void on_peer_down(std::function<void(Rank, Status)> f);

  /// A send has ended.
  void sent(const SendDone& done, std::size_t bytes, const Status& status);
  /// A receive has ended. Without a message (`status` says why) the header has only the fields of the receive's key.
  void received(const RecvDone& done, const Header& header, const Status& status);
  void peer_down(Rank rank, const Status& why);
  /// No function of the user is called after this call.
  void silence() { quiet_ = true; }

  /// Copies the table's counts of dropped messages into `counters`.
  void count_drops(const MatchTable& table);

  Counters counters;

 private:
  bool quiet_ = false;
  std::mutex mutex_;
  std::function<void(Rank, Status)> peer_down_;  ///< guarded by mutex_
};

}  // namespace troupe::comm::ucx
