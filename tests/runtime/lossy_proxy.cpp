#include "tests/runtime/lossy_proxy.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace troupe::test {

namespace {

bool pass(int from, int to, std::string& seen) {
  std::array<char, 65536> bytes;
  const ssize_t n = ::recv(from, bytes.data(), bytes.size(), 0);
  if (n <= 0) return false;
  seen.append(bytes.data(), static_cast<std::size_t>(n));
  for (ssize_t sent = 0; sent < n;) {
    const ssize_t more = ::send(to, bytes.data() + sent, static_cast<std::size_t>(n - sent), MSG_NOSIGNAL);
    if (more <= 0) return false;
    sent += more;
  }
  return true;
}

}  // namespace

LossyProxy::LossyProxy(const std::string& server) : server_(server) {
  thread_ = std::thread([this] { serve(); });
}

LossyProxy::~LossyProxy() {
  ends_ = true;
  thread_.join();
  for (auto& connection : connections_) connection.join();
}

void LossyProxy::serve() {
  while (!ends_) {
    pollfd waits{port_.fd(), POLLIN, 0};
    if (::poll(&waits, 1, 20) <= 0) continue;
    const int client = ::accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    connections_.emplace_back([this, client] {
      if (!refuses_) serve_connection(client);
      ::close(client);
    });
  }
}

void LossyProxy::serve_connection(int client) {
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(std::stoi(server_.substr(server_.rfind(':') + 1)));
  std::string asked, answered;
  bool open = ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  while (open && !ends_ && !refuses_) {
    std::array<pollfd, 2> waits{{{client, POLLIN, 0}, {server, POLLIN, 0}}};
    if (::poll(waits.data(), waits.size(), 20) <= 0) continue;
    if (waits[0].revents != 0) {
      asked.clear();
      open = pass(client, server, asked);
    } else if (loses_ > 0 && asked.find("request_put") != std::string::npos) {
      --loses_;
      ++lost_;
      open = false;
    } else {
      open = pass(server, client, answered);
    }
  }
  ::close(server);
}

}  // namespace troupe::test
