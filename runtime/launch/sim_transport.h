// RankedTransport: a simulated network has an end for each place; a generation names places by the ranks of its plan.
// Internal to sim_cluster.cpp.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport.h"
#include "runtime/elastic/place_id.h"

namespace troupe::runtime {

class RankedTransport final : public comm::Transport {
 public:
  /// `inner`: the end of places[rank].
  RankedTransport(std::unique_ptr<comm::Transport> inner, Rank rank, std::vector<PlaceId> places)
      : inner_(std::move(inner)), rank_(rank), places_(std::move(places)) {}

  Rank rank() const override { return rank_; }
  void send(Rank to, comm::Header header, std::span<const std::byte> data, comm::SendDone done) override {
    inner_->send(end_of(to), header, data, std::move(done));
  }
  void recv(Rank from, comm::Key key, std::span<std::byte> into, comm::RecvDone done) override {
    inner_->recv(end_of(from), key, into, std::move(done));
  }
  void on_peer_down(std::function<void(Rank, Status)> f) override {
    inner_->on_peer_down([this, f = std::move(f)](Rank end, Status s) {
      const auto it = std::find(places_.begin(), places_.end(), PlaceId{end});
      if (it != places_.end()) f(static_cast<Rank>(it - places_.begin()), std::move(s));
    });
  }
  comm::TransportStats stats() const override { return inner_->stats(); }
  void shutdown() override { inner_->shutdown(); }
  void abort() override { inner_->abort(); }

 private:
  Rank end_of(Rank rank) const { return static_cast<Rank>(places_[static_cast<std::size_t>(rank)]); }

  const std::unique_ptr<comm::Transport> inner_;
  const Rank rank_;
  const std::vector<PlaceId> places_;
};

}  // namespace troupe::runtime
