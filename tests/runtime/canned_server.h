// A server of HTTP that answers the same to each request, and closes the connection.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

namespace troupe::test {

class CannedServer {
 public:
  explicit CannedServer(std::string answer) : answer_(std::move(answer)) {
    listens_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    REQUIRE(::bind(listens_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listens_, 16) == 0);
    REQUIRE(::getsockname(listens_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    endpoint_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~CannedServer() {
    ends_ = true;
    thread_.join();
    ::close(listens_);
  }
  CannedServer(const CannedServer&) = delete;
  CannedServer& operator=(const CannedServer&) = delete;
  const std::string& endpoint() const { return endpoint_; }

 private:
  void serve() const {
    while (!ends_) {
      pollfd waits{listens_, POLLIN, 0};
      if (::poll(&waits, 1, 20) <= 0) continue;
      const int client = ::accept4(listens_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      std::string request(65536, '\0');
      static_cast<void>(::recv(client, request.data(), request.size(), 0));
      for (std::size_t sent = 0; sent < answer_.size();) {
        const ssize_t n = ::send(client, answer_.data() + sent, answer_.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += static_cast<std::size_t>(n);
      }
      ::shutdown(client, SHUT_WR);
      while (::recv(client, request.data(), request.size(), 0) > 0) {}
      ::close(client);
    }
  }

  std::string answer_, endpoint_;
  int listens_ = -1;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace troupe::test
