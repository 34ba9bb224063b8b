// Connection: a TCP connection between a job and an agent: a handshake, then sealed messages.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/agents/agent_link.h"
#include "runtime/agents/handshake.h"
#include "runtime/agents/sealed_link.h"

namespace troupe::runtime {

/// Owns the descriptor, which must not block. Not thread-safe.
class Connection final : public AgentLink {
 public:
  Connection(int fd, Handshake::End end, const TokenKey& token)
      : fd_(fd), handshake_(end, token), out_(handshake_.take_out()) {}
  ~Connection() override;
  Connection(const Connection&) = delete;
  int fd() const override { return link_ ? link_->fd() : fd_; }
  /// What to poll for.
  short events() const override;
  /// The peer has proved that it has the token.
  bool open() const { return link_ != nullptr; }
  /// Reads and writes what the socket lets it, and appends whole messages. Error (`unavailable`): the connection has
  /// closed; `invalid`: the peer has another token, or speaks otherwise. Then the connection is of no use any more.
  Status serve(std::deque<std::vector<std::byte>>& messages) override;
  /// Sends a message, or queues it. Error (`unavailable`): the connection has closed. REQUIRES: open().
  Status post(std::span<const std::byte> message) override;

 private:
  /// Whether the handshake is over; one that waits for bytes is not.
  Expected<bool> shake_hands();

  int fd_;  // until the link has it
  Handshake handshake_;
  std::vector<std::byte> out_, in_;  // of the handshake
  std::unique_ptr<SealedLink> link_;
};

/// A socket that is being connected with HOST:PORT ("[::1]:70" for addresses of IPv6); it becomes writable when it is,
/// or cannot be. A host may have several addresses: each attempt takes the next one. Error (`invalid`): that is no host
/// and port; (`unavailable`): there is no such host.
Expected<int> connect_to(const std::string& address, std::size_t attempt = 0);
/// Error: no HOST:PORT.
Status check_address(const std::string& address);
/// Error: no HOST:PORT, or an address in digits at which this machine cannot listen, be the port free or taken.
Status check_own_address(const std::string& address);
/// A socket that listens at HOST:PORT. Error (`invalid`): that is no host and port; (`io`): of the system.
Expected<int> listen_at(const std::string& address);
/// Takes a connection that waits at a socket that listens and does not block; -1: none waits. Nullopt: one does, and
/// this process, or the system, has no file descriptor or memory for it (errno says which).
std::optional<int> take_connection(int listening);
/// "10.0.0.7:51342".
std::string peer_of(int fd);
/// HOST:PORT of a socket of this end.
std::string address_of(int fd);

}  // namespace troupe::runtime
