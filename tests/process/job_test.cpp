// App::run from its caller's side: what it refuses, what it takes for a stall, what it does not wait for.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"
#include "devices/process/ignored_signals.h"
#include "runtime/launch/job.h"
#include "runtime/plan/plan_io.h"
#include "tests/apps/temp_dir.h"
#include "tests/process/apps.h"
#include "tests/process/held_worker.h"
#include "tests/skip.h"

using namespace mlp;
using troupe::test::TempDir;

namespace {

Plan good_plan(const Shape_& s, const std::vector<std::int64_t>& dp) {
  auto p = plan(test_app().ops(), s, dp);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

/// A worker's command after something else: `sh -c "script"` gets it as its arguments.
std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script, "sh"}; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

bool says(const Status& s, const std::string& words) { return s.message().find(words) != std::string::npos; }

}  // namespace

TEST_CASE("a plan that would deadlock is refused before any process starts") {
  TempDir dir;
  const auto mark = dir / "started";
  JobOptions job;
  job.session.steps = 1;
  job.stall_s = 5;
  job.prefixes = {shell("touch " + mark + "; exec \"$@\"")};
  const Plan good = good_plan({}, {1});
  const JobResult ran = test_app().run(good, job);
  REQUIRE_MESSAGE(ran.status.ok(), ran.status.message());
  REQUIRE(std::filesystem::remove(mark));  // a worker that starts leaves this mark

  Plan bad = good;
  for (auto& c : bad.roles[0].channels)
    if (c.name == "layer1.params") c.initial = false;
  const JobResult refused = test_app().run(bad, job);
  CHECK(refused.exit_code == exit_plan);
  CHECK(says(refused.status, "deadlock"));
  CHECK(says(refused.status, "'layer1.params'"));
  CHECK_FALSE(std::filesystem::exists(mark));
}

TEST_CASE(
    "a message of another generation from a worker is dropped and counted, and the job goes on (CL-1 one generation)") {
  for (const char* kind : {"data", "late"}) {
    Graph g(test_app().ops());
    g.program("train", {1, 1});
    g.actor(kind, "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}});
    const auto p = compile(g, {});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    JobOptions job;
    job.session.steps = 3;
    const JobResult ran = test_app().run(*p, job);
    CHECK_MESSAGE(ran.status.ok(), ran.status.message());
    CHECK(ran.late_messages == (kind == std::string("late") ? 2 : 0));
  }
}

TEST_CASE("each start of a job is a generation of its own, from the first message on") {
  TempDir dir;
  std::vector<std::string> heads;
  for (int run = 0; run < 2; ++run) {
    const std::string file = dir / std::to_string(run);
    JobOptions job;
    job.session.steps = 1;
    // Stores the head of the first message, its size, generation and job, and ends.
    job.prefixes = {{"bash", "-c", "head -c 16 <&\"${@: -1}\" >" + file, "bash"}};
    CHECK(test_app().run(good_plan({}, {1}), job).exit_code == exit_worker);
    std::ifstream in(file, std::ios::binary);
    heads.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    REQUIRE(heads.back().size() == 16);
  }
  const auto number = [](const std::string& head) { return head.substr(4, 4); };
  const auto job = [](const std::string& head) { return head.substr(8); };
  CHECK(number(heads[0]) == std::string("\1\0\0\0", 4));
  CHECK(number(heads[0]) == number(heads[1]));
  CHECK(job(heads[0]) != job(heads[1]));
}

TEST_CASE("a step that is longer than the stall limit, but makes progress, is no stall") {
  Shape_ s;
  s.layers = 1;
  s.microbatches = 12;
  Plan p = good_plan(s, {1});
  for (auto& a : p.roles[0].actors) a.cost_s = a.name == "layer0.fwd" || a.name == "layer0.bwd" ? 0.2 : 0;
  JobOptions job;
  job.paced = 1;
  job.run_kernels = false;
  job.session.steps = 1;
  job.stall_s = 3;
  std::chrono::steady_clock::time_point begin;
  double step_s = 0;
  job.on_ready = [&] { begin = std::chrono::steady_clock::now(); };
  job.session.on_step = [&](const StepResult&) { step_s = seconds_since(begin); };
  const JobResult result = test_app().run(p, job);
  CHECK_MESSAGE(result.status.ok(), result.status.message());
  CHECK(step_s > 4);  // nothing but word of progress came from the worker in this time
}

TEST_CASE("the acts of an application's own actors are progress too") {
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 16, .samples = 2});
  g.unit("all");
  g.actor("slow", "slow", {}, {{"x", {DType::f32, {2, 6}}}});
  const auto p = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 1;
  job.stall_s = 3;
  const JobResult result = test_app().run(*p, job);  // one step of 16 x 0.3 s
  CHECK_MESSAGE(result.status.ok(), result.status.message());
}

