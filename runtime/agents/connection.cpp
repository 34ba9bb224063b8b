#include "runtime/agents/connection.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "devices/base/check.h"
#include "devices/process/poll_set.h"

namespace troupe::runtime {

Connection::~Connection() {
  if (fd_ >= 0) ::close(fd_);
}

short Connection::events() const {
  const bool more = link_ ? link_->unsent() : !out_.empty();
  return static_cast<short>(more ? POLLIN | POLLOUT : POLLIN);
}

Expected<bool> Connection::shake_hands() {
  for (;;) {
    const auto more = handshake_.take_out();
    out_.insert(out_.end(), more.begin(), more.end());
    while (!out_.empty()) {
      const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n <= 0) return Status(Code::unavailable, std::strerror(errno));
      out_.erase(out_.begin(), out_.begin() + n);
    }
    const std::size_t awaits = handshake_.awaits();
    if (awaits == 0) return out_.empty();
    in_.reserve(awaits);
    const std::size_t had = in_.size();
    in_.resize(awaits);  // and no more: what follows the handshake is sealed
    const ssize_t n = ::recv(fd_, in_.data() + had, awaits - had, MSG_DONTWAIT);
    in_.resize(had + (n > 0 ? static_cast<std::size_t>(n) : 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n == 0)
      return Status(Code::unavailable,
                    "the peer has closed the connection in the handshake: it may have another token");
    if (n < 0) return Status(Code::unavailable, std::strerror(errno));
    if (in_.size() < awaits) continue;
    TROUPE_TRY(handshake_.take(in_));
    in_.clear();
  }
}

Status Connection::serve(std::deque<std::vector<std::byte>>& messages) {
  if (!link_) {
    TROUPE_ASSIGN(const bool done, shake_hands());
    if (!done) return {};
    link_ = std::make_unique<SealedLink>(std::exchange(fd_, -1), handshake_.keys());
  }
  TROUPE_TRY(link_->flush());
  return link_->receive(messages);
}

Status Connection::post(std::span<const std::byte> message) {
  REQUIRE(link_ != nullptr);
  return link_->post(message);
}

namespace {

Expected<std::pair<std::string, std::string>> host_and_port(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon), port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string::npos) host.clear();  // an address of IPv6 without its brackets
  const bool number = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  if (host.empty() || !number || std::stoi(port) > 65'535)
    return invalid("'" + address + "': expected HOST:PORT, such as node1:7070 or [fd00::1]:7070");
  return std::pair(std::move(host), std::move(port));
}

/// A socket for the first address of a host, from number `first` on, with which `use` succeeds. Error: that of the last
/// one.
template <class Use>
Expected<int> socket_for(const std::string& address, int flags, Code no_host, std::size_t first, Use use) {
  TROUPE_ASSIGN(const auto named, host_and_port(address));
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  if (const int e = ::getaddrinfo(named.first.c_str(), named.second.c_str(), &hints, &found); e != 0)
    return Status(no_host, address + ": " + ::gai_strerror(e));
  Status last(no_host, address + ": the host has no address");
  std::vector<const addrinfo*> all;
  for (const addrinfo* a = found; a; a = a->ai_next) all.push_back(a);
  if (!all.empty()) std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first % all.size()), all.end());
  for (const addrinfo* a : all) {
    const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd >= 0 && use(fd, *a)) {
      ::freeaddrinfo(found);
      return fd;
    }
    last = Status(no_host, address + ": " + std::strerror(errno));
    if (fd >= 0) ::close(fd);
  }
  ::freeaddrinfo(found);
  return last;
}

void send_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  // A peer whose host is gone sends nothing: beats tell so between a job and its agents, and this before they have met.
  const int idle_s = 10, every_s = 5, times = 4, unanswered_ms = 30'000;
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

std::string text_of(const sockaddr_storage& at, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&at), size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return at.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace

Status check_address(const std::string& address) { return host_and_port(address).status(); }

Expected<int> connect_to(const std::string& address, std::size_t attempt) {
  return socket_for(address, 0, Code::unavailable, attempt, [](int fd, const addrinfo& a) {
    send_at_once(fd);
    return ::connect(fd, a.ai_addr, a.ai_addrlen) == 0 || errno == EINPROGRESS;
  });
}

Status check_own_address(const std::string& address) {
  TROUPE_ASSIGN(const auto named, host_and_port(address));
  const bool is_v6 = named.first.find(':') != std::string::npos;
  // A name may become known later, as that of a pod which is not ready yet.
  if (!is_v6 && named.first.find_first_not_of("0123456789.") != std::string::npos) return {};
  const auto bound = socket_for((is_v6 ? "[" + named.first + "]" : named.first) + ":0", AI_PASSIVE, Code::invalid, 0,
                                [](int fd, const addrinfo& a) { return ::bind(fd, a.ai_addr, a.ai_addrlen) == 0; });
  if (!bound.ok()) return invalid("'" + address + "' is no address of this machine: " + bound.status().message());
  ::close(*bound);
  return {};
}

Expected<int> listen_at(const std::string& address) {
  return socket_for(address, AI_PASSIVE, Code::io, 0, [](int fd, const addrinfo& a) {
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    send_at_once(fd);  // what it accepts inherits that
    constexpr int waits_max =
        1024;  // the system drops what comes when they wait, and a peer tries again after a second
    return ::bind(fd, a.ai_addr, a.ai_addrlen) == 0 && ::listen(fd, waits_max) == 0;
  });
}

std::optional<int> take_connection(int listening) {
  PollSet set;
  bool waits = false;
  set.add(listening, POLLIN, [&waits](short happened) { waits = happened != 0; });
  if (set.wait(0)) set.serve();
  if (!waits) return -1;  // accept() lacks a descriptor even where it has nothing to take
  const int fd = ::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) return std::nullopt;
  return fd;
}

std::string peer_of(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return "a peer that has gone";
  return text_of(at, size);
}

std::string address_of(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return "an unknown address";
  return text_of(at, size);
}

}  // namespace troupe::runtime
