// SealedLink: messages over a stream socket, encrypted and authenticated with the keys that a handshake has agreed on
// (libsodium's secretstream: XChaCha20-Poly1305). A message that was changed, left out, repeated, or moved ends the
// link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "devices/base/status.h"
#include "runtime/agents/handshake.h"

namespace troupe::runtime {

/// What seals, and what opens: bytes in, bytes out.
class Seal {
 public:
  explicit Seal(const std::array<std::byte, 32>& key);
  ~Seal();
  Seal(const Seal&) = delete;
  /// Appends a message, sealed, to `out`.
  void seal(std::span<const std::byte> message, std::vector<std::byte>& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Unseal {
 public:
  explicit Unseal(const std::array<std::byte, 32>& key);
  ~Unseal();
  Unseal(const Unseal&) = delete;
  /// Takes bytes as they come, and appends the messages that are whole. Error (`invalid`): a message is larger than
  /// sealed_bytes_max, or not what the peer has sealed as its next one.
  Status take(std::span<const std::byte> bytes, std::deque<std::vector<std::byte>>& messages);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Largest message: a control message (runtime/session/control.h) and what an agent says about it.
inline constexpr std::uint32_t sealed_bytes_max = (256u << 20) + 4096;

/// Owns the descriptor, which does not block. Not thread-safe.
class SealedLink {
 public:
  SealedLink(int fd, const SessionKeys& keys) : fd_(fd), seal_(keys.sends), unseal_(keys.receives) {}
  ~SealedLink();
  SealedLink(const SealedLink&) = delete;
  int fd() const { return fd_; }
  /// Queues a message and writes what the socket takes; flush() writes more. Error (`unavailable`): the peer is gone;
  /// (`invalid`): more than sealed_bytes_max, and nothing is sent.
  Status post(std::span<const std::byte> message);
  Status flush();
  bool unsent() const { return at_ < out_.size(); }
  /// Reads what has come, and appends whole messages. Error (`unavailable`): the link has closed; `invalid`, as Unseal.
  Status receive(std::deque<std::vector<std::byte>>& messages);

 private:
  int fd_;
  Seal seal_;
  Unseal unseal_;
  std::vector<std::byte> out_, chunk_ = std::vector<std::byte>(std::size_t{1} << 16);
  std::size_t at_ = 0;  // of out_: what the socket has taken
};

}  // namespace troupe::runtime
