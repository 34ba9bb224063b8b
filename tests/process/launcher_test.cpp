#include "runtime/launch/launcher.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "tests/skip.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// The open ones, and that which counts them.
std::ptrdiff_t descriptors() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

/// While it lives, this process may open `more` descriptors only.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int more) {
    std::vector<int> free;  // their numbers, ascending: a limit is on numbers
    for (int i = 0; i <= more; ++i) free.push_back(::dup(0));
    for (int fd : free) ::close(fd);
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit now{static_cast<rlim_t>(free.back()), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

SharedBytes message_of(std::size_t bytes, int value) {
  return std::make_shared<const std::vector<std::byte>>(bytes, static_cast<std::byte>(value));
}

/// The descriptors of both ends of a control link.
std::pair<int, int> link_ends() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {ends[0], ends[1]};
}

}  // namespace

TEST_CASE("a worker that cannot be started for want of descriptors is an error, and none of them stays open") {
  const auto before = descriptors();
  // Two ends of a control link, two of a log, one to watch the process: each can be the one too many.
  for (int more = 0; more < 5; ++more) {
    CAPTURE(more);
    Status s;
    {
      Launcher launcher;
      const DescriptorLimit limit(more);
      s = launcher.start({});
    }
    CHECK(s.code() == Code::io);
    CHECK(s.message().find(more < 2 ? "control link" : more < 4 ? "log" : "watch") != std::string::npos);
    CHECK(descriptors() == before);
  }
}

TEST_CASE("a control link refuses a message that its other end would refuse, and sends nothing of it") {
  const auto [near, far] = link_ends();
  Link from(near), to(far);
  const auto large = message_of(control_bytes_max + std::size_t{1}, 0), small = message_of(3, 7);
  for (const Status& s : {from.send(*large), from.post(large)}) {
    CHECK(s.code() == Code::invalid);
    CHECK_MESSAGE(s.message() == "control link: a message of 268435457 bytes; the most is 268435456", s.message());
  }
  CHECK_FALSE(from.unsent());
  REQUIRE(from.post(small).ok());
  std::deque<std::vector<std::byte>> messages;
  REQUIRE(to.receive(messages).ok());
  REQUIRE(messages.size() == 1);
  CHECK((messages[0] == *small));
}

