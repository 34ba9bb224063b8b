// Runs that change their mesh while they run: on request, and when workers are gone for good.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/command/checks.h"
#include "tests/command/summary.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

std::vector<std::string> elastic(const std::string& out, const std::string& mesh, std::vector<std::string> more = {}) {
  std::vector<std::string> words{"--mesh",
                                 mesh,
                                 "--steps",
                                 "200",
                                 "--quiet",
                                 "--recovery",
                                 "slots",
                                 "--set",
                                 "schedule.batch=8",
                                 "--set",
                                 "schedule.microbatch=1",
                                 "--set",
                                 "eval.every=0"};
  words.insert(words.end(), more.begin(), more.end());
  return train(out, words);
}

/// Memories of places that a process has open.
int kept_memories(pid_t pid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    count += std::filesystem::read_symlink(entry, gone).string().find("troupe-place") != std::string::npos;
  }
  return count;
}

std::vector<nlohmann::json> incidents(const std::string& out) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(out + "/incidents.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  std::erase_if(lines, [](const auto& line) { return line.contains("straggler"); });  // a busy machine has them
  return lines;
}

/// Waits until a run has so many workers.
bool has_workers(const Run& job, std::size_t count) {
  for (int tries = 0; tries < 500; ++tries) {
    if (job.workers().size() == count) return true;
    ::usleep(10'000);
  }
  return false;
}

std::string calm_hash(const TempDir& dir) {
  static std::string hash;
  if (hash.empty()) {
    check_success(run(elastic(dir / "calm", "dp=2")));
    hash = summary(dir / "calm").at("params_hash");
  }
  return hash;
}

}  // namespace

TEST_CASE("a run takes another mesh on request: workers start and end, memory is let go, and no bit changes") {
  TempDir dir;
  const std::string hash = calm_hash(dir);
  Run job(elastic(dir / "run", "dp=2"));
  const auto metrics = dir / "run/metrics.jsonl";
  REQUIRE(job.wait_for_lines(metrics, 3));
  // Each time workers leave a generation; after the fourth, each gets a new process.
  const std::vector<std::pair<std::string, std::size_t>> meshes{{"dp=2,pp=2", 4}, {"dp=2", 2}, {"pp=3", 3},
                                                                {"dp=1", 1},      {"pp=2", 2}, {"dp=2", 2}};
  for (const auto& [mesh, workers] : meshes) {
    const auto o = run(troupe_command({"scale", dir / "run", "--mesh", mesh}));
    CHECK(o.code == exit_ok);
    CHECK_MESSAGE(o.out.find("the job goes on as " + mesh) == 0, o.out);
    REQUIRE(job.wait_for_lines(metrics, count_lines(metrics) + 8));
    CHECK_MESSAGE(has_workers(job, workers), mesh);
    CHECK_MESSAGE(kept_memories(job.pid()) == static_cast<int>(workers), mesh);
  }
  const auto same = run(troupe_command({"scale", dir / "run", "--mesh", "dp=2"}));
  CHECK(same.out.find("as it does already") != std::string::npos);
  const auto ps = run(troupe_command({"ps", dir / "run"}));
  CHECK(ps.code == exit_ok);
  CHECK_MESSAGE(ps.out.find("runs, as dp=2\n") != std::string::npos, ps.out);
  CHECK(ps.out.find("incidents 0") != std::string::npos);
  check_one_line(run(troupe_command({"scale", dir / "run", "--mesh", "tp=2"})), exit_plan, {"tp=2"});
  check_one_line(run(troupe_command({"scale", dir / "run", "--mesh", "dp=9"})), exit_plan, {"dp=8"});
  check_one_line(run(troupe_command({"scale", dir / "run", "--mesh", "one"})), exit_usage, {"--mesh"});
  check_success(job.wait(60));
  CHECK(summary(dir / "run").at("params_hash") == hash);
  CHECK(summary(dir / "run").at("mesh_at_end") == "dp=2");
  CHECK(summary(dir / "run").count("incidents") == 0);
  const auto lines = incidents(dir / "run");
  REQUIRE(lines.size() == meshes.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(lines[i].at("planned") == true);
    CHECK(lines[i].at("mesh") == meshes[i].first);
    CHECK(lines[i].at("step") == lines[i].at("committed"));
    CHECK(lines[i].at("lost").empty());
  }
  CHECK(count_lines(metrics) == 200);
  for (const std::string command : {"ps", "scale"}) {
    std::vector<std::string> words{command, dir / "run"};
    if (command == "scale") words.insert(words.end(), {"--mesh", "dp=2"});
    check_one_line(run(troupe_command(words)), exit_output, {"no run with --recovery", dir / "run"});
  }
}

