// CutTransport: a transport whose way to some peers can be cut, as a network does that drops every packet: no message
// passes, and neither end learns of it. For drills with real processes.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "comm/transport.h"

namespace troupe::comm {

/// Cuts what begins from then on: a message that is under way may still come through. The other end sees a peer that
/// announces nothing and takes nothing.
class CutTransport final : public Transport {
 public:
  explicit CutTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  /// No message to or from this peer begins any more. Thread-safe.
  void cut(Rank peer) {
    std::lock_guard lock(mutex_);
    cut_.insert(peer);
  }

  Rank rank() const override { return inner_->rank(); }
  void send(Rank to, Header header, std::span<const std::byte> data, SendDone done) override {
    if (!is_cut(to)) inner_->send(to, header, data, std::move(done));
  }
  void recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) override {
    if (!is_cut(from)) inner_->recv(from, key, into, std::move(done));
  }
  void on_peer_down(std::function<void(Rank, Status)> f) override { inner_->on_peer_down(std::move(f)); }
  TransportStats stats() const override { return inner_->stats(); }
  void shutdown() override { inner_->shutdown(); }
  void abort() override { inner_->abort(); }

 private:
  bool is_cut(Rank peer) {
    std::lock_guard lock(mutex_);
    return cut_.count(peer) > 0;
  }

  std::unique_ptr<Transport> inner_;
  std::mutex mutex_;
  std::set<Rank> cut_;
};

}  // namespace troupe::comm
