// How agents learn where a run is, and its token.
#include "apps/machines/invitation.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "devices/process/end_signals.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;
using namespace troupe::test;

namespace {

const Invitation some_invitation{"10.0.0.1:7070", std::string(64, 't')};

}  // namespace

TEST_CASE(
    "an invitation lies in a file of its owner's, whole, and takes the place of those before its job was queued "
    "again") {
  TempDir dir;
  std::vector<std::string> earlier, others;
  for (const char* start : {"slurm-42.0.0", "slurm-42.0.1"})
    earlier.push_back(write_text(invitation_path(dir.path(), start), "old"));
  for (const char* start : {"slurm-41.0.0", "slurm-42.1.0", "slurm-42.0.x", "mpi-7", "notes.txt"})
    others.push_back(write_text(invitation_path(dir.path(), start), "kept"));
  const std::string path = invitation_path(dir.path(), "slurm-42.0.2");
  write_text(path + "-draft", "of a process that has died");
  REQUIRE(write_invitation(path, some_invitation).ok());
  struct stat file {};
  REQUIRE(::stat(path.c_str(), &file) == 0);
  CHECK((file.st_mode & 07777) == 0600);
  for (const auto& file : earlier) CHECK(::access(file.c_str(), F_OK) != 0);
  for (const auto& file : others) CHECK(read_text(file) == "kept");
  CHECK(dir.entries() == others.size() + 1);  // no draft
  const auto read = await_invitation(path, 0);
  REQUIRE(read.ok());
  CHECK(read->address == some_invitation.address);
  CHECK(read->token == some_invitation.token);
  REQUIRE(write_invitation(invitation_path(dir.path(), "mpi-8"), some_invitation).ok());
  for (const auto& file : others) CHECK(read_text(file) == "kept");
  CHECK(write_invitation(invitation_path(dir / "none", "x"), some_invitation).code() == Code::io);
}

TEST_CASE("a task waits for the invitation of its own start, and reads none of another one") {
  TempDir dir;
  const std::string path = invitation_path(dir.path(), "mpi-7"), stale = invitation_path(dir.path(), "mpi-6");
  REQUIRE(write_invitation(stale, {"10.0.0.1:1", std::string(64, 's')}).ok());
  const auto none = await_invitation(path, 0);
  CHECK(none.status().code() == Code::unavailable);
  CHECK(none.status().message().find(path) != std::string::npos);
  {
    const EndSignals signals;  // takes it from the process
    ::raise(SIGTERM);
    CHECK(await_invitation(path, 20).status().code() == Code::interrupted);
  }
  std::thread first([&] {
    ::usleep(300'000);
    CHECK(write_invitation(path, some_invitation).ok());
  });
  const auto read = await_invitation(path, 20);
  first.join();
  REQUIRE(read.ok());
  CHECK(read->token == some_invitation.token);
}

TEST_CASE("an invitation that others may read, or that is none, is refused") {
  TempDir dir;
  const std::string path = invitation_path(dir.path(), "x");
  write_text(path, to_text(some_invitation));
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  CHECK(await_invitation(path, 0).status().message().find("mode 0644") != std::string::npos);
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  CHECK(await_invitation(path, 0).ok());
  for (const char* wrong :
       {"", "10.0.0.1:7070\n", "10.0.0.1:7070\nshort\n", "\n0123456789012345678901234567890123456789\n"})
    CHECK(parse_invitation(wrong, "it").status().message().find("it is no invitation") == 0);
}

TEST_CASE("an invitation is read from a pipe, and nothing behind it; a pipe that ends before is an error") {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const std::string text = to_text(some_invitation) + "more";
  REQUIRE(::write(pipe[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  const auto read = read_invitation(pipe[0]);
  REQUIRE(read.ok());
  CHECK(read->address == some_invitation.address);
  char rest[8];
  CHECK(::read(pipe[0], rest, sizeof rest) == 4);
  ::close(pipe[1]);
  CHECK(read_invitation(pipe[0]).status().code() == Code::unavailable);
  ::close(pipe[0]);
}

TEST_CASE("no two runs draw the same token") {
  const auto one = fresh_token(), other = fresh_token();
  REQUIRE(one.ok());
  REQUIRE(other.ok());
  CHECK(one->size() == 64);
  CHECK(*one != *other);
}
