#include "apps/report/files.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "devices/files/file_storage.h"
#include "devices/sim/sim_storage.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::report;

TEST_CASE("the output folder is created with its parents and left empty") {
  test::TempDir dir;
  FileStorage storage;
  CHECK(prepare_output_dir(storage, dir / "a/b/c").ok());
  CHECK(std::filesystem::is_empty(dir / "a/b/c"));
  CHECK(prepare_output_dir(storage, dir / "a/b/c").ok());
}

TEST_CASE("a crash of the machine leaves the output folder and its parents, and with them what is synced below") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    SimStorage storage;
    REQUIRE(prepare_output_dir(storage, "runs/a/out").ok());
    REQUIRE(make_durable_dir(storage, "runs/a/out/checkpoints").ok());
    storage.crash(seed);
    CHECK(storage.list("runs/a/out/checkpoints").ok());
  }
}

TEST_CASE("an output folder that cannot be is refused by name") {
  test::TempDir dir;
  FileStorage storage;
  const auto file = test::write_text(dir / "file", "x");
  CHECK(prepare_output_dir(storage, file).message() == "output folder '" + file + "' is a file; name a folder");
  const auto below = prepare_output_dir(storage, file + "/sub");
  CHECK_FALSE(below.ok());
  CHECK(below.message().find("output folder '" + file + "/sub'") != std::string::npos);
  // a folder in which no user can create files, not even root
  const auto proc = prepare_output_dir(storage, "/proc/self");
  CHECK(proc.message().find("output folder '/proc/self' cannot be written") == 0);
}

TEST_CASE("a file is replaced whole, and a failed write leaves nothing behind") {
  test::TempDir dir;
  CHECK(write_file(dir / "x", "old").ok());
  CHECK(write_file(dir / "x", "new").ok());
  CHECK(test::read_text(dir / "x") == "new");
  std::filesystem::create_directory(dir / "folder");
  CHECK_FALSE(write_file(dir / "folder", "text").ok());
  const auto lost = write_file(dir / "no/such/folder/x", "text");
  CHECK(lost.message().find("'" + (dir / "no/such/folder/x") + "': ") == 0);
  CHECK(write_file(dir / "x", "newest", Durability::not_synced).ok());
  CHECK(test::read_text(dir / "x") == "newest");
  CHECK(dir.entries() == 2);
}

TEST_CASE("a file is written through a link to it, and a device stays a device") {
  test::TempDir dir;
  CHECK(write_file(dir / "x", "old").ok());
  std::filesystem::create_symlink("x", dir / "link");
  CHECK(write_file(dir / "link", "new").ok());
  CHECK(std::filesystem::is_symlink(dir / "link"));
  CHECK(test::read_text(dir / "x") == "new");
  std::filesystem::create_symlink("/dev/null", dir / "null");
  CHECK(write_file(dir / "null", "nothing").ok());
  CHECK(std::filesystem::is_symlink(dir / "null"));
  CHECK(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::create_symlink("/dev/full", dir / "full");
  CHECK(write_file(dir / "full", "lost").message() == "'" + (dir / "full") + "': cannot be written");
  CHECK(dir.entries() == 4);
}

TEST_CASE("a signal ends a process that writes files as soon as no temporary file is left") {
  test::TempDir dir;
  for (int i = 0; i < 20; ++i) {
    CAPTURE(i);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(SIGTERM, SIG_DFL);  // doctest has a handler
      FileStorage storage;
      while (prepare_output_dir(storage, dir.path()).ok() && write_file(dir / "x", "text").ok()) {}
      ::_exit(1);
    }
    for (int tries = 0; tries < 50'000 && !std::filesystem::exists(dir / "x"); ++tries) ::usleep(100);
    ::usleep(static_cast<useconds_t>(i) * 237);
    ::kill(child, SIGTERM);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
    CHECK(test::read_text(dir / "x") == "text");
    CHECK(dir.entries() == 1);
    std::filesystem::remove(dir / "x");
  }
}

TEST_CASE("run.json is JSON, indented; anything else is refused") {
  test::TempDir dir;
  CHECK(write_run_json(dir / "run.json", R"({"b":1,"a":[1,2]})").ok());
  const auto text = test::read_text(dir / "run.json");
  CHECK(text.find("\n  \"b\": 1") != std::string::npos);
  CHECK(nlohmann::json::parse(text)["a"][1] == 2);
  CHECK(write_run_json(dir / "bad.json", "{").code() == Code::internal);
  CHECK(dir.entries() == 1);
}

TEST_CASE("a pipe that no process reads is refused by name, and one with a reader is written to") {
  test::TempDir dir;
  const auto pipe = dir / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto status = write_file(pipe, "text");
  CHECK(status.code() == Code::io);
  CHECK(status.message().find("'" + pipe + "' is a pipe or a device that no process reads") == 0);
  const int fd = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(fd >= 0);
  CHECK(write_file(pipe, "text").ok());
  char text[8] = {};
  CHECK(::read(fd, text, sizeof text) == 4);
  ::close(fd);
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("what killed runs have left of the test of their folder is removed, and no file of the user's") {
  test::TempDir dir;
  for (const char* name :
       {".write-test-17", ".write-test-4711.tmp", ".write-test-", ".write-test-x.tmp", ".write-test-1.txt"})
    test::write_text(dir / name, "x");
  FileStorage storage;
  CHECK(prepare_output_dir(storage, dir.path()).ok());
  CHECK(dir.entries() == 3);
  CHECK_FALSE(std::filesystem::exists(dir / ".write-test-17"));
  CHECK_FALSE(std::filesystem::exists(dir / ".write-test-4711.tmp"));
}