TEST_CASE("what a control link queues while its other end does not read arrives whole and in order") {
  const auto [near, far] = link_ends();
  Link from(near), to(far);
  constexpr std::size_t count = 60;
  const auto message = [](std::size_t i) { return message_of(i * 10'007, static_cast<int>(i)); };
  std::deque<std::vector<std::byte>> messages;
  for (std::size_t i = 0; i < count; ++i) {
    REQUIRE(from.post(message(i)).ok());
    if (i == count / 2) REQUIRE(to.receive(messages).ok());  // now and then it reads some
  }
  CHECK(from.unsent());
  while (messages.size() < count) {
    REQUIRE(from.flush().ok());
    REQUIRE(to.receive(messages).ok());
  }
  CHECK_FALSE(from.unsent());
  bool same = true;
  for (std::size_t i = 0; i < count; ++i) same &= messages[i] == *message(i);
  CHECK(same);
}

TEST_CASE(
    "a message to several workers is encoded once: their links share its bytes until each socket has taken them") {
  const auto message = message_of(std::size_t{8} << 20, 5);  // more than a socket takes
  const auto [near_a, far_a] = link_ends();
  const auto [near_b, far_b] = link_ends();
  Link from_a(near_a), to_a(far_a), from_b(near_b), to_b(far_b);
  REQUIRE(from_a.post(message).ok());
  REQUIRE(from_b.post(message).ok());
  CHECK(from_a.unsent());
  CHECK(from_b.unsent());
  CHECK(message.use_count() == 3);
  std::deque<std::vector<std::byte>> messages;
  const auto take = [&](Link& from, Link& to) {
    messages.clear();
    while (messages.empty()) {
      REQUIRE(from.flush().ok());
      REQUIRE(to.receive(messages).ok());
    }
    CHECK((messages[0] == *message));
  };
  take(from_a, to_a);
  CHECK(message.use_count() == 2);
  take(from_b, to_b);
  CHECK(message.use_count() == 1);
}

TEST_CASE("a worker that logs without end keeps its parent from nothing: each read ends, and so does the worker") {
  Launcher launcher;
  REQUIRE(launcher.start({"sh", "-c", "exec yes"}).ok());
  std::size_t lines = 0, most = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (lines < log_bytes_at_once && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    const std::size_t before = lines;
    CHECK(launcher.read_log(launcher.workers()[0], [&](const std::string& line) { lines += line == "y" ? 1 : 0; }));
    most = std::max(most, lines - before);
  }
  CHECK(lines >= log_bytes_at_once);
  CHECK(most <= log_bytes_at_once / 2);  // "y" and the end of its line
  CHECK(launcher.finish(50).ok());
  CHECK(launcher.workers()[0].exited);
}

TEST_CASE(
    "how a worker has ended is said as the kernel tells it, and is said to be unknown where another part of the "
    "process has waited for the worker") {
  Launcher launcher;
  for (const std::string script : {"exit 3", "kill -9 $$", "exit 3"})
    REQUIRE(launcher.start({"sh", "-c", script}).ok());
  auto& workers = launcher.workers();
  int taken = 0;
  REQUIRE(::waitpid(workers[2].pid, &taken, 0) == workers[2].pid);
  CHECK(describe_exit(taken) == "exited with code 3");
  std::vector<std::string> how;
  for (auto& w : workers) {
    pollfd ended{w.pidfd, POLLIN, 0};
    REQUIRE(::poll(&ended, 1, 20'000) == 1);
    launcher.reap(w);
    REQUIRE(w.exited);
    how.push_back(describe_exit(w.wait_status));
  }
  CHECK(how[0] == "exited with code 3");
  CHECK(how[1] == "was killed by signal 9 (Killed)");
  CHECK(how[2] ==
        "has ended; its exit code is unknown, because another part of this process has taken it, or this process "
        "ignores SIGCHLD");
  CHECK(launcher.finish(50).ok());
}

namespace {

/// A process of its own that starts a worker, tells its pid, waits to be asked, finishes twice and tells both errors.
/// No doctest in it.
[[noreturn]] void finish_when_asked(int asked, int tell) {
  const auto put = [&](const void* bytes, std::size_t size) {
    if (::write(tell, bytes, size) != static_cast<ssize_t>(size)) ::_exit(1);
  };
  Launcher launcher;
  const pid_t pid = launcher.start({"sh", "-c", "exec sleep 600"}).ok() ? launcher.workers()[0].pid : -1;
  put(&pid, sizeof pid);
  char word = 0;
  if (::read(asked, &word, 1) != 1) ::_exit(1);
  std::string told = launcher.finish(50, {}, 300).message() + "|";
  told += launcher.finish(600'000, {}, 600'000).message();
  put(told.data(), told.size());
  ::_exit(0);
}

}  // namespace

TEST_CASE(
    "a worker that SIGKILL does not end is waited for no longer than a bound, and the error names its rank and pid; a "
    "later call waits no more") {
  int ask[2], told[2];
  REQUIRE(::pipe2(ask, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(told, O_CLOEXEC) == 0);
  const pid_t launching = ::fork();
  REQUIRE(launching >= 0);
  if (launching == 0) {
    ::close(ask[1]);
    finish_when_asked(ask[0], told[1]);
  }
  ::close(ask[0]);
  ::close(told[1]);
  pid_t worker = -1;
  const bool started = ::read(told[0], &worker, sizeof worker) == static_cast<ssize_t>(sizeof worker) && worker > 0;
  // A process that is traced has not ended for its parent until the tracer has taken note of its end.
  const bool traced = started && ::ptrace(PTRACE_SEIZE, worker, nullptr, nullptr) == 0;
  const int error = errno;
  std::string text;
  if (traced) {
    CHECK(::write(ask[1], "?", 1) == 1);
    char chunk[512];
    pollfd until{told[0], POLLIN, 0};
    while (::poll(&until, 1, 20'000) > 0) {
      const ssize_t n = ::read(told[0], chunk, sizeof chunk);
      if (n <= 0) break;
      text.append(chunk, static_cast<std::size_t>(n));
    }
  }
  ::kill(launching, SIGKILL);
  ::waitpid(launching, nullptr, 0);  // the worker dies with it, if it has not
  if (traced) ::waitpid(worker, nullptr, __WALL);
  ::close(ask[1]);
  ::close(told[0]);
  REQUIRE(started);
  if (!traced) return test::skip(std::string("a process may not trace another here: ") + std::strerror(error));
  const std::string once = "worker 0 (pid " + std::to_string(worker) + ") has not ended after SIGKILL and is left: " +
                           "a system call that cannot be interrupted, or a debugger, holds it";
  CHECK_MESSAGE(text == once + "|" + once, text);
}
