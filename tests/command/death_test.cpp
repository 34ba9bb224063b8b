// However a job ends, it says why, and nothing outlives it.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

const char* const meshes[] = {"dp=2,pp=2", "dp=1"};

/// A job that would take hours, its third step behind it.
struct LongRun {
  TempDir dir;
  Run command;
  std::vector<pid_t> workers;

  explicit LongRun(const std::string& mesh, std::vector<std::string> more = {})
      : command(train(dir / "out", [&] {
          more.insert(more.end(), {"--mesh", mesh, "--steps", "10000000"});
          return more;
        }())) {
    const bool running = command.wait_for_lines(dir / "out/metrics.jsonl", 3);
    REQUIRE_MESSAGE(running, "the job did not come to its third step: ", command.wait(0).err);
    workers = command.workers();
  }

  void check_metrics_are_whole() const {
    std::istringstream lines(read(dir / "out/metrics.jsonl"));
    std::string line;
    int steps = 0;
    while (std::getline(lines, line)) {
      REQUIRE_FALSE(lines.eof());  // no newline at its end
      const auto object = nlohmann::json::parse(line, nullptr, false);
      REQUIRE_FALSE(object.is_discarded());
      if (object.contains("loss")) CHECK(object["step"] == steps++);
    }
    CHECK(steps >= 3);
  }
};

/// Those of SIGILL, SIGBUS, SIGFPE and SIGSEGV for which a process has a handler.
std::vector<int> caught_crashes(pid_t pid) {
  std::istringstream lines(read("/proc/" + std::to_string(pid) + "/status"));
  const std::string key = "SigCgt:";
  std::string line;
  while (std::getline(lines, line) && line.rfind(key, 0) != 0) {}
  REQUIRE(lines.good());
  const auto mask = std::stoull(line.substr(key.size()), nullptr, 16);
  std::vector<int> caught;
  for (const int signal : {SIGILL, SIGBUS, SIGFPE, SIGSEGV})
    if (((mask >> (signal - 1)) & 1) != 0) caught.push_back(signal);
  return caught;
}

/// 16 GiB of zeros, packed: some MiB, and more than is unpacked in the time that a command is given to end.
std::string packed_zeros(const TempDir& dir) {
  const auto member = dir / "member.gz";
  REQUIRE(std::system(("head -c 16777216 /dev/zero | gzip -n > " + member).c_str()) == 0);
  std::string all;
  for (int i = 0; i < 1024; ++i) all += read(member);  // gzip files may be joined
  return write_text(dir / "zeros.gz", all);
}

/// Returns once a text is being unpacked in the folder; false after ten seconds without one.
bool is_unpacking(const std::string& folder) {
  namespace fs = std::filesystem;
  for (int tries = 0; tries < 5000; ++tries, ::usleep(2000)) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      if (at->path().extension() == ".part" && at->file_size(error) > 0 && !error) return true;
  }
  return false;
}

/// The same of a process that unpacks into a temporary file without a name.
bool is_unpacking_unnamed(pid_t pid) {
  namespace fs = std::filesystem;
  for (int tries = 0; tries < 5000; ++tries, ::usleep(2000)) {
    std::error_code error;
    for (fs::directory_iterator at("/proc/" + std::to_string(pid) + "/fd", error), end; !error && at != end;
         at.increment(error)) {
      std::error_code gone;  // a file that was closed meanwhile
      const auto name = fs::read_symlink(at->path(), gone).string();
      if (gone || !name.starts_with(P_tmpdir "/") || !name.ends_with(" (deleted)")) continue;
      if (const auto bytes = fs::file_size(at->path(), gone); !gone && bytes > 0) return true;
    }
  }
  return false;
}

