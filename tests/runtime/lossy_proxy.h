// A TCP proxy before one server, which loses what it is told to lose.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/loopback.h"

namespace troupe::test {

class LossyProxy {
 public:
  /// `server`: "127.0.0.1:PORT".
  explicit LossyProxy(const std::string& server);
  ~LossyProxy();
  LossyProxy(const LossyProxy&) = delete;
  LossyProxy& operator=(const LossyProxy&) = delete;

  /// "127.0.0.1:PORT" of the proxy.
  const std::string& endpoint() const { return port_.endpoint(); }
  /// So many times from now on: when the server answers a request that stores something, the connection ends before the
  /// client gets the answer.
  void lose_answers(int times) { loses_ = times; }
  /// While true, each connection ends as soon as it is there.
  void refuse(bool refuses) { refuses_ = refuses; }
  int lost() const { return lost_; }

 private:
  void serve();
  void serve_connection(int client);

  const std::string server_;
  LoopbackPort port_;
  std::atomic<int> loses_ = 0, lost_ = 0;
  std::atomic<bool> refuses_ = false, ends_ = false;
  std::thread thread_;
  std::vector<std::thread> connections_;
};

}  // namespace troupe::test