TEST_CASE("a worker that is killed while its run changes its mesh is an incident, and no bit changes") {
  TempDir dir;
  const std::string hash = calm_hash(dir);
  int number = 0;
  for (const bool replaces : {true, false})
    for (const bool changed : {false, true}) {  // when it is killed
      CAPTURE(replaces);
      CAPTURE(changed);
      const std::string out = dir / std::to_string(number++);
      Run job(elastic(out, "dp=2", {"--replace", replaces ? "always" : "never"}));
      REQUIRE(job.wait_for_lines(out + "/metrics.jsonl", 3));
      CHECK(run(troupe_command({"scale", out, "--mesh", "dp=2,pp=2"})).code == exit_ok);
      REQUIRE(has_workers(job, 4));
      if (changed) {  // and a step is done: before that the change would be given up
        REQUIRE(job.wait_for_lines(out + "/incidents.jsonl", 1));
        REQUIRE(job.wait_for_lines(out + "/metrics.jsonl", count_lines(out + "/metrics.jsonl") + 2));
      }
      ::kill(job.workers().back(), SIGKILL);
      const auto o = job.wait(60);
      CHECK(o.code == exit_ok);
      check_nothing_left(o);
      CHECK(summary(out).at("params_hash") == hash);
      if (!changed) continue;  // it may have had no part in the run yet
      CHECK(summary(out).at("incidents").at("count") == 1);
      const auto lines = incidents(out);
      REQUIRE(lines.size() == 2);
      CHECK(lines[1].at("lost").dump() == "[3]");
      CHECK(lines[1].count("mesh") == (replaces ? 0 : 1));
    }
}

TEST_CASE("a spare takes the place of a worker that is gone for good, and the mesh stays") {
  TempDir dir;
  const std::string hash = calm_hash(dir);
  Run job(elastic(dir / "run", "dp=2",
                  {"--replace", "never", "--spares", "1", "--inject", "SIGKILL@update:mid#12/worker0", "--inject",
                   "SIGKILL@update:mid#60/worker1"}));
  REQUIRE(job.wait_for_lines(dir / "run/metrics.jsonl", 1));
  CHECK(job.workers().size() <= 3);
  const auto o = job.wait(60);
  CHECK(o.code == exit_ok);
  check_nothing_left(o);
  const auto lines = incidents(dir / "run");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("mesh") == "dp=2");
  CHECK(lines[0].at("lost").dump() == "[0]");
  CHECK(lines[0].at("moved_bytes") > 0);
  CHECK(lines[1].at("mesh") == "dp=1");
  CHECK(lines[1].at("lost").dump() == "[1]");
  CHECK(summary(dir / "run").at("params_hash") == hash);
  const auto useless = run(train(dir / "useless", {"--steps", "1", "--quiet", "--spares", "1"}));
  CHECK(useless.err.find("it needs --recovery and --replace never") != std::string::npos);
}

TEST_CASE("a run whose mesh has nothing to give up ends with the loss, and says who died and what is left") {
  TempDir dir;
  const auto o = run(elastic(dir / "run", "tp=2", {"--replace", "never", "--inject", "SIGKILL@update:mid#12/worker1"}));
  check_failure(o, exit_worker, {"worker 1", "killed by signal 9", "no shape of this job runs on 1 places"});
  CHECK(o.err.find("the loss of any worker will end the job: tp=2 has nothing to give up, and no other shape runs on 1 "
                   "workers") != std::string::npos);
}

TEST_CASE("a run that gives up says what to do in its first line (CR-4 giving up)") {
  TempDir dir;
  auto o = run(elastic(dir / "run", "dp=2", {"--worker-prefix", "timeout -s KILL 0.03"}));
  // Who kills a worker from outside, while UCX makes its files and has not unlinked them yet, leaves them.
  std::erase_if(o.left, [](const std::string& what) {
    return what.starts_with("/dev/shm/ucx_shm_posix_") && std::filesystem::remove(what);
  });
  check_failure(o, exit_do_not_requeue, {"the last one"});  // of incidents, or of generations without an act
  const std::string first = o.err.substr(0, o.err.find('\n', o.err.find("the last one")));
  CHECK_MESSAGE(first.find("If something outside the run took the workers, start it again") != std::string::npos,
                o.err);
}