/// What a run that has ended must not leave in its output folder: temporary files, a run.json that says it goes on.
std::string unfinished_files(const std::string& out) {
  namespace fs = std::filesystem;
  std::string found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(out, error), end; !error && at != end; at.increment(error)) {
    const auto name = at->path().filename().string();
    if (name.starts_with(".write-test") || name.ends_with(".part") || name.ends_with(".tmp")) found += name + "\n";
  }
  if (!fs::exists(out + "/run.json", error)) return found;
  const auto record = nlohmann::json::parse(read(out + "/run.json"), nullptr, false);
  if (!record.is_object() || record.value("status", std::string("running")) == "running")
    found += "run.json of a run that goes on\n";
  return found;
}

}  // namespace

TEST_CASE("a worker that is killed ends the job within two seconds, by name, pid and signal") {
  for (const char* mesh : meshes) {
    CAPTURE(mesh);
    LongRun job(mesh);
    REQUIRE(job.workers.size() == (std::string(mesh) == "dp=1" ? 1 : 4));
    const std::size_t victim = job.workers.size() - 1;
    const auto pid = job.workers[victim];
    ::kill(pid, SIGKILL);
    const auto o = job.command.wait(2);
    check_failure(o, exit_worker,
                  {"troupe: worker " + std::to_string(victim) + " (pid " + std::to_string(pid) +
                   ") was killed by signal 9 (Killed)"});
    job.check_metrics_are_whole();
  }
}

TEST_CASE(
    "a worker that crashes ends the job by its pid and signal, and names what acted, without what UCX's library would "
    "print of it") {
  LongRun job("dp=2");
  REQUIRE(job.workers.size() == 2);
#ifdef __SANITIZE_ADDRESS__
  constexpr bool sanitized = true;  // a sanitizer's handlers are to be there, and report the crash
#else
  constexpr bool sanitized = false;
#endif
  CHECK_FALSE(caught_crashes(::getpid()).empty());  // doctest's own
  CHECK(caught_crashes(job.command.pid()).empty() != sanitized);
  for (const pid_t worker : job.workers) CHECK_FALSE(caught_crashes(worker).empty());  // to name the act
  ::kill(job.workers[1], SIGSEGV);
  const auto o = job.command.wait(10);
  const std::string how = sanitized ? "exited with code " : "was killed by signal 11 (Segmentation fault)";
  check_failure(o, exit_worker, {"troupe: worker 1 (pid " + std::to_string(job.workers[1]) + ") " + how});
  CHECK_MESSAGE(o.err.find("Caught signal") == std::string::npos, o.err);
  CHECK_MESSAGE((sanitized || o.err.find("troupe: Segmentation fault") != std::string::npos), o.err);
}

TEST_CASE(
    "a worker that is killed while others gather its parameters and wait for its gradients ends the job by name") {
  LongRun job("dp=3", {"--zero", "3"});
  REQUIRE(job.workers.size() == 3);
  ::kill(job.workers[1], SIGKILL);
  check_failure(job.command.wait(2), exit_worker,
                {"troupe: worker 1 (pid " + std::to_string(job.workers[1]) + ") was killed by signal 9"});
  job.check_metrics_are_whole();
}

TEST_CASE("a worker that no longer answers: the job gives up and says who waits for whom") {
  LongRun job("dp=1,pp=2", {"--stall-limit", "2"});
  REQUIRE(job.workers.size() == 2);
  ::kill(job.workers[1], SIGSTOP);
  const auto o = job.command.wait(6);
  check_failure(o, exit_stalled,
                {"no progress for 2 s: worker 1 does not answer\n", "program 'train', step ", "not closed by rank",
                 "worker 1 does not answer", "worker 0:\n"});
  // the rest was for the terminal
  CHECK(nlohmann::json::parse(read(job.dir / "out/run.json"))["status"] ==
        "no progress for 2 s: worker 1 does not answer");
}

TEST_CASE("a job that was stopped for longer than the stall limit goes on when it is continued") {
  LongRun job("dp=1,pp=2", {"--stall-limit", "1"});
  job.command.send_to_group(SIGSTOP);
  ::usleep(2'500'000);
  const int before = count_lines(job.dir / "out/metrics.jsonl");
  job.command.send_to_group(SIGCONT);
  REQUIRE(job.command.wait_for_lines(job.dir / "out/metrics.jsonl", before + 50));
  ::usleep(1'500'000);
  job.command.send(SIGTERM);
  check_one_line(job.command.wait(2), exit_interrupted, {"interrupted by "});
}

