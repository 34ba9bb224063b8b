// What is printed on stdout has no reader any more, or one that does not read.
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

std::vector<std::string> shell(const std::string& script, const std::string& fifo,
                               const std::vector<std::string>& command) {
  std::vector<std::string> words = {"sh", "-c", script, fifo};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

/// The command with a pipe as its stdout whose other end is closed.
std::vector<std::string> without_reader(const std::string& fifo, const std::vector<std::string>& command) {
  return shell("mkfifo \"$0\"; exec 4<>\"$0\" 5>\"$0\" 4>&-; rm \"$0\"; exec \"$@\" >&5 5>&-", fifo, command);
}

/// The command with a full pipe as its stdout, from which no process reads; its stderr goes there, too, if `both`.
std::vector<std::string> without_reading(const std::string& fifo, const std::vector<std::string>& command,
                                         bool both = false) {
  return shell(std::string("mkfifo \"$0\"; exec 4<>\"$0\"; "
                           "dd if=/dev/zero of=\"$0\" oflag=nonblock bs=4096 count=4096 2>/dev/null; "
                           "exec \"$@\" >\"$0\"") +
                   (both ? " 2>&1" : ""),
               fifo, command);
}

nlohmann::json record(const std::string& out) { return nlohmann::json::parse(read(out + "/run.json")); }

/// Waits until `holds`; false where the command does not get there within a minute.
bool wait_until(const std::function<bool()>& holds) {
  for (int tries = 0; tries < 12'000; ++tries, ::usleep(5000))
    if (holds()) return true;
  return false;
}

/// How often the command's main thread has waited for something so far.
long long waits(const Run& command) {
  const std::string status = read("/proc/" + std::to_string(command.pid()) + "/status");
  const std::string key = "\nvoluntary_ctxt_switches:\t";
  const auto at = status.find(key);
  return at == std::string::npos ? -1 : std::stoll(status.substr(at + key.size()));
}

/// Waits until the main thread of the command, which has nothing left to do but to print, has looked for a reader a few
/// times.
bool wait_until_it_waits(const Run& command) {
  const auto before = waits(command);
  return wait_until([&] { return waits(command) >= before + 5; });
}

/// A pipe from which no process reads. It takes one text, and then no more.
class UnreadPipe {
 public:
  explicit UnreadPipe(std::string path) : path_(std::move(path)), room_(static_cast<int>(::sysconf(_SC_PAGESIZE))) {
    REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
    fd_ = ::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(fd_ >= 0);
    // The kernel counts pages: a text has one of its own.
    REQUIRE(::fcntl(fd_, F_SETPIPE_SZ, 2 * room_) == 2 * room_);
    REQUIRE(::write(fd_, std::string(static_cast<std::size_t>(room_), '\0').data(), static_cast<std::size_t>(room_)) ==
            room_);
  }
  ~UnreadPipe() { ::close(fd_); }
  UnreadPipe(const UnreadPipe&) = delete;
  bool has_text() const {
    int bytes = 0;
    return ::ioctl(fd_, FIONREAD, &bytes) == 0 && bytes > room_;
  }
  /// The command with this pipe as its stdout.
  std::vector<std::string> of(const std::vector<std::string>& command) const {
    return shell("exec \"$@\" >\"$0\"", path_, command);
  }

 private:
  std::string path_;
  int room_ = 0, fd_ = -1;
};

}  // namespace

TEST_CASE("a run whose output loses its reader ends as at a signal, with 141: it saves a checkpoint and says so") {
  TempDir dir;
  const std::string out = dir / "out", gone = "the reader of the standard output has gone after step ";
  std::vector<std::string> words = {"bash", "-c", "set -o pipefail; \"$@\" | head -n 1", "bash"};
  for (const auto& word : train(out, {"--steps", "1000000", "--checkpoint-every", "100000", "--set", "eval.every=0"}))
    words.push_back(word);
  const auto o = run(words);
  check_one_line(o, exit_reader_gone, {gone, " of 1000000; go on with --resume"});
  CHECK(o.out.find("step       1/1000000") == 0);
  REQUIRE(std::filesystem::exists(out + "/run.json"));
  const auto r = record(out);
  CHECK(r["status"].get<std::string>().starts_with(gone));
  REQUIRE(r.contains("checkpoints"));
  CHECK(r["checkpoints"]["newest"] == r["steps"]);
  const std::int64_t steps = r["steps"];
  check_success(run(train(out, {"--resume", "--steps", std::to_string(steps + 1), "--quiet"})));
  CHECK(record(out)["resumed_at"] == steps);
}

TEST_CASE("without a reader of its output each command ends with 141 and one line on stderr") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  const std::vector<std::vector<std::string>> commands = {
      {"train", tiny_config, "--data", sample_text(), "--out", dir / "more", "--steps", "1000000"},
      {"train", tiny_config, "--data", sample_text(), "--out", dir / "one", "--steps", "1"},
      {"plan", tiny_config},
      {"sim", tiny_config},
      {"sample", "--from", dir / "out", "--tokens", "100000", "a"},
      {"eval", "--from", dir / "out"},
      {"calibrate", "--costs", dir / "costs.toml", "--widest", "128", "--checkpoint-dir", dir.path()},
      {"ckpt", "ls", dir / "out"},
      {"train", "--help"},
      {"--version"}};
  for (const auto& command : commands) {
    CAPTURE(command[0]);
    // calibrate measures the disk first, which may be slow
    check_one_line(run(without_reader(dir / "fifo", troupe_command(command)), 300), exit_reader_gone,
                   {"the reader of the standard output has gone"});
  }
  CHECK(record(dir / "more")["status"] == "the reader of the standard output has gone");
  CHECK(record(dir / "one")["status"] == "finished");
  CHECK_FALSE(std::filesystem::exists(dir / "costs.toml"));
}