TEST_CASE("an act that is longer than the stall limit, but whose ops begin and end, is no stall") {
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("all");
  Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  for (int i = 0; i < 6; ++i) x = g.op("nap", {x})[0];
  g.report("x", x);
  const auto p = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 1;
  job.stall_s = 3;
  const JobResult result = test_app().run(*p, job);  // one act of 6 x 0.8 s
  CHECK_MESSAGE(result.status.ok(), result.status.message());
}

TEST_CASE("an actor that never comes back is a stall: its worker answers, and names it") {
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("first");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"stream", std::string("x")}})[0];
  g.unit("second");
  g.actor("stuck", "tape drive", {x}, {});
  const auto p = compile(g, {.stages = stage_meshes({1, 1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 10;
  job.stall_s = 2;
  const JobResult result = test_app().run(*p, job);
  CHECK(result.exit_code == exit_stalled);
  INFO(result.status.message());
  for (const char* words :
       {"no progress for 2 s", "program 'main', step 1", "worker 0:\n", "worker 1:\n", "tape drive"})
    CHECK_MESSAGE(says(result.status, words), "not said: ", words);
  CHECK_FALSE(says(result.status, "does not answer"));
}

TEST_CASE(
    "a worker that does not read, and a plan that is larger than its socket takes: a signal still ends the job at "
    "once") {
  Shape_ s;
  s.layers = 100;
  const Plan p = good_plan(s, {1, 1});
  int pair[2], room = 0;
  socklen_t size = sizeof room;
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  REQUIRE(::getsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, &size) == 0);
  for (int fd : pair) ::close(fd);
  REQUIRE(write_plan(p).size() > static_cast<std::size_t>(room));
  JobOptions job;
  job.session.steps = 1;
  job.prefixes = {shell("echo asleep; exec sleep 600")};
  std::chrono::steady_clock::time_point begin;
  job.on_log = [&](Rank rank, const std::string& line) {
    if (rank != 0 || line != "asleep") return;
    begin = std::chrono::steady_clock::now();
    ::kill(::getpid(), SIGINT);
  };
  const JobResult result = test_app().run(p, job);
  CHECK(result.exit_code == exit_interrupted);
  CHECK(seconds_since(begin) < 5);  // the sleeper is given half a second
}

TEST_CASE("a job says how many of its steps were void") {
  for (const double value : {1e6, 1.0}) {
    Graph g(test_app().ops());
    g.program("train", {2, 1});
    g.unit("all");
    const Value x = g.actor("outlier", "x", {}, {{"x", {DType::f32, {1, 4}}}}, {{"value", value}})[0];
    const Value t = g.actor("outlier", "t", {}, {{"t", {DType::f32, {1, 4}}}}, {{"value", 0.0}})[0];
    g.minimize(
        g.op("mse_loss", {g.op("linear", {x, g.param("w", {4, 4}, Init::constant(1))})[0], t}, {{"scale", 1.0}})[0],
        {});
    CompileOptions o;
    o.stages = stage_meshes({1});
    const auto plan = compile(g, o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    JobOptions job;
    job.session.steps = 2;
    const JobResult ran = test_app().run(*plan, job);
    REQUIRE_MESSAGE(ran.status.ok(), ran.status.message());
    CHECK(ran.committed_steps == 2);
    CHECK(ran.void_steps == (value > 1 ? 1 : 0));
  }
}

TEST_CASE(
    "an actor whose error reads as that of a lost peer, or of a checkpoint, is named at once; one that fails so twice "
    "ends any job") {
  for (const auto& [recovers, damaged] : {std::pair(false, 0.0), {true, 0.0}, {false, 1.0}, {true, 1.0}}) {
    CAPTURE(recovers);
    CAPTURE(damaged);
    Graph g(test_app().ops());
    g.program("train", {2, 1});
    g.unit("all");
    const Value x = g.actor("outlier", "x", {}, {{"x", {DType::f32, {1, 512}}}}, {{"value", 1.0}})[0];
    const Value t = g.actor("outlier", "t", {}, {{"t", {DType::f32, {1, 512}}}}, {{"value", 0.0}})[0];
    g.actor("torn", "tape", {}, {{"nothing", {DType::f32, {1, 4}}}}, {{"damaged", damaged}});
    g.minimize(g.op("mse_loss", {g.op("linear", {x, g.param("w", {512, 512}, Init::normal(0.1f))})[0], t},
                    {{"scale", 1.0}})[0],
               {});
    CompileOptions o;
    o.stages = stage_meshes({1});
    o.keeps_version = recovers;
    const auto plan = compile(g, o);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    JobOptions job;
    job.session.steps = 10;
    job.recovers = recovers;
    std::vector<Incident> incidents;
    job.on_incident = [&](const Incident& i) { incidents.push_back(i); };
    const JobResult result = test_app().run(*plan, job);
    CHECK_MESSAGE(says(result.status, "nothing more comes"), result.status.message());
    CHECK_MESSAGE(says(result.status, "tape"), result.status.message());
    CHECK(result.exit_code == (recovers ? exit_do_not_requeue : exit_worker));
    CHECK(std::ssize(incidents) <= (recovers ? 2 : 0));  // one, where it fails again before any other actor acts
    CHECK(std::ssize(incidents) >= (recovers ? 1 : 0));
    for (const Incident& i : incidents) CHECK_MESSAGE(i.actor == "tape", i.cause << " committed " << i.committed);
  }
}

TEST_CASE("a run that diverges first finishes the evaluation and the checkpoint of an earlier version, which is good") {
  TempDir dir;
  Graph g(test_app().ops());
  const DType f32 = DType::f32;
  const auto loss = [&](const Value& x, const Value& t) {
    return g.op("mse_loss", {g.op("linear", {x, g.param("w", {512, 512}, Init::normal(0.1f))})[0], t},
                {{"scale", 1.0}})[0];
  };
  g.program("train", {2, 1});
  g.unit("all");
  const Value x = g.actor("diverging", "x", {}, {{"x", {f32, {1, 512}}}}, {{"step", std::int64_t{1}}})[0];
  const Value t = g.actor("outlier", "t", {}, {{"t", {f32, {1, 512}}}}, {{"value", 0.0}})[0];
  g.minimize(loss(x, t), {});
  g.program("evaluate", {4, 1});
  g.unit("all");
  const Value slow = g.actor("slow", "eval.x", {}, {{"x", {f32, {1, 512}}}})[0];  // 4 x 0.3 s, beside step 1
  const Value zero = g.actor("outlier", "eval.t", {}, {{"t", {f32, {1, 512}}}}, {{"value", 0.0}})[0];
  g.report("eval_loss", loss(slow, zero));
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  const auto plan = compile(g, o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  JobOptions job;
  job.session.steps = 10;
  job.session.readers = [](std::int64_t version) {
    return version == 1 ? std::vector<std::string>{"evaluate"} : std::vector<std::string>{};
  };
  std::vector<std::int64_t> evaluated;
  job.session.on_closed = [&](const std::string&, std::int64_t version, const std::vector<Report>&) {
    evaluated.push_back(version);
  };
  job.checkpoint.dir = dir / "checkpoints";
  job.checkpoint.every = 1;
  const JobResult result = test_app().run(*plan, job);
  CHECK(result.exit_code == exit_diverged);
  CHECK_MESSAGE(says(result.status, "step 1: "), result.status.message());
  CHECK_MESSAGE(says(result.status, "training has diverged"), result.status.message());
  CHECK(result.committed_steps == 1);
  CHECK(evaluated == std::vector<std::int64_t>{1});
  troupe::FileStorage storage;
  const auto saved = troupe::checkpoint::Catalog(storage, dir / "checkpoints").entries();
  REQUIRE_MESSAGE(saved.ok(), saved.status().message());
  REQUIRE(saved->size() == 1);
  CHECK(saved->front().step == 1);
  CHECK(saved->front().committed);
}

TEST_CASE("a worker that dies is missed at once, though a process that an actor of it has started lives on") {
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("all");
  g.actor("orphaning", "x", {}, {{"x", {DType::f32, {2, 6}}}});
  const auto p = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 3;
  job.stall_s = 3;
  const JobResult result = test_app().run(*p, job);
  CHECK(result.exit_code == exit_worker);
  CHECK_MESSAGE(says(result.status, "was killed by signal 9"), result.status.message());
}

namespace {

constexpr int killed_ms = 300;  ///< instead of half a minute

/// Runs a job of one worker, which is traced when the first step begins. Tells the job's exit code, committed steps and
/// error. `interrupt`: a signal ends the job; else it ends by itself.
void run_with_held_worker(int asked, int tell, bool interrupt) {
  const auto p = plan(test_app().ops(), {}, {1});
  if (!p.ok()) ::_exit(1);
  JobOptions job;
  job.session.steps = 2;
  job.prefixes = {shell("echo $$; exec \"$@\"")};
  bool is_told = false;
  job.on_log = [&](Rank, const std::string& line) {
    if (std::exchange(is_told, true)) return;
    const pid_t worker = std::atoi(line.c_str());
    HeldWorker::tell(tell, &worker, sizeof worker);
  };
  job.on_ready = [&] {
    HeldWorker::wait_until(asked);
    if (interrupt) ::raise(SIGINT);
  };
  const JobResult result = run_job(*p, job, killed_ms);
  const std::string told = std::to_string(result.exit_code) + "|" + std::to_string(result.committed_steps) + "|" +
                           result.status.message();
  HeldWorker::tell(tell, told.data(), told.size());
}

/// Runs a job of one worker, which is traced and killed when the first step begins, for a second. Tells how often the
/// job has turned since, and its error.
void run_with_dead_worker(int asked, int tell) {
  const auto p = plan(test_app().ops(), {}, {1});
  if (!p.ok()) ::_exit(1);
  JobOptions job;
  job.session.steps = 1'000'000;
  job.prefixes = {shell("echo $$; exec \"$@\"")};
  pid_t worker = 0;
  job.on_log = [&](Rank, const std::string& line) {
    if (worker == 0) worker = std::atoi(line.c_str()), HeldWorker::tell(tell, &worker, sizeof worker);
  };
  std::optional<std::chrono::steady_clock::time_point> killed;
  job.on_ready = [&] {
    HeldWorker::wait_until(asked);
    ::kill(worker, SIGKILL);
    killed = std::chrono::steady_clock::now();
  };
  int turns = 0;
  job.give_up = [&] {  // asked in each turn
    turns += killed ? 1 : 0;
    return killed && seconds_since(*killed) > 1 ? invalid("enough") : Status{};
  };
  const JobResult result = run_job(*p, job, killed_ms);
  const std::string told = std::to_string(turns) + "|" + result.status.message();
  HeldWorker::tell(tell, told.data(), told.size());
}

}  // namespace

TEST_CASE("a job whose worker has died and is held by a debugger turns several times a second, not without a pause") {
  const HeldWorker dead(run_with_dead_worker);
  if (!dead.why_not.empty()) return troupe::test::skip(dead.why_not);
  INFO(dead.told);
  CHECK(dead.told.ends_with("|" + dead.left() + "; enough"));
  const int turns = std::atoi(dead.told.c_str());
  CHECK(turns > 1);
  CHECK(turns < 20);
}

TEST_CASE(
    "a job whose worker SIGKILL does not end leaves it and names it: with exit_worker where all else is well, before "
    "the other error and with that error's exit code where there is one") {
  const HeldWorker ended([](int asked, int tell) { run_with_held_worker(asked, tell, false); });
  if (!ended.why_not.empty()) return troupe::test::skip(ended.why_not);
  CHECK_MESSAGE(ended.told == std::to_string(exit_worker) + "|2|" + ended.left(), ended.told);
  const HeldWorker interrupted([](int asked, int tell) { run_with_held_worker(asked, tell, true); });
  REQUIRE(interrupted.why_not.empty());
  const std::string code = std::to_string(exit_interrupted) + "|";
  CHECK_MESSAGE(interrupted.told.starts_with(code), interrupted.told);
  CHECK_MESSAGE(interrupted.told.ends_with("|" + interrupted.left() + "; interrupted by Interrupt"), interrupted.told);
}

TEST_CASE("a job in a process that ignores SIGCHLD does not invent the exit code of a worker that dies") {
  for (const bool ignores : {false, true}) {
    CAPTURE(ignores);
    struct sigaction before {};
    REQUIRE(::sigaction(SIGCHLD, nullptr, &before) == 0);
    if (ignores) ::signal(SIGCHLD, SIG_IGN);
    JobOptions job;
    job.stall_s = 20;
    job.prefixes = {shell("exit 3")};
    const JobResult result = test_app().run(good_plan({}, {1}), job);
    ::sigaction(SIGCHLD, &before, nullptr);
    CHECK(result.exit_code == exit_worker);
    INFO(result.status.message());
    CHECK(says(result.status, "worker 0 (pid "));
    CHECK(says(result.status, ") exited with code 3") == !ignores);
    CHECK(says(result.status, ") has ended; its exit code is unknown") == ignores);
    CHECK_FALSE(says(result.status, "code 0"));
  }
}

TEST_CASE("a signal that nothing has taken has no effect when a job ends, and its usual one where it is passed on") {
  static volatile sig_atomic_t effects = 0;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    REQUIRE_FALSE(ignored_at_start(signal));  // main.cpp sees to it
    effects = 0;
    struct sigaction before {};
    REQUIRE(::sigaction(signal, nullptr, &before) == 0);
    ::signal(signal, [](int) { effects = effects + 1; });
    {
      const EndSignals signals;
      ::raise(signal);
      CHECK(signals.take().value_or(0) == signal);
      CHECK_FALSE(signals.take().has_value());
      ::raise(signal);
    }
    const int dropped = effects;
    int kept = 0;
    {
      EndSignals signals;
      signals.pass_on();
      ::raise(signal);
      kept = effects;
    }
    const int passed_on = effects;
    ::raise(signal);
    const int afterwards = effects;
    ::sigaction(signal, &before, nullptr);
    CHECK(dropped == 0);
    CHECK(kept == 0);
    CHECK(passed_on == 1);
    CHECK(afterwards == 2);
  }
}

TEST_CASE("a signal that came before a job, while its caller held signals back, ends the job before a worker starts") {
  TempDir dir;
  const auto mark = dir / "started";
  JobOptions job;
  job.session.steps = 1;
  job.prefixes = {shell("touch " + mark + "; exec \"$@\"")};
  const Plan p = good_plan({}, {1});
  for (const bool passed_on : {false, true}) {
    CAPTURE(passed_on);
    const EndSignals held;
    if (passed_on) {  // as of a job that has ended, and that is followed by another one
      EndSignals earlier;
      earlier.pass_on();
      ::raise(SIGTERM);
    } else {
      ::raise(SIGTERM);
    }
    const JobResult result = test_app().run(p, job);
    CHECK(result.exit_code == exit_interrupted);
    CHECK_MESSAGE(result.status.message() == "interrupted by Terminated", result.status.message());
    CHECK(result.committed_steps == 0);
    CHECK_FALSE(std::filesystem::exists(mark));
    CHECK_FALSE(held.take().has_value());
  }
  const JobResult next = test_app().run(p, job);  // the signal has ended one job only
  CHECK_MESSAGE(next.status.ok(), next.status.message());
  CHECK(std::filesystem::exists(mark));
}

TEST_CASE(
    "signals that UCX takes as it is loaded have their effect again, in the process that starts a job and in a worker: "
    "a crash ends it by its signal, and no library reports it") {
  CHECK_MESSAGE(taken_at_load != "", "UCX has taken no signal as it was loaded: nothing is shown");
  // doctest handles those of a crash itself, but not SIGBUS
  CHECK(strange_signals(false) == "");
  struct sigaction bus {};
  REQUIRE(::sigaction(SIGBUS, nullptr, &bus) == 0);
#ifdef __SANITIZE_ADDRESS__
  CHECK((bus.sa_handler != SIG_DFL));  // the sanitizer's own handler is back
#else
  CHECK((bus.sa_handler == SIG_DFL));
#endif
  Graph g(test_app().ops());
  g.program("main", {.microbatches = 1, .samples = 2});
  g.unit("all");
  g.actor("signals", "x", {}, {{"x", {DType::f32, {2, 6}}}});
  const auto p = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  JobOptions job;
  job.session.steps = 1;
  std::vector<std::string> reported;
  job.session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
    for (const auto& r : reports) reported.push_back(r.name);
  };
  const JobResult result = test_app().run(*p, job);
  CHECK_MESSAGE(result.status.ok(), result.status.message());
  CHECK(reported == std::vector<std::string>{"looked"});
}

TEST_CASE(
    "a program that does not call serve_if_worker: its workers start none, and its job ends at once and says which "
    "call "
    "is missing, whether the worker prints that or not") {
  const std::string refusal =
      "this process is a worker (--troupe-worker): call App::serve_if_worker in main before the job is run";
  const Plan p = good_plan({}, {1, 1});
  for (const bool silent : {false, true}) {
    CAPTURE(silent);
    TempDir dir;
    const auto started = dir / "started";
    JobOptions job;
    job.stall_s = 5;
    std::vector<std::string> prefix = {"env", std::string(unserved_variable) + "=" + started};
    if (silent) prefix.push_back(std::string(silent_variable) + "=1");
    job.prefixes.assign(2, prefix);
    std::vector<std::string> lines;
    job.on_log = [&](Rank, const std::string& line) { lines.push_back(line); };
    const JobResult result = test_app().run(p, job);
    CHECK(result.exit_code == exit_worker);
    CHECK_MESSAGE(says(result.status, refusal), result.status.message());
    CHECK(lines.size() <= (silent ? 0 : 2));
    for (const auto& line : lines) CHECK(line == refusal);
    std::ifstream in(started);
    int processes = 0;
    for (int pid; in >> pid; ++processes) CHECK((::kill(pid, 0) != 0 && errno == ESRCH));
    CHECK(processes >= 1);
    CHECK(processes <= 2);  // the workers of this job, and none of theirs
  }
}

TEST_CASE(
    "an actor that runs a job, in its worker or in a process that it forks, is told that this process cannot, and not "
    "that main has forgotten a call; the session hears it from the actor") {
  for (const std::int64_t forks : {0, 1}) {
    CAPTURE(forks);
    Graph g(test_app().ops());
    g.program("main", {.microbatches = 1, .samples = 2});
    g.unit("all");
    g.actor("nesting", "x", {}, {{"x", {DType::f32, {2, 6}}}}, {{"forks", forks}});
    const auto p = compile(g, {.stages = stage_meshes({1})});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    JobOptions job;
    job.session.steps = 1;
    const JobResult result = test_app().run(*p, job);
    CHECK(result.exit_code == exit_worker);
    INFO(result.status.message());
    CHECK(says(result.status, "actor 'x'"));
    CHECK(says(result.status, forks ? "was forked by a worker (pid " : "is a worker that serves a job"));
    CHECK(says(result.status, "run a job in main, or in a program that the actor starts"));
    CHECK_FALSE(says(result.status, "serve_if_worker"));
  }
}

TEST_CASE("serve_if_worker gives SIGHUP its effect back where a library has taken it, and leaves a handler of main's") {
  struct sigaction before {
  }, after{};
  REQUIRE(::sigaction(SIGHUP, nullptr, &before) == 0);
  CHECK((before.sa_handler == SIG_DFL));  // main has called it: UCX had a handler
  void (*const own)(int) = [](int) {};
  ::signal(SIGHUP, own);
  char name[] = "test";
  char* argv[] = {name, nullptr};
  test_app().serve_if_worker(1, argv);
  REQUIRE(::sigaction(SIGHUP, nullptr, &after) == 0);
  ::sigaction(SIGHUP, &before, nullptr);
  CHECK((after.sa_handler == own));
}