TEST_CASE("Ctrl-C and SIGTERM end the job with 130, its files whole") {
  for (const char* mesh : meshes)
    for (int signal : {SIGINT, SIGTERM}) {
      CAPTURE(mesh);
      CAPTURE(signal);
      LongRun job(mesh);
      // A terminal sends Ctrl-C to everybody; `kill` means the command only.
      if (signal == SIGINT) job.command.send_to_group(signal);
      else job.command.send(signal);
      const auto o = job.command.wait(2);
      check_one_line(o, exit_interrupted, {"interrupted by "});
      job.check_metrics_are_whole();
      const auto summary = nlohmann::json::parse(read(job.dir / "out/run.json"), nullptr, false);
      REQUIRE_FALSE(summary.is_discarded());
      CHECK(summary["status"].get<std::string>().find("interrupted") == 0);
    }
}

TEST_CASE("a job that is ended while its workers start leaves no process and no shared memory either") {
  // UCX fills its segments in /dev/shm before it unlinks them: a worker killed just then would leave them there.
  for (int signal : {SIGTERM, SIGKILL})
    for (int after_ms : {5, 15, 20, 25, 30, 35, 40, 50, 60, 80}) {
      CAPTURE(signal);
      CAPTURE(after_ms);
      TempDir dir;
      Run command(train(dir / "out", {"--mesh", "dp=4,pp=2", "--steps", "10000000"}));
      ::usleep(static_cast<useconds_t>(after_ms) * 1000);
      command.send(signal);
      const auto o = command.wait(2);
      CHECK_FALSE(o.timed_out);
      // very early, SIGTERM does what it does by default
      CHECK((o.signal == signal || o.code == exit_interrupted));
      check_nothing_left(o);
    }
}

TEST_CASE("a signal at any moment of the start leaves no temporary file, and no run.json of a run that goes on") {
  const auto end_by_signal = [](int after_ms, bool after_run_json) {
    const int signal = after_ms % 2 == 0 ? SIGTERM : SIGINT;
    CAPTURE(signal);
    CAPTURE(after_ms);
    CAPTURE(after_run_json);
    TempDir dir;
    const auto record = dir / "out/run.json";
    Run command(train(dir / "out", {"--steps", "10000000"}));
    if (after_run_json) REQUIRE(command.wait_for_lines(record, 1));
    ::usleep(static_cast<useconds_t>(after_ms) * 1000);
    command.send(signal);
    const auto o = command.wait(5);
    CHECK_FALSE(o.timed_out);
    // before there is a file, the signal may do what it does by default
    CHECK((o.code == exit_interrupted || (!after_run_json && o.signal == signal)));
    CHECK((!after_run_json || std::filesystem::exists(record)));
    CHECK(unfinished_files(dir / "out") == "");
    check_nothing_left(o);
  };
  for (int after_ms = 2; after_ms <= 92; after_ms += 3) end_by_signal(after_ms, false);
  // A machine may take longer than all these until the file is there.
  for (const int after_ms : {0, 1, 6, 15}) end_by_signal(after_ms, true);
}

TEST_CASE("a signal while the text is unpacked ends the command with 130, and what was unpacked is removed") {
  TempDir dir;
  const auto text = packed_zeros(dir), out = dir / "out";
  // a service manager sends two
  const std::vector<std::vector<int>> events = {{SIGINT}, {SIGTERM}, {SIGHUP}, {SIGTERM, SIGHUP}};
  for (const auto& signals : events) {
    const std::string which = signals.size() == 1 ? ::strsignal(signals.front()) : "";
    CAPTURE(signals.front());
    Run command(troupe_command({"train", tiny_config, "--data", text, "--out", out, "--steps", "1"}));
    const bool unpacking = is_unpacking(out + "/corpus");
    for (const int signal : signals) command.send_to_group(signal);
    const auto o = command.wait(10);
    REQUIRE_MESSAGE(unpacking, o.err);
    check_one_line(o, exit_interrupted, {"interrupted by " + which});
    CHECK(std::filesystem::is_empty(out + "/corpus"));
  }
}

