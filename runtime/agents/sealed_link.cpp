#include "runtime/agents/sealed_link.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "devices/base/check.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

namespace {

constexpr std::size_t header_bytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
constexpr std::size_t sealed_more = crypto_secretstream_xchacha20poly1305_ABYTES;
using Size = std::uint32_t;  // of a message as it travels, little end first; authenticated with it
static_assert(crypto_secretstream_xchacha20poly1305_KEYBYTES == 32);

std::array<std::byte, sizeof(Size)> encode(Size size) {
  std::array<std::byte, sizeof(Size)> out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(size >> (8 * i));
  return out;
}
Size decode(const std::byte* at) {
  Size size = 0;
  for (std::size_t i = 0; i < sizeof size; ++i) size |= std::to_integer<Size>(at[i]) << (8 * i);
  return size;
}

}  // namespace

struct Seal::State {
  crypto_secretstream_xchacha20poly1305_state stream;
  std::array<std::byte, header_bytes> header;
  bool begun = false;  // the header was sent
};

Seal::Seal(const std::array<std::byte, 32>& key) : state_(std::make_unique<State>()) {
  ASSERT(::sodium_init() >= 0);
  crypto_secretstream_xchacha20poly1305_init_push(&state_->stream, raw(state_->header.data()), raw(key.data()));
}

Seal::~Seal() { sodium_memzero(&state_->stream, sizeof state_->stream); }

void Seal::seal(std::span<const std::byte> message, std::vector<std::byte>& out) {
  REQUIRE(message.size() <= sealed_bytes_max, message.size());
  if (!std::exchange(state_->begun, true)) out.insert(out.end(), state_->header.begin(), state_->header.end());
  const auto size = encode(static_cast<Size>(message.size() + sealed_more));
  out.insert(out.end(), size.begin(), size.end());
  const std::size_t at = out.size();
  out.resize(at + message.size() + sealed_more);
  crypto_secretstream_xchacha20poly1305_push(&state_->stream, raw(out.data() + at), nullptr, raw(message.data()),
                                             message.size(), raw(size.data()), size.size(), 0);
}

struct Unseal::State {
  crypto_secretstream_xchacha20poly1305_state stream;
  std::array<std::byte, 32> key;
  bool begun = false;  // the header has come
  std::vector<std::byte> buffer;
};

Unseal::Unseal(const std::array<std::byte, 32>& key) : state_(std::make_unique<State>()) { state_->key = key; }

Unseal::~Unseal() {
  sodium_memzero(&state_->stream, sizeof state_->stream);
  sodium_memzero(state_->key.data(), state_->key.size());
}

Status Unseal::take(std::span<const std::byte> bytes, std::deque<std::vector<std::byte>>& messages) {
  auto& buffer = state_->buffer;
  buffer.insert(buffer.end(), bytes.begin(), bytes.end());
  std::size_t at = 0;
  if (!state_->begun) {
    if (buffer.size() < header_bytes) return {};
    if (crypto_secretstream_xchacha20poly1305_init_pull(&state_->stream, raw(buffer.data()), raw(state_->key.data())) !=
        0)
      return invalid("sealed link: the peer's stream has no beginning");
    state_->begun = true;
    at = header_bytes;
  }
  while (buffer.size() - at >= sizeof(Size)) {
    const Size size = decode(buffer.data() + at);
    if (size < sealed_more || size - sealed_more > sealed_bytes_max)
      return invalid(fmt::format("sealed link: a message of {} bytes; the most is {}", size, sealed_bytes_max));
    if (buffer.size() - at - sizeof(Size) < size) break;
    std::vector<std::byte> message(size - sealed_more);
    if (crypto_secretstream_xchacha20poly1305_pull(&state_->stream, raw(message.data()), nullptr, nullptr,
                                                   raw(buffer.data() + at + sizeof(Size)), size,
                                                   raw(buffer.data() + at), sizeof(Size)) != 0)
      return invalid("sealed link: a message that the peer has not sealed as its next one");
    messages.push_back(std::move(message));
    at += sizeof(Size) + size;
  }
  buffer.erase(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(at));
  return {};
}

SealedLink::~SealedLink() {
  if (fd_ >= 0) ::close(fd_);
}

Status SealedLink::post(std::span<const std::byte> message) {
  if (message.size() > sealed_bytes_max)
    return invalid(fmt::format("sealed link: a message of {} bytes; the most is {}", message.size(), sealed_bytes_max));
  seal_.seal(message, out_);
  return flush();
}

Status SealedLink::flush() {
  while (unsent()) {
    const ssize_t n = ::send(fd_, out_.data() + at_, out_.size() - at_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      constexpr std::size_t kept_max = 1 << 20;  // of what was sent: a backlog may never end
      if (at_ > kept_max) out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(std::exchange(at_, 0)));
      return {};
    }
    if (n <= 0) return Status(Code::unavailable, std::string("the connection: ") + std::strerror(errno));
    at_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  at_ = 0;
  return {};
}

Status SealedLink::receive(std::deque<std::vector<std::byte>>& messages) {
  ssize_t n;
  do n = ::recv(fd_, chunk_.data(), chunk_.size(), MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
  if (n == 0) return Status(Code::unavailable, "the other end has closed the connection");
  if (n < 0) return Status(Code::unavailable, std::string("the connection: ") + std::strerror(errno));
  return unseal_.take(std::span<const std::byte>(chunk_).first(static_cast<std::size_t>(n)), messages);
}

}  // namespace troupe::runtime
