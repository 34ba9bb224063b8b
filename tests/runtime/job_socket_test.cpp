// One process asks another one's job: a request, an answer.
#include <doctest/doctest.h>
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