TEST_CASE("a signal while eval unpacks a text ends it with 130: it waits for no end of the text, and prints no loss") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  const auto text = packed_zeros(dir);
  const std::vector<std::vector<int>> events = {{SIGINT}, {SIGTERM}, {SIGTERM, SIGHUP}};
  for (const auto& signals : events) {
    const std::string which = signals.size() == 1 ? ::strsignal(signals.front()) : "";
    CAPTURE(signals.front());
    Run command(troupe_command({"eval", "--from", dir / "out", "--data", text}));
    const bool unpacking = is_unpacking_unnamed(command.pid());
    for (const int signal : signals) command.send_to_group(signal);
    const auto o = command.wait(10);
    REQUIRE_MESSAGE(unpacking, o.err);
    check_one_line(o, exit_interrupted, {"interrupted by " + which});
    CHECK(o.out.empty());
  }
}

TEST_CASE("Ctrl-C ends a job whose worker has never read its plan, larger than a socket takes") {
  TempDir dir;
  const auto asleep = dir / "asleep";
  const auto sleeper = write_text(dir / "sleeper", "#!/bin/sh\necho asleep > " + asleep + "\nexec sleep 600\n");
  REQUIRE(::chmod(sleeper.c_str(), 0700) == 0);
  // A plan of 100 layers is well above a mebibyte; a socket takes about 200 KiB.
  Run command(train(dir / "out", {"--mesh", "dp=2", "--set", "model.layers=100", "--worker-prefix", sleeper}));
  REQUIRE(command.wait_for_lines(asleep, 1));
  command.send_to_group(SIGINT);
  check_one_line(command.wait(2), exit_interrupted, {"interrupted by "});
}

TEST_CASE("kill -9 of the command leaves no worker alive after one second") {
  for (const std::string mesh : meshes) {
    CAPTURE(mesh);
    LongRun job(mesh);
    job.command.send(SIGKILL);
    const auto o = job.command.wait(2);
    CHECK(o.signal == SIGKILL);
    CHECK(o.cleared_s < 1);
    check_nothing_left(o);
    MESSAGE(mesh, ": workers gone after ", o.cleared_s * 1e3, " ms");
  }
}

TEST_CASE("kill -9 of the command takes stopped workers with it") {
  LongRun job("dp=2");
  for (pid_t pid : job.workers) ::kill(pid, SIGSTOP);
  job.command.send(SIGKILL);
  check_nothing_left(job.command.wait(2));
}

TEST_CASE("an actor of the user that fails is named, with the cause and its worker's last words") {
  struct How {
    const char* argument;
    std::vector<std::string> says;
  };
  for (const auto& how :
       {How{"error", {"worker 1, actor 'culprit': the tape is torn"}},
        How{"throw", {"worker 1, actor 'culprit': ", "the tape is torn"}},
        How{"make", {"worker 1: actor 'culprit': there is no tape"}},
        How{"abort", {"worker 1 (pid ", "was killed by signal 6", "its last log lines:\n  culprit: the tape is torn"}},
#ifndef __SANITIZE_ADDRESS__
        How{"crash",
            {"worker 1 (pid ", "was killed by signal 11 (Segmentation fault)",
             "troupe: Segmentation fault in an act of actor 'culprit', step 2, microbatch 0\n"}},
        How{"thread", {"troupe: Segmentation fault while these act: actor 'culprit', step 2, microbatch 0\n"}},
        How{"op", {"troupe: Segmentation fault in an act of actor 'second", ", op 'glass', step 2, microbatch 0\n"}},
#endif
        How{"exit", {"worker 1 (pid ", "exited with code 42"}}}) {
    CAPTURE(how.argument);
    const auto o = run({FAILING_ACTOR, how.argument}, 5);
    check_failure(o, exit_worker, how.says);
    CHECK(o.seconds < 2);
  }
}
