// One process asks another one's job: a request, an answer.
#include <doctest/doctest.h>

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
    const auto reply = ask_job(path, request);
    return reply.ok() ? *reply : "error: " + reply.status().message();
  });
  while (text.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    socket.serve(answer);
    each_turn();
  }
  return text.get();
}

}  // namespace

TEST_CASE("a request is answered, at once or later, whatever the length of the path; a file that is in the way goes") {
  TempDir dir;
  const std::string folder = dir / std::string(120, 'x');
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/job.sock";
  std::ofstream(path) << "what a killed run has left";
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

TEST_CASE("where no job listens, or a job ends before it answers, the asker hears so") {
  TempDir dir;
  const std::string path = dir / "job.sock";
  const auto none = ask_job(path, "ps");
  CHECK(none.status().code() == Code::unavailable);
  CHECK(none.status().message().find("no job listens at '" + path + "'") == 0);
  auto socket = *JobSocket::open(path);
  auto text = std::async(std::launch::async, [&] { return ask_job(path, "scale dp=2"); });
  bool taken = false;
  while (!taken)
    socket->serve([&](const std::string&) {
      taken = true;
      return std::nullopt;
    });
  socket.reset();
  const auto reply = text.get();
  REQUIRE(reply.ok());
  CHECK(*reply == "the job has ended");
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(JobSocket::open(dir / "no-folder/job.sock").ok());
}
