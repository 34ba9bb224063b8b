// ControlChannel: how a conductor writes one control channel. The session may send "go" or "commit" at any time;
// a token waits here until a slot of its channel is free. Not thread-safe.
#pragma once

#include <cstring>
#include <deque>
#include <functional>

#include "actors/actor_core.h"
#include "actors/executor.h"

namespace troupe::actors {

class ControlChannel {
 public:
  /// A channel of `slots` slots, which lie in `memory`, with `readers` inside the place.
  ControlChannel(std::string name, std::int32_t slots, std::vector<Reader> readers, PortMemory memory)
      : ports_({}, {{std::move(name), slots, 1}}), readers_(std::move(readers)), memory_(memory) {}

  /// Queues a token with its payload, then calls `send` for each reader of each token that has a free slot, into which
  /// the payload is copied. REQUIRES: the payload is at most `memory.slot_bytes`.
  void push(const Token& token, std::vector<std::byte> payload,
            const std::function<void(const Reader&, const Token&)>& send) {
    waiting_.push_back({token, std::move(payload)});
    flush(send);
  }
  /// A reader has finished with `slot`; then as push.
  void ack(std::int32_t slot, const std::function<void(const Reader&, const Token&)>& send) {
    ports_.ack(0, slot);
    flush(send);
  }
  /// Tokens that wait for a free slot.
  std::size_t waiting() const { return waiting_.size(); }
  bool first_reader(const Reader& r) const {
    return !readers_.empty() && readers_[0].actor == r.actor && readers_[0].port == r.port;
  }

 private:
  void flush(const std::function<void(const Reader&, const Token&)>& send) {
    while (!waiting_.empty() && ports_.free_slots(0) > 0) {
      auto [token, payload] = std::move(waiting_.front());
      waiting_.pop_front();
      token.slot = ports_.take_slot(0);
      if (!payload.empty()) std::memcpy(memory_.at(token.slot), payload.data(), payload.size());
      token.sequence = ports_.publish(0, token.slot, static_cast<std::int32_t>(readers_.size()));
      for (const auto& r : readers_) send(r, token);
    }
  }

  Ports ports_;
  std::vector<Reader> readers_;
  PortMemory memory_;
  std::deque<std::pair<Token, std::vector<std::byte>>> waiting_;
};

}  // namespace troupe::actors
