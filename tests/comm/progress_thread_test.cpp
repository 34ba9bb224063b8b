// Waking the progress thread: the eventfd is written after the lock is released that the woken thread takes first.
#include "comm/ucx/progress_thread.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <set>

#include "tests/comm/pair.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

namespace {

/// Counts the commands that the thread executes.
struct CountingClient final : ucx::ProgressClient {
  std::atomic<int> executed{0};
  void execute(ucx::Command&) override { ++executed; }
  void handle_failures() override {}
  bool any_failed() const override { return false; }
  void wind_down() override {}
};

std::set<int> open_descriptors() {
  std::set<int> open;
  for (int fd = 0; fd < 1024; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) open.insert(fd);
  return open;
}

}  // namespace

TEST_CASE("a command that wakes the thread is executed though its sender has not returned from the wake-up") {
  CountingClient client;
  ucx::Worker worker;
  REQUIRE(worker.open({.tls = "self"}).ok());
  ucx::ProgressThread thread(client, worker, 0);
  const auto before = open_descriptors();
  REQUIRE(thread.start().ok());
  std::set<int> made = open_descriptors();
  for (const int fd : before) made.erase(fd);
  REQUIRE(made.size() == 1);
  // Instead of the eventfd a socket that is full: a sender that wakes the thread stays in the system call.
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  char bytes[4096] = {};
  while (::send(ends[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
  REQUIRE(::dup3(ends[0], *made.begin(), O_CLOEXEC) >= 0);
  std::future<void> sender;
  bool executed = true, stays = false;
  for (int sent = 1; sent <= 100 && executed && !stays; ++sent) {  // until one finds the thread asleep
    sender = std::async(std::launch::async, [&] { thread.submit(ucx::PeerCommand{0, ""}); });
    executed = wait_for([&] { return client.executed == sent; });
    stays = sender.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout;
  }
  CHECK(stays);
  CHECK(executed);
  while (::recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
  sender.wait();
  thread.shutdown();
  for (const int end : ends) ::close(end);
}