TEST_CASE("a run goes on from copies, in the same mesh and in another one, as if nothing had happened") {
  TempDir dir;
  const std::string hash = calm_hash(dir);
  for (const auto& [mesh, recovery, replace, from] :
       {std::tuple("dp=2", "copies:5", "always", 30), {"dp=3", "copies:16", "never", 32}}) {
    const std::string out = dir / (std::string("run") + replace);
    auto words = elastic(out, mesh, {"--replace", replace, "--inject", "SIGKILL@update:mid#300/worker1"});
    *std::find(words.begin(), words.end(), "slots") = recovery;
    const auto o = run(words);
    CHECK_MESSAGE(o.code == exit_ok, o.err);
    const auto lines = incidents(out);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].at("from") == "memory");
    CHECK(lines[0].at("step") == from);  // nine groups: the loss is in step 33
    CHECK(summary(out).at("params_hash") == hash);
    CHECK(count_lines(out + "/metrics.jsonl") == 200);
  }
  for (const std::string wrong :
       {"copies:0", "copies:", "copies:-1", "copies:4x", "copies:08", "copies:1000000001", "slots:2"}) {
    const auto o = run(train(dir / "wrong", {"--recovery", wrong}));
    check_failure(o, exit_usage, {"\"" + wrong + "\" is no recovery: expected \"off\", \"slots\", or \"copies:K\""});
  }
}

TEST_CASE("a run that hangs as a signal comes saves the newest whole step after its grace (CR-6 grace)") {
  for (const char* recovery : {"slots", "copies:8"}) {
    TempDir dir;
    auto words = elastic(dir / "run", "dp=2",
                         {"--checkpoint-every", "1000", "--detect-budget", "60000", "--grace", "1", "--inject",
                          "HANG@norm:mid#100/worker1"});
    *std::find(words.begin(), words.end(), "slots") = recovery;
    Run job(words);
    REQUIRE(job.wait_for_lines(dir / "run/metrics.jsonl", 2));
    ::usleep(1'500'000);
    job.send(SIGTERM);
    const auto o = job.wait(30);
    check_failure(o, exit_interrupted, {"interrupted by Terminated after step"});
    CHECK(o.seconds < 10);
    const std::int64_t saved = summary(dir / "run").at("checkpoints").at("newest");
    CHECK(saved >= 1);
    CHECK(o.err.find("the run ends with step " + std::to_string(saved) + " (memory)") != std::string::npos);
    CHECK(summary(dir / "run").at("incidents").at("repeated_steps") == 0);  // they are given up
    CHECK(incidents(dir / "run").back().at("ends") == true);
    CHECK(count_lines(dir / "run/metrics.jsonl") >= saved);
    const auto more = run(train(dir / "run", {"--resume", "--quiet", "--steps", "200", "--set", "schedule.batch=8",
                                              "--set", "schedule.microbatch=1"}));
    CHECK(more.code == exit_ok);
    CHECK(summary(dir / "run").at("params_hash") == calm_hash(dir));
  }
}

TEST_CASE("a run survives a loss where /dev/shm has room for its workers, but not for a second generation of them") {
  TempDir dir;
  std::vector<std::string> words{"/usr/bin/unshare",
                                 "-m",
                                 "/bin/sh",
                                 "-c",
                                 "mount -t tmpfs -o size=24m tmpfs /dev/shm || exit 99; exec \"$@\"",
                                 "sh"};
  const auto job = elastic(dir / "run", "dp=4", {"--inject", "SIGKILL@update:mid#12/worker0"});
  words.insert(words.end(), job.begin(), job.end());
  const auto o = run(words);
  if (o.code == 99 || (o.code == 1 && o.err.starts_with("unshare: ")))
    return skip("no file system can be mounted here: " + o.err.substr(0, o.err.find('\n')));
  CHECK_MESSAGE(o.code == exit_ok, o.err);
  CHECK(incidents(dir / "run").size() == 1);
  CHECK(summary(dir / "run").at("params_hash") == calm_hash(dir));
}
