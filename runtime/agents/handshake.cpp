#include "runtime/agents/handshake.h"

#include <algorithm>
#include <string_view>

#include "devices/base/check.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

namespace {

template <std::size_t N>
std::array<std::byte, N> hash(std::span<const std::byte> key, std::span<const std::byte> text) {
  std::array<std::byte, N> out;
  crypto_generichash(raw(out.data()), N, raw(text.data()), text.size(), raw(key.data()), key.size());
  return out;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr std::size_t key_bytes = crypto_scalarmult_BYTES;
static_assert(key_bytes == 32 && crypto_scalarmult_SCALARBYTES == 32);

}  // namespace

Handshake::Handshake(End end, const TokenKey& token) : end_(end), token_(token) {
  ASSERT(::sodium_init() >= 0);
  randombytes_buf(secret_key_.data(), secret_key_.size());
  crypto_scalarmult_base(raw(own_.data()), raw(secret_key_.data()));
  randombytes_buf(own_.data() + key_bytes, own_.size() - key_bytes);
  send(own_);
}

Handshake::~Handshake() {
  sodium_memzero(token_.data(), token_.size());
  sodium_memzero(secret_key_.data(), secret_key_.size());
  sodium_memzero(secret_.data(), secret_.size());
}

std::size_t Handshake::awaits() const {
  switch (awaits_) {
    case Turn::opening: return opening_bytes;
    case Turn::proof: return proof_bytes;
    case Turn::done: break;
  }
  return 0;
}

Handshake::Proof Handshake::proof_of(End end) const {
  return hash<proof_bytes>(std::span(secret_).first(32), bytes_of(end == End::joins ? "joins" : "accepts"));
}

Status Handshake::wrong(const char* of_who_joins) const {
  // A run proves nothing to an end that has not proved the token (HS-2 who asks proves first): this may be anything.
  if (end_ == End::joins)
    return Status(Code::unavailable, "what listens there is no run of Troupe, or one with another token");
  return invalid(of_who_joins);
}

Status Handshake::take(std::span<const std::byte> bytes) {
  REQUIRE(awaits() > 0 && bytes.size() == awaits(), awaits(), bytes.size());
  if (awaits_ == Turn::opening) return take_opening(bytes);
  const Proof proof = proof_of(end_ == End::joins ? End::accepts : End::joins);
  if (sodium_memcmp(bytes.data(), proof.data(), proof.size()) != 0) return wrong("the peer has another token");
  if (end_ == End::accepts) send(proof_of(end_));
  awaits_ = Turn::done;
  return {};
}

Status Handshake::take_opening(std::span<const std::byte> peer) {
  std::array<std::byte, key_bytes + 2 * opening_bytes> text;  // what both know, then the transcript
  // A public key of small order gives the same for every secret key.
  if (crypto_scalarmult(raw(text.data()), raw(secret_key_.data()), raw(peer.data())) != 0)
    return wrong("the peer has sent no public key");
  const std::span<const std::byte> own = own_;
  auto at = text.begin() + key_bytes;
  for (const auto part : end_ == End::joins ? std::array{own, peer} : std::array{peer, own})
    at = std::copy(part.begin(), part.end(), at);
  secret_ = hash<64>(token_, text);
  sodium_memzero(text.data(), text.size());
  if (end_ == End::joins) send(proof_of(end_));
  awaits_ = Turn::proof;
  return {};
}

SessionKeys Handshake::keys() const {
  REQUIRE(awaits_ == Turn::done);
  const auto key = std::span(secret_).last(32);
  SessionKeys keys{hash<32>(key, bytes_of("joins sends")), hash<32>(key, bytes_of("accepts sends"))};
  if (end_ == End::accepts) std::swap(keys.sends, keys.receives);
  return keys;
}

}  // namespace troupe::runtime
