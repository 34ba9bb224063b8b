// One process asks another one's job: a request, an answer.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "runtime/launch/job_socket.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::runtime;
using troupe::test::TempDir;

namespace {

/// Serves until the question is answered.
std::string asked(
    JobSocket& socket, const std::string& path, const std::string& request,
    const std::function<std::optional<std::string>(const std::string&)>& answer,
    const std::function<void()>& each_turn = [] {}) {
  auto text = std::async(std::launch::async, [&] {
    const auto reply = ask_job(path, request, 60);
    return reply.ok() ? *reply : "error: " + reply.status().message();
  });
  while (text.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    socket.serve(answer);
    each_turn();
  }
  return text.get();
}

int connect_silently(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? fd : -1;
}

}  // namespace

TEST_CASE(
    "a request is answered, at once or later, whatever the length of the path; what a killed run has left goes, and no "
    "other file") {
  TempDir dir;
  const std::string folder = dir / std::string(120, 'x');
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/job.sock";
  std::ofstream(path) << "a user's";
  CHECK_FALSE(JobSocket::open(path).ok());
  CHECK(std::filesystem::file_size(path) == 8);
  std::filesystem::remove(path);
  {
    auto killed = *JobSocket::open(path);
    std::filesystem::rename(path, path + "-kept");
  }
  std::filesystem::rename(path + "-kept", path);
  auto socket = JobSocket::open(path);
  REQUIRE_MESSAGE(socket.ok(), socket.status().message());
  CHECK(asked(**socket, path, "ps", [](const std::string& request) { return request + ": nothing"; }) == "ps: nothing");
  int turns = 0;
  const auto later = asked(
      **socket, path, "scale dp=2", [](const std::string&) { return std::nullopt; },
      [&] {
        if (++turns % 5 == 0) (*socket)->reply("it is done");
      });
  CHECK(later == "it is done");
  const std::string large(answer_bytes_max, 'y');
  CHECK(asked(**socket, path, "much", [&](const std::string&) { return large + "z"; }) == large);
  CHECK((*socket)->fds().size() == 1);  // no connection is left
}

TEST_CASE("processes that connect and say nothing keep no other from its answer, and only the job's user may connect") {
  TempDir dir;
  const std::string path = dir / "job.sock";
  auto socket = *JobSocket::open(path);
  using std::filesystem::perms;
  CHECK((std::filesystem::status(path).permissions() & (perms::group_all | perms::others_all)) == perms::none);
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(connect_silently(path));
    REQUIRE(silent.back() >= 0);
    socket->serve([](const std::string&) { return std::nullopt; });
  }
  CHECK(socket->fds().size() <= 17);
  CHECK(asked(*socket, path, "ps", [](const std::string&) { return "here"; }) == "here");
  for (const int fd : silent) ::close(fd);
}

TEST_CASE("a request that is too long is refused, and what is no request is answered so") {
  TempDir dir;
  const std::string path = dir / "job.sock";
  auto socket = *JobSocket::open(path);
  const auto send_packet = [&](std::size_t bytes) {
    const int fd = connect_silently(path);
    REQUIRE(fd >= 0);
    const std::string text(bytes, 'x');
    REQUIRE(::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == std::ssize(text));
    socket->serve([](const std::string& request) { return std::to_string(request.size()) + " bytes"; });
    std::string answer(200, '\0');
    const ssize_t n = ::recv(fd, answer.data(), answer.size(), MSG_DONTWAIT);
    ::close(fd);
    return answer.substr(0, n > 0 ? static_cast<std::size_t>(n) : 0);
  };
  CHECK(send_packet(request_bytes_max) == "4096 bytes");
  CHECK(send_packet(request_bytes_max + 1) == "troupe: a request has 4096 bytes at most");
  CHECK(send_packet(100'000) == "troupe: a request has 4096 bytes at most");
  CHECK(socket->fds().size() == 1);
}

TEST_CASE("a process without a descriptor left does not spin at its socket, and hears who waits once it has one") {
  TempDir dir;
  const std::string path = dir / "job.sock";
  auto socket = *JobSocket::open(path);
  const auto answer = [](const std::string&) { return "here"; };
  const int silent = connect_silently(path);
  auto text = std::async(std::launch::async, [&] { return ask_job(path, "ps", 60); });
  ::usleep(200'000);  // it has asked
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 1;  // poll() takes as many
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  socket->serve(answer);
  const auto waits_for = socket->fds();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(waits_for.empty());  // what stays readable is not waited for
  socket->serve(answer);
  CHECK(socket->fds().size() == 2);  // the silent one, and the one that listens
  const auto reply = text.get();
  REQUIRE(reply.ok());
  CHECK(*reply == "here");
  ::close(silent);
}

TEST_CASE("where no job listens, or a job ends before it answers, the asker hears so") {
  TempDir dir;
  const std::string path = dir / "job.sock";
  const auto none = ask_job(path, "ps", 60);
  CHECK(none.status().code() == Code::unavailable);
  CHECK(none.status().message().find("no job listens at '" + path + "'") == 0);
  auto socket = *JobSocket::open(path);
  auto text = std::async(std::launch::async, [&] { return ask_job(path, "scale dp=2", 60); });
  bool taken = false;
  while (!taken)
    socket->serve([&](const std::string&) {
      taken = true;
      return std::nullopt;
    });
  socket.reset();
  const auto reply = text.get();
  REQUIRE(reply.ok());
  CHECK(*reply == "troupe: the job has ended");
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(JobSocket::open(dir / "no-folder/job.sock").ok());
}

TEST_CASE("who asks a job that is stopped hears so after its limit, and what it has asked for is not done later") {
  TempDir dir;
  const std::string path = dir / "job.sock";
  auto socket = *JobSocket::open(path);
  const auto reply = ask_job(path, "scale dp=2", 1);
  CHECK(reply.status().code() == Code::unavailable);
  CHECK(reply.status().message().find("gives no answer within 1 s: its process may be stopped") != std::string::npos);
  bool done = false;
  const auto answer = [&](const std::string&) {
    done = true;
    return "done";
  };
  for (int turn = 0; turn < 3; ++turn) socket->serve(answer);
  CHECK_FALSE(done);
  CHECK(asked(*socket, path, "scale dp=2", answer) == "done");
}
