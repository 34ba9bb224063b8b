#include "comm/ucx/callbacks.h"

#include <utility>

namespace troupe::comm::ucx {

void Callbacks::on_peer_down(std::function<void(Rank, Status)> f) {
  std::lock_guard lock(mutex_);
  peer_down_ = std::move(f);
}

void Callbacks::sent(const SendDone& done, std::size_t bytes, const Status& status) {
  if (status.ok()) {
    counters.sent_messages.fetch_add(1, std::memory_order_relaxed);
    counters.sent_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  if (!quiet_ && done) done(status);
}

void Callbacks::received(const RecvDone& done, const Header& header, const Status& status) {
  if (status.ok()) {
    counters.received_messages.fetch_add(1, std::memory_order_relaxed);
    counters.received_bytes.fetch_add(header.bytes, std::memory_order_relaxed);
  }
  if (!quiet_ && done) done(status, header);
}

void Callbacks::peer_down(Rank rank, const Status& why) {
  const auto report = [this] {  // called without the mutex: it may call back into the transport
    std::lock_guard lock(mutex_);
    return peer_down_;
  }();
  if (!quiet_ && report) report(rank, why);
}

void Callbacks::count_drops(const MatchTable& table) {
  counters.stale.store(table.stale_dropped(), std::memory_order_relaxed);
  counters.garbage.store(table.garbage_dropped(), std::memory_order_relaxed);
}

}  // namespace troupe::comm::ucx
