// Signals that end commands without a job: they leave nothing that is half done, and say what has interrupted them.
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <tuple>

#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// Waits until `is_there` holds, or the command has ended. Returns whether it holds.
bool wait_until(const Run& command, const std::function<bool()>& is_there) {
  for (int tries = 0; tries < 1'000'000; ++tries) {
    if (is_there()) return true;
    const auto state = read("/proc/" + std::to_string(command.pid()) + "/stat");
    if (state.empty() || state.find(") Z ") != std::string::npos) return false;
    ::usleep(100);
  }
  return false;
}

/// Runs a command until a signal has ended it that is sent as soon as `began` exists; `again` makes the next attempt
/// possible where the command was done before.
Outcome interrupt(const std::vector<std::string>& argv, const std::string& began, int signal,
                  const std::function<void()>& again) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    Run command(argv);
    if (wait_until(command, [&] { return std::filesystem::exists(began); })) command.send(signal);
    const auto o = command.wait(60);
    if (o.code != exit_ok) return o;
    again();
  }
  FAIL("no signal has come in time");
  return {};
}

}  // namespace

TEST_CASE("a signal ends an export or an import with 130, and nothing of what it was to write is left") {
  TempDir dir;
  const auto remove = [](const std::string& path) { std::filesystem::remove_all(path); };
  // Many small tensors: each export syncs as many files.
  check_success(
      run(train(dir / "run", {"--steps", "1", "--checkpoint-every", "1", "--quiet", "--set", "model.layers=64"})));
  const auto exporting = [&](const std::string& out) {
    return troupe_command({"ckpt", "export", dir / "run", "--format", "hf", "--out", dir / out, "--file-bytes", "1"});
  };
  check_success(run(exporting("hf")));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    check_one_line(interrupt(exporting("out"), dir / "out.partial", signal, [&] { remove(dir / "out"); }),
                   exit_interrupted, {std::string("interrupted by ") + ::strsignal(signal)});
    CHECK_FALSE(std::filesystem::exists(dir / "out"));
    CHECK_FALSE(std::filesystem::exists(dir / "out.partial"));
    check_one_line(interrupt(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "in"}),
                             dir / "in/step-00000000.g1", signal, [&] { remove(dir / "in"); }),
                   exit_interrupted, {std::string("interrupted by ") + ::strsignal(signal)});
    CHECK_FALSE(std::filesystem::exists(dir / "in"));
  }
}

TEST_CASE(
    "a signal that comes while calibrate measures disk, messages or kernels ends it with 130, and nothing is left") {
  TempDir dir;
  const auto calibration = troupe_command(
      {"calibrate", "--costs", dir / "cache/costs.toml", "--widest", "128", "--checkpoint-dir", dir.path()});
  const auto begun = [&] {
    const std::filesystem::directory_iterator files(dir.path());
    return std::any_of(begin(files), end(files), [](const auto& file) {
      return file.path().filename().string().starts_with("troupe-calibrate-");
    });
  };
  const auto check = [&](Run& command, int signal) {
    command.send(signal);
    const auto o = command.wait(60);
    check_one_line(o, exit_interrupted, {std::string("interrupted by ") + ::strsignal(signal)});
    CHECK(dir.entries() == 0);  // nor a folder of costs
  };
  {
    Run disk(calibration);
    REQUIRE(wait_until(disk, begun));
    check(disk, SIGTERM);
  }
  {
    Run links(calibration);
    REQUIRE(wait_until(links, [&] { return !links.workers().empty(); }));
    check(links, SIGINT);
  }
  TempDir elsewhere;
  const std::string told = elsewhere / "told";
  std::vector<std::string> words = {"sh", "-c", "exec \"$@\" >\"$0\"", told};
  words.insert(words.end(), calibration.begin(), calibration.end());
  for (int attempt = 0; attempt < 5; ++attempt) {
    Run kernels(words);
    if (wait_until(kernels, [&] { return read(told).find(" kernels, 1 worker of ") != std::string::npos; })) {
      check(kernels, SIGHUP);
      CHECK(read(told).ends_with(" ...\n"));  // no rates of kernels
      return;
    }
    check_one_line(kernels.wait(60), exit_worker, {"calibrate when it is quiet"});
  }
  skip("other work keeps this machine too busy for calibrate to come to the kernels");
}

TEST_CASE("a signal that the shell ignored when it started a run stays ignored; another one ends the run") {
  TempDir dir;
  for (const auto& [name, ignored, other] : {std::tuple{"INT", SIGINT, SIGTERM}, std::tuple{"TERM", SIGTERM, SIGINT}}) {
    CAPTURE(name);
    const auto out = dir / name, metrics = out + "/metrics.jsonl";
    std::vector<std::string> words = {"sh", "-c", std::string("trap '' ") + name + "; exec \"$@\"", "sh"};
    for (const auto& word : train(out, {"--steps", "1000000", "--quiet"})) words.push_back(word);
    Run command(words);
    REQUIRE(command.wait_for_lines(metrics, 3));
    command.send_to_group(ignored);
    CHECK(command.wait_for_lines(metrics, count_lines(metrics) + 20));
    command.send(other);
    check_one_line(command.wait(10), exit_interrupted, {std::string("interrupted by ") + ::strsignal(other)});
  }
}
