// Handshake: two ends of a connection prove to each other that they have the same token, and agree on keys, before
// anything else that comes is read. Bytes in, bytes out: no socket, no clock.
//
// Each end sends 64 bytes: a fresh public key (X25519) and a fresh random number. The two openings, first that of the
// end that joins, are the transcript. Then the end that joins proves that it has the token, and after it the other end:
//
//   secret = BLAKE2b-512(key: token; X25519(own secret key, peer's public key), transcript)
//   proof  = BLAKE2b-256(key: first half of the secret; who proves)
//   key    = BLAKE2b-256(key: second half of the secret; who sends)    of what is sent afterwards (sealed_link.h)
//
//   HS-1  (challenge) a proof is of this connection: what was heard on another one proves nothing;
//   HS-2  (who asks proves first) the end that has accepted proves nothing to one that has not proved the token, and
//         each end says who it is: neither can be handed its own proof;
//   HS-3  (fixed size) a message of a handshake has the size that its turn has. Nothing that comes chooses how much is
//         kept, or what is decoded;
//   HS-4  (past secrets) who learns the token later cannot read what was sent before.
//
// The Noise protocol NNpsk0 has the same properties (T. Perrin, 2018) but for HS-2; libsodium has no Noise.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/agents/token.h"

namespace troupe::runtime {

/// Of what one end sends, and of what it receives.
struct SessionKeys {
  std::array<std::byte, 32> sends{}, receives{};
};

class Handshake {
 public:
  enum class End : std::uint8_t { joins, accepts };
  Handshake(End end, const TokenKey& token);
  ~Handshake();  ///< wipes the secrets
  Handshake(const Handshake&) = delete;

  /// Bytes to send now, each once.
  std::vector<std::byte> take_out() { return std::exchange(out_, {}); }
  /// How many bytes take() needs next; 0: the handshake is done.
  std::size_t awaits() const;
  /// What the peer has sent. Error: it has another token, or is no such peer (`invalid`; of the end that joins
  /// `unavailable`: the run may listen there later). Nothing may be sent to it any more. REQUIRES: as many bytes as
  /// awaits() says, not 0.
  Status take(std::span<const std::byte> bytes);
  /// REQUIRES: done.
  SessionKeys keys() const;

 private:
  static constexpr std::size_t opening_bytes = 64, proof_bytes = 32;
  using Proof = std::array<std::byte, proof_bytes>;
  Status wrong(const char* of_who_joins) const;
  Status take_opening(std::span<const std::byte> bytes);
  Proof proof_of(End end) const;
  void send(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

  const End end_;
  TokenKey token_;
  std::array<std::byte, 32> secret_key_{};
  std::array<std::byte, opening_bytes> own_{};
  std::array<std::byte, 64> secret_{};
  std::vector<std::byte> out_;
  enum class Turn : std::uint8_t { opening, proof, done } awaits_ = Turn::opening;
};

}  // namespace troupe::runtime
