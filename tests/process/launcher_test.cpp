#include "runtime/agents/launcher.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "comm/ucx/memory_hooks.h"
#include "devices/host_memory.h"
#include "runtime/plan/plan_io.h"
#include "runtime/session/control.h"
#include "tests/process/apps.h"
#include "tests/process/held_worker.h"
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

TEST_CASE("a place that gets new memory twice keeps the memory that it had at first, until it is let go") {
  WorkerProcess w;
  auto had = create_kept_memory();
  REQUIRE(had.ok());
  w.memory_fd = *had;
  REQUIRE(Launcher::renew_memory(w).ok());
  const int second = w.memory_fd;
  REQUIRE(Launcher::renew_memory(w).ok());
  CHECK(w.home_fd == *had);
  CHECK(w.memory_fd != *had);
  CHECK((second == w.memory_fd || ::fcntl(second, F_GETFD) < 0));
  Launcher::forget_memory(w, true);
  CHECK(w.home_fd == -1);
  CHECK(::fcntl(*had, F_GETFD) < 0);
  CHECK(::fcntl(w.memory_fd, F_GETFD) >= 0);
  Launcher::forget_memory(w, false);
  CHECK(w.memory_fd == -1);
}

TEST_CASE("a message has the generation that its sender names, and reaches the other end with it") {
  const auto [near, far] = link_ends();
  ControlLink from(near), to(far);
  const SharedBytes message = message_of(3, 1);
  CHECK(from.send({7, 1}, *message).ok());
  CHECK(from.post({7, 2}, message).ok());
  CHECK(from.send({}, {}).ok());
  std::deque<ControlFrame> frames;
  while (frames.size() < 3) REQUIRE(to.receive(frames).ok());
  CHECK((frames == std::deque<ControlFrame>{{{7, 1}, *message}, {{7, 2}, *message}, {{}, {}}}));
}

