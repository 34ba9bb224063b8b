// RankedTransport: a simulated network has an end for each place; a generation names places by the ranks of its plan.
// Internal to the simulation.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport.h"

namespace troupe::runtime {

class RankedTransport final : public comm::Transport {
 public:
  /// `inner`: the end of the rank.
  RankedTransport(std::unique_ptr<comm::Transport> inner, Rank rank) : inner_(std::move(inner)), rank_(rank) {}
  /// The ends of all ranks. Before the first message.
  void connect(std::vector<Rank> ends) { ends_ = std::move(ends); }

  Rank rank() const override { return rank_; }
  void send(Rank to, comm::Header header, std::span<const std::byte> data, comm::SendDone done) override {
    inner_->send(end_of(to), header, data, std::move(done));
  }
  void recv(Rank from, comm::Key key, std::span<std::byte> into, comm::RecvDone done) override {
    inner_->recv(end_of(from), key, into, std::move(done));
  }
  void on_peer_down(std::function<void(Rank, Status)> f) override {
    inner_->on_peer_down([this, f = std::move(f)](Rank end, Status s) {
      const auto it = std::find(ends_.begin(), ends_.end(), end);
      if (it != ends_.end()) f(static_cast<Rank>(it - ends_.begin()), std::move(s));
    });
  }
  comm::TransportStats stats() const override { return inner_->stats(); }
  void shutdown() override { inner_->shutdown(); }
  void abort() override { inner_->abort(); }

 private:
  Rank end_of(Rank rank) const { return ends_[static_cast<std::size_t>(rank)]; }

  const std::unique_ptr<comm::Transport> inner_;
  const Rank rank_;
  std::vector<Rank> ends_;
};

}  // namespace troupe::runtime
