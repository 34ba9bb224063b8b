// A server of HTTP that answers the same to each request, and closes the connection.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/runtime/loopback.h"

namespace troupe::test {

class CannedServer {
 public:
  explicit CannedServer(std::string answer) : answer_(std::move(answer)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~CannedServer() {
    ends_ = true;
    thread_.join();
  }
  CannedServer(const CannedServer&) = delete;
  CannedServer& operator=(const CannedServer&) = delete;
  const std::string& endpoint() const { return port_.endpoint(); }

 private:
  void serve() const {
    while (!ends_) {
      pollfd waits{port_.fd(), POLLIN, 0};
      if (::poll(&waits, 1, 20) <= 0) continue;
      const int client = ::accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
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

  const std::string answer_;
  LoopbackPort port_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

}  // namespace troupe::test
