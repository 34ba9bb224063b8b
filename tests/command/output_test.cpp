// What is printed on stdout has no reader any more, or one that does not read.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
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

/// Waits until the process is the command and holds SIGTERM back, so that it ends it only where it looks for it.
bool wait_until_it_holds_signals(const Run& command) {
  for (int tries = 0; tries < 2000; ++tries, ::usleep(5000)) {
    const auto status = read("/proc/" + std::to_string(command.pid()) + "/status");
    const auto at = status.find("SigBlk:\t");
    if (read("/proc/" + std::to_string(command.pid()) + "/comm") == "troupe\n" && at != std::string::npos &&
        (std::stoull(status.substr(at + 8), nullptr, 16) >> (SIGTERM - 1) & 1U) != 0)
      return true;
  }
  return false;
}

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
    check_one_line(run(without_reader(dir / "fifo", troupe_command(command))), exit_reader_gone,
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
    ::usleep(300'000);
    command.send(both ? SIGINT : SIGTERM);
    const auto o = command.wait(10);
    if (both) check_failure(o, exit_interrupted, {});
    else check_one_line(o, exit_interrupted, {"interrupted by Terminated after step ", "; go on with --resume"});
    const auto r = record(out);
    CHECK(r["status"].get<std::string>().starts_with("interrupted by "));
    CHECK(r["steps"] < 10);  // the output held it up
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
    Run command(without_reading(dir / ("fifo-" + arguments[0]), troupe_command(arguments)));
    REQUIRE(wait_until_it_holds_signals(command));
    ::usleep(500'000);
    command.send(SIGTERM);
    check_one_line(command.wait(10), exit_interrupted, {"interrupted by Terminated"});
  }
  CHECK_FALSE(std::filesystem::exists(dir / "costs.toml"));
}
