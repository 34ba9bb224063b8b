// A disk that fills up, or turns read-only, under a run that saves checkpoints.
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// A small disk of its own. Needs the right to mount.
class SmallDisk {
 public:
  explicit SmallDisk(std::string path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=12m") == 0;
    if (!mounted_) skip(std::string("a tmpfs cannot be mounted here: ") + std::strerror(errno));
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

  void fill() const {
    std::ofstream ballast(path_ + "/ballast", std::ios::binary);
    const std::string block(1 << 16, 'x');
    while (ballast.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {}
  }
  void make_room() const { std::filesystem::remove(path_ + "/ballast"); }
  void read_only(bool yes) const {
    for (int tries = 0; tries < 1000; ++tries) {  // a file that is just being written holds it up
      if (::mount(nullptr, path_.c_str(), nullptr,
                  yes ? static_cast<unsigned long>(MS_REMOUNT | MS_RDONLY) : static_cast<unsigned long>(MS_REMOUNT),
                  "size=12m") == 0)
        return;
      ::usleep(2000);
    }
    FAIL("the disk cannot be remounted: ", std::strerror(errno));
  }

 private:
  std::string path_;
  bool mounted_ = false;
};

struct Counts {
  int steps = 0, saved = 0, failed = 0, last_saved = 0;
};

Counts counts(const std::string& metrics) {
  Counts c;
  std::istringstream lines(read(metrics));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_discarded()) continue;
    if (object.contains("loss")) ++c.steps;
    if (!object.contains("checkpoint")) continue;
    if (object["checkpoint"] == "saved") ++c.saved, c.last_saved = object["step"];
    if (object["checkpoint"] == "failed") ++c.failed;
  }
  return c;
}

/// Until `what` holds of the metrics, for at most ten seconds.
template <class F>
Counts wait_until(const std::string& metrics, F what) {
  Counts c;
  for (int i = 0; i < 500; ++i, ::usleep(20'000))
    if (c = counts(metrics); what(c)) return c;
  FAIL("waited in vain: ", c.steps, " steps, ", c.saved, " saved, ", c.failed, " failed");
  return c;
}

std::vector<std::string> saving(const TempDir& dir, const std::string& max_failures) {
  return train(dir / "out",
               {"--mesh", "dp=2", "--steps", "1000000", "--checkpoint-every", "5", "--checkpoint-dir",
                dir / "disk/checkpoints", "--set", "eval.every=0", "--set", "checkpoint.max_failures=" + max_failures});
}

}  // namespace

TEST_CASE(
    "a disk that is full or read-only fails checkpoints within an interval, and no step; when it is better they go "
    "on") {
  TempDir dir;
  SmallDisk disk(dir / "disk");
  if (!disk.mounted()) return;
  const std::string metrics = dir / "out/metrics.jsonl";
  Run command(saving(dir, "1000000"));
  REQUIRE(command.wait_for_lines(metrics, 3));
  for (const bool full : {true, false}) {
    CAPTURE(full);
    const Counts good = wait_until(metrics, [n = counts(metrics).saved](const Counts& c) { return c.saved > n + 1; });
    if (full) disk.fill();
    else disk.read_only(true);
    const Counts bad = wait_until(metrics, [&](const Counts& c) { return c.failed > good.failed + 1; });
    // two intervals, and what was under way
    CHECK(bad.steps <= good.steps + 5 * (bad.saved - good.saved + bad.failed - good.failed + 3));
    wait_until(metrics, [&](const Counts& c) { return c.steps > bad.steps + 10; });
    if (full) disk.make_room();
    else disk.read_only(false);
    wait_until(metrics, [&](const Counts& c) { return c.last_saved > bad.last_saved; });
  }
  command.send(SIGTERM);
  check_failure(command.wait(5), exit_interrupted,
                {"troupe: warning: checkpoint of step ", "No space left on device", "Read-only file system",
                 "troupe: interrupted by "});
  const int saved = counts(metrics).last_saved;
  const auto resumed = run(train(dir / "out", {"--resume", "--checkpoint-dir", dir / "disk/checkpoints", "--set",
                                               "eval.every=0", "--steps", std::to_string(saved + 5), "--quiet"}));
  check_success(resumed);
  CHECK(nlohmann::json::parse(read(dir / "out/run.json"))["resumed_at"] == saved);
}

TEST_CASE(
    "a disk that stays full ends the job with the code for it, after as many failures as allowed, and keeps the last "
    "good checkpoint") {
  TempDir dir;
  SmallDisk disk(dir / "disk");
  if (!disk.mounted()) return;
  const std::string metrics = dir / "out/metrics.jsonl";
  Run command(saving(dir, "3"));
  REQUIRE(command.wait_for_lines(metrics, 3));
  wait_until(metrics, [](const Counts& c) { return c.saved > 1; });
  disk.fill();
  check_failure(command.wait(20), exit_checkpoint,
                {" failed (1 in a row): ", "troupe: saving has failed 3 times in a row", "No space left on device"});
  const Counts c = counts(metrics);
  CHECK(c.failed == 3);
  CHECK(std::filesystem::exists(dir /
                                ("disk/checkpoints/step-" + std::string(8 - std::to_string(c.last_saved).size(), '0') +
                                 std::to_string(c.last_saved) + ".g1/manifest")));
}