TEST_CASE("a worker drops a message of another generation before it decodes it (CL-1 one generation)") {
  const auto p = mlp::plan(test_app().ops(), {}, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const std::vector<std::byte> garbage(100, std::byte{0xff});
  CHECK_FALSE(decode_to_worker(garbage).ok());
  Launcher launcher;
  REQUIRE(launcher.start({}).ok());
  ControlLink& link = *launcher.workers()[0].link;
  std::deque<ControlFrame> heard;
  const auto say = [&](JobGeneration of, const ToWorker& message) { return link.send(of, encode(message)).ok(); };
  const auto next = [&] {
    while (heard.empty()) REQUIRE(link.receive(heard).ok());
    const ControlFrame frame = heard.front();
    heard.pop_front();
    CHECK((frame.of == JobGeneration{7, 2}));
    auto message = decode_from_worker(frame.message);
    REQUIRE_MESSAGE(message.ok(), message.status().message());
    return *std::move(message);
  };
  CHECK(link.send({}, garbage).ok());
  CHECK(say({7, 2}, PlanBytes{write_plan(*p)}));
  for (const JobGeneration other : {JobGeneration{7, 1}, {6, 2}, {}}) CHECK(link.send(other, garbage).ok());
  CHECK(say({7, 2}, Hello{}));
  CHECK(say({7, 2}, Enter{}));
  const auto address = next();
  REQUIRE(std::holds_alternative<WorkerAddress>(address));
  CHECK(say({7, 1}, Connect{}));  // of no peers: the worker would begin
  CHECK(say({7, 2}, ExplainAll{}));
  const auto explained = next();
  REQUIRE(std::holds_alternative<Explained>(explained));
  CHECK(std::get<Explained>(explained).text == "waits for the addresses of its peers\n");
  CHECK(say({7, 3}, ExplainAll{}));  // it has no part in this one: its process ends, and says nothing as if it had
  while (link.receive(heard).ok()) {}
  CHECK(heard.empty());
  CHECK(launcher.finish(2'000).ok());
}

TEST_CASE(
    "a worker that is told to leave its generation says so in the next one, and enters that with the same process") {
  const auto p = mlp::plan(test_app().ops(), {}, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  Launcher launcher;
  REQUIRE(launcher.start({}).ok());
  ControlLink& link = *launcher.workers()[0].link;
  const auto say = [&](std::uint32_t generation, const ToWorker& message) {
    return link.send({7, generation}, encode(message)).ok();
  };
  std::deque<ControlFrame> heard;
  const auto hears = [&]<class Message>(std::uint32_t generation, const Message&) {
    for (;;) {
      while (heard.empty()) REQUIRE(link.receive(heard).ok());
      const ControlFrame frame = heard.front();
      heard.pop_front();
      const auto message = decode_from_worker(frame.message);
      REQUIRE_MESSAGE(message.ok(), message.status().message());
      if (!std::holds_alternative<Message>(*message)) continue;  // Progress
      CHECK(frame.of.number == generation);
      return std::get<Message>(*message);
    }
  };
  CHECK(say(2, PlanBytes{write_plan(*p)}));
  CHECK(say(2, Hello{}));
  CHECK(say(2, Enter{}));
  hears(2, WorkerAddress{});
  CHECK(say(3, Abort{}));  // before the addresses of its peers
  const WholeVersions none = std::vector<std::int64_t>();
  CHECK(hears(3, Quiesced{}).versions == none);  // it has no memory that outlives it
  CHECK(say(4, Abort{}));                        // before it has entered
  hears(4, Quiesced{});
  CHECK(say(4, Enter{}));
  const WorkerAddress address = hears(4, WorkerAddress{});
  CHECK(say(4, Connect{{{0, address.blob}}, -1, ""}));
  hears(4, Ready{});
  CHECK(say(5, Abort{}));  // with a worker
  hears(5, Quiesced{});
  CHECK(say(5, Enter{}));
  hears(5, WorkerAddress{});
  CHECK(launcher.finish(5'000).ok());
  CHECK(describe_exit(launcher.workers()[0].wait_status) == "exited with code " + std::to_string(exit_worker));
}

TEST_CASE("a process that is started in the place of one that has ended finds the memory that it has left, or new") {
  // Each process counts itself in the first byte of the memory.
  const std::vector<std::string> counts{"sh", "-c", "printf x >> /proc/self/fd/$3"};
  Launcher launcher;
  REQUIRE(launcher.start(counts, true).ok());
  WorkerProcess& w = launcher.workers()[0];
  const auto size = [&] {
    struct stat file {};
    REQUIRE(::fstat(w.memory_fd, &file) == 0);
    return file.st_size;
  };
  const auto ended = [&] {
    while (!launcher.reap(w)) ::usleep(1000);
  };
  ended();
  CHECK(size() == 1);
  REQUIRE(launcher.restart(w, counts, false, [](const std::string&) {}).ok());
  ended();
  CHECK(size() == 2);
  REQUIRE(launcher.restart(w, counts, true, [](const std::string&) {}).ok());
  ended();
  CHECK(size() == 1);
  CHECK(launcher.finish(2'000).ok());
  CHECK(w.memory_fd == -1);
}

TEST_CASE("a worker that is stopped when its job ends is continued, and ends by itself") {
  Launcher launcher;
  REQUIRE(launcher.start({}).ok());
  const WorkerProcess& w = launcher.workers()[0];
  REQUIRE(::kill(w.pid, SIGSTOP) == 0);
  CHECK(launcher.finish(20'000).ok());
  REQUIRE(w.exited);
  CHECK(describe_exit(w.wait_status) == "exited with code " + std::to_string(exit_worker));
}

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

TEST_CASE(
    "a process that cannot be started again for want of descriptors is an error, and no other process hears of it") {
  const auto before = descriptors();
  {
    Launcher launcher;
    REQUIRE(launcher.start({"sh", "-c", "exit 0"}, true).ok());
    WorkerProcess& w = launcher.workers()[0];
    for (int more = 0; more < 4; ++more) {
      CAPTURE(more);
      while (!launcher.reap(w)) ::usleep(1000);
      const bool had_memory = w.memory_fd >= 0;
      CHECK(had_memory);
      const DescriptorLimit limit(more);
      CHECK_FALSE(launcher.restart(w, {"sh", "-c", "exit 0"}, false, [](const std::string&) {}).ok());
      CHECK(w.exited);
    }
    while (!launcher.reap(w)) ::usleep(1000);
    REQUIRE(launcher.restart(w, {"sh", "-c", "exit 0"}, true, [](const std::string&) {}).ok());
    CHECK(launcher.finish(5'000).ok());
  }
  CHECK(descriptors() == before);
}

TEST_CASE("a control link refuses a message that its other end would refuse, and sends nothing of it") {
  const auto [near, far] = link_ends();
  ControlLink from(near), to(far);
  const auto large = message_of(control_bytes_max + std::size_t{1}, 0), small = message_of(3, 7);
  for (const Status& s : {from.send({7, 1}, *large), from.post({7, 1}, large)}) {
    CHECK(s.code() == Code::invalid);
    CHECK_MESSAGE(s.message() == "control link: a message of 268435457 bytes; the most is 268435456", s.message());
  }
  CHECK_FALSE(from.unsent());
  REQUIRE(from.post({7, 1}, small).ok());
  std::deque<ControlFrame> messages;
  REQUIRE(to.receive(messages).ok());
  REQUIRE(messages.size() == 1);
  CHECK((messages[0].message == *small));
}

TEST_CASE("what a control link queues while its other end does not read arrives whole and in order") {
  const auto [near, far] = link_ends();
  ControlLink from(near), to(far);
  constexpr std::size_t count = 60;
  const auto message = [](std::size_t i) { return message_of(i * 10'007, static_cast<int>(i)); };
  std::deque<ControlFrame> messages;
  for (std::size_t i = 0; i < count; ++i) {
    REQUIRE(from.post({7, 1}, message(i)).ok());
    if (i == count / 2) REQUIRE(to.receive(messages).ok());  // now and then it reads some
  }
  CHECK(from.unsent());
  while (messages.size() < count) {
    REQUIRE(from.flush().ok());
    REQUIRE(to.receive(messages).ok());
  }
  CHECK_FALSE(from.unsent());
  bool same = true;
  for (std::size_t i = 0; i < count; ++i) same &= messages[i].message == *message(i);
  CHECK(same);
}

TEST_CASE(
    "a message to several workers is encoded once: their links share its bytes until each socket has taken them") {
  const auto message = message_of(std::size_t{8} << 20, 5);  // more than a socket takes
  const auto [near_a, far_a] = link_ends();
  const auto [near_b, far_b] = link_ends();
  ControlLink from_a(near_a), to_a(far_a), from_b(near_b), to_b(far_b);
  REQUIRE(from_a.post({7, 1}, message).ok());
  REQUIRE(from_b.post({7, 1}, message).ok());
  CHECK(from_a.unsent());
  CHECK(from_b.unsent());
  CHECK(message.use_count() == 3);
  std::deque<ControlFrame> messages;
  const auto take = [&](ControlLink& from, ControlLink& to) {
    messages.clear();
    while (messages.empty()) {
      REQUIRE(from.flush().ok());
      REQUIRE(to.receive(messages).ok());
    }
    CHECK((messages[0].message == *message));
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
    "workers start while another thread changes the environment, and have UCX's memory hooks off where they may") {
  constexpr const char* name = "TROUPE_TEST_CHANGED";
  ::setenv(name, "0", 1);  // the thread replaces a value that is there: reading the environment meanwhile is safe
  std::atomic<bool> over{false};
  std::thread changes([&] {
    for (int i = 0; !over; ++i) ::setenv(name, i % 2 == 0 ? "1" : "0", 1);
  });
  Launcher launcher;
  const char* given = std::getenv("UCX_MEM_EVENTS");
  const std::string want = given ? given : comm::needs_memory_hooks() ? "" : "n";
  for (int i = 0; i < 60; ++i) CHECK(launcher.start({"sh", "-c", "test \"$UCX_MEM_EVENTS\" = '" + want + "'"}).ok());
  CHECK(launcher.finish(10'000).ok());
  over = true;
  changes.join();
  ::unsetenv(name);
  for (const auto& w : launcher.workers()) CHECK(describe_exit(w.wait_status) == "exited with code 0");
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

/// Starts a worker, tells its pid, waits to be asked, finishes twice and tells both errors.
void finish_when_asked(int asked, int tell) {
  Launcher launcher;
  const pid_t pid = launcher.start({"sh", "-c", "exec sleep 600"}).ok() ? launcher.workers()[0].pid : -1;
  HeldWorker::tell(tell, &pid, sizeof pid);
  HeldWorker::wait_until(asked);
  std::string told = launcher.finish(50, {}, 300).message() + "|";
  told += launcher.finish(600'000, {}, 600'000).message();
  HeldWorker::tell(tell, told.data(), told.size());
}

}  // namespace

TEST_CASE(
    "a worker that SIGKILL does not end is waited for no longer than a bound, and the error names its rank and pid; a "
    "later call waits no more") {
  const HeldWorker held(finish_when_asked);
  if (!held.why_not.empty()) return test::skip(held.why_not);
  CHECK_MESSAGE(held.told == held.left() + "|" + held.left(), held.told);
}