TEST_CASE("a signal ends a run that waits for a reader of its output, with a checkpoint") {
  TempDir dir;
  for (const bool both : {false, true}) {
    CAPTURE(both);
    const std::string out = dir / (both ? "both" : "one");
    Run command(without_reading(
        dir / (both ? "fifo2" : "fifo1"),
        train(out, {"--steps", "1000000", "--checkpoint-every", "100000", "--set", "eval.every=0"}), both));
    REQUIRE(command.wait_for_lines(out + "/metrics.jsonl", 1));
    REQUIRE(wait_until_it_waits(command));
    CHECK(count_lines(out + "/metrics.jsonl") == 1);  // the output holds the run up
    command.send(both ? SIGINT : SIGTERM);
    const auto o = command.wait(60);
    if (both) check_failure(o, exit_interrupted, {});
    else check_one_line(o, exit_interrupted, {"interrupted by Terminated after step ", "; go on with --resume"});
    const auto r = record(out);
    CHECK(r["status"].get<std::string>().starts_with("interrupted by "));
    REQUIRE(r.contains("checkpoints"));
    CHECK(r["checkpoints"]["newest"] == r["steps"]);
  }
}

TEST_CASE("a signal ends sample and calibrate while they wait for a reader of their output") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  const std::vector<std::vector<std::string>> commands = {
      {"sample", "--from", dir / "out", "--tokens", "100000", "a"},
      {"calibrate", "--costs", dir / "costs.toml", "--widest", "128", "--checkpoint-dir", dir.path()}};
  for (const auto& arguments : commands) {
    CAPTURE(arguments[0]);
    const UnreadPipe pipe(dir / ("fifo-" + arguments[0]));
    Run command(pipe.of(troupe_command(arguments)));
    REQUIRE(wait_until([&] { return pipe.has_text(); }));  // the next one has to wait
    REQUIRE(wait_until_it_waits(command));
    command.send(SIGTERM);
    check_one_line(command.wait(60), exit_interrupted, {"interrupted by Terminated"});
  }
  CHECK_FALSE(std::filesystem::exists(dir / "costs.toml"));
}
