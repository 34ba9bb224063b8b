// What JobOptions ask of real worker processes: a trace of bounded size, memory, pinned threads.
#include <doctest/doctest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "checkpoint/manifest.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/time_slice.h"
#include "runtime/store/leadership.h"
#include "tests/process/apps.h"
#include "tests/skip.h"

using namespace mlp;
namespace fs = std::filesystem;

namespace {

Plan two_stages(const Pipeline& pipeline = {}) {
  static const auto ops = kernels::standard_ops();  // plans refer to it
  auto made = plan(ops, Shape_{}, {1, 1}, 0, pipeline);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return *std::move(made);
}

JobOptions steps(std::int64_t n) {
  JobOptions job;
  job.session.steps = n;
  return job;
}

/// "Key:  value" of a file in /proc.
std::string field(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.rfind(key + ":", 0) == 0) return line.substr(line.find_first_not_of(" \t", key.size() + 1));
  return "";
}

/// What `read` finds in the folders of the threads with this name, in /proc, of this process's children.
std::vector<std::string> of_threads(const std::string& name, const std::function<std::string(const fs::path&)>& read) {
  std::vector<std::string> out;
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::error_code gone;
    if (field(process.path() / "status", "PPid") != std::to_string(::getpid())) continue;
    for (const auto& thread : fs::directory_iterator(process.path() / "task", gone))
      if (field(thread.path() / "status", "Name") == name) out.push_back(read(thread.path()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Where the threads with this name may run.
std::vector<std::string> cores_of_threads(const std::string& name) {
  return of_threads(name, [](const fs::path& thread) { return field(thread / "status", "Cpus_allowed_list"); });
}

/// What sched_getattr tells of a thread; the kernel's header for it does not go with <sched.h>.
struct Scheduling {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns, deadline_ns, period_ns;
};

/// How the threads with this name are scheduled: "normal" with the nanoseconds of a slice of its own, or "batch".
std::vector<std::string> scheduling_of_threads(const std::string& name) {
  return of_threads(name, [](const fs::path& thread) -> std::string {
    Scheduling told{};
    const int id = std::stoi(thread.filename().string());
    if (::syscall(SYS_sched_getattr, id, &told, sizeof told, 0) != 0) return "unknown";
    return told.policy == SCHED_BATCH ? "batch" : "normal " + std::to_string(told.runtime_ns);
  });
}

}  // namespace

TEST_CASE("an actor of a kind that no program has registered, and an op, are refused by name before a worker starts") {
  kernels::OpSet ops = kernels::standard_ops();
  kernels::OpDef copy = *ops.find("relu");
  copy.name = "my_relu";
  REQUIRE(ops.add(copy).ok());
  for (const bool with_op : {false, true}) {
    CAPTURE(with_op);
    Graph g(ops);
    g.program("main", {});
    g.unit("before");
    const Value before = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 2}}}}, {{"stream", "x"}})[0];
    g.unit("behind");
    if (with_op) g.report("y", g.op("my_relu", {before}, {}, "first")[0]);
    else g.actor("sorce", "input", {before}, {});
    const auto plan = compile(g, {.stages = stage_meshes({1, 1})});
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    JobOptions job = steps(1);
    job.prefixes = {{"no-such-command"}};  // a worker that is started fails
    const JobResult result = test_app().run(*plan, job);
    CHECK(result.exit_code == exit_plan);
    CHECK(result.status.message() ==
          (with_op ? "op 'first' is of kind 'my_relu', which this program does not register"
                   : "actor 'input' is of kind 'sorce', which this program does not register: see App::actor, before "
                     "serve_if_worker"));
  }
}

TEST_CASE("a graph with a feed and no SessionOptions::feed is refused before a worker starts") {
  static const auto ops = kernels::standard_ops();
  Graph g(ops);
  g.program("sample", {2, 1});
  g.unit("in");
  g.report("token", g.op("add", {g.feed("prompt", {DType::f32, {1, 1}}), g.feed("more", {DType::f32, {1, 1}})})[0]);
  const auto fed = compile(g, {.stages = stage_meshes({1})});
  REQUIRE_MESSAGE(fed.ok(), fed.status().message());
  JobOptions job = steps(1);
  job.prefixes = {{"no-such-command"}};  // a worker that is started fails
  const auto result = test_app().run(*fed, job);
  CHECK(result.exit_code == exit_plan);
  CHECK_MESSAGE(result.status.message().find("feed 'prompt', and SessionOptions::feed is not set") != std::string::npos,
                result.status.message());
}

TEST_CASE("a rhythm of checkpoints without a folder, or below 0, is refused before a worker starts") {
  for (const std::int64_t every : {-1, 3}) {
    JobOptions job = steps(1);
    job.checkpoint.every = every;
    job.prefixes = {{"no-such-command"}, {"no-such-command"}};  // a worker that is started fails
    const auto result = test_app().run(two_stages(), job);
    CHECK(result.exit_code == exit_plan);
    CHECK_MESSAGE(
        result.status.message().find("JobOptions::checkpoint.every is " + std::to_string(every)) != std::string::npos,
        result.status.message());
  }
}

TEST_CASE("a clip or a divisor out of its range is refused before a worker starts") {
  for (const bool clip : {true, false}) {
    JobOptions job = steps(1);
    (clip ? job.session.clip : job.session.loss_divisor) = -1;
    job.prefixes = {{"no-such-command"}, {"no-such-command"}};  // a worker that is started fails
    const auto result = test_app().run(two_stages(), job);
    CHECK(result.exit_code == exit_plan);
    CHECK_MESSAGE(
        result.status.message().find(clip ? "SessionOptions::clip is -1" : "loss_divisor is -1") != std::string::npos,
        result.status.message());
  }
}

namespace {

/// A store that gives the lead, says so, and then is away for claims.
class StoreThatGoes final : public Store {
 public:
  Expected<std::optional<StoredClaim>> read() override {
    if (silent) return away();
    return taken_ ? std::optional(StoredClaim{*taken_, 1, true}) : std::optional<StoredClaim>();
  }
  Expected<std::optional<std::int64_t>> advance(std::int64_t, const Claim& next, bool) override {
    if (taken_) return away();
    taken_ = next;
    silent = goes_silent_;
    return std::optional(std::int64_t{1});
  }
  explicit StoreThatGoes(bool goes_silent) : goes_silent_(goes_silent) {}
  bool silent = false;

  Expected<bool> keep_lead() override { return away(); }
  std::int64_t keep_every_ms() const override { return 1000; }
  bool tells_of_loss() const override { return true; }
  Status wait_for_change(std::int64_t, std::int64_t) override { return away(); }
  Status withdraw() override { return away(); }
  std::string name() const override { return "a store of the test"; }

 private:
  static Status away() { return {Code::unavailable, "the store is away"}; }
  const bool goes_silent_;
  std::optional<Claim> taken_;
};

}  // namespace

TEST_CASE("a job to which its store gives no generation to begin with ends after its stall limit, and starts none") {
  JobOptions job = steps(1);
  job.stall_s = job.machines.wait_s = 1;
  job.prefixes = {{"no-such-command"}, {"no-such-command"}};  // a worker that is started fails
  for (const bool goes_silent : {false, true}) {
    job.machines.lead = std::make_shared<Leadership>(std::make_unique<StoreThatGoes>(goes_silent),
                                                     LeadershipOptions{.run = "r", .leader = 5, .patience_ms = 1000});
    REQUIRE(job.machines.lead->take("a:1", -1).ok());
    const auto result = test_app().run(two_stages(), job);
    CHECK(result.exit_code == exit_worker);
    CHECK(result.status.message() ==
          (goes_silent ? "a store of the test does not say whether this process leads run 'r' still"
                       : "the store has not answered for 1 s, without which no generation is entered"));
  }
}

TEST_CASE("a number of JobOptions out of its range is refused before a worker starts, by its name") {
  using Change = void (*)(JobOptions&);
  const std::pair<const char*, Change> cases[] = {
      {"paced is -1", [](JobOptions& o) { o.paced = -1; }},
      {"paced is nan", [](JobOptions& o) { o.paced = std::nan(""); }},
      {"paced is inf", [](JobOptions& o) { o.paced = std::numeric_limits<double>::infinity(); }},
      {"paced is 1e+300", [](JobOptions& o) { o.paced = 1e300; }},
      {"paced is 1000000000", [](JobOptions& o) { o.paced = 1e9; }},
      {"checkpoint.failures_max is 0", [](JobOptions& o) { o.checkpoint.failures_max = 0; }},
      {"throttle[0].latency_ns is 100000000000001",
       [](JobOptions& o) {
         o.throttle = {{0, 1, 100'000'000'000'001, 0}};
       }},
      {"run_kernels is false", [](JobOptions& o) { o.run_kernels = false; }},
      {"stall_s is 0", [](JobOptions& o) { o.stall_s = 0; }},
      {"detect_budget_ms is 99", [](JobOptions& o) { o.detect_budget_ms = 99; }},
      {"detect_budget_ms is 600001", [](JobOptions& o) { o.detect_budget_ms = 600'001; }},
      {"memory_bytes_max is -1", [](JobOptions& o) { o.memory_bytes_max = -1; }},
      {"trace is 0 steps from step -1",
       [](JobOptions& o) {
         o.trace = {-1, 0};
       }},
      {"trace is -1 steps from step 0",
       [](JobOptions& o) {
         o.trace = {0, -1};
       }},
      {"throttle[0].latency_ns is -5",
       [](JobOptions& o) {
         o.throttle = {{-1, -1, -5, 0}};
       }},
      {"throttle[1].latency_ns is 9",
       [](JobOptions& o) {
         o.throttle = {{}, {0, 1, INT64_MAX, 0}};
       }},
      {"throttle[0].bytes_per_second is -1",
       [](JobOptions& o) {
         o.throttle = {{0, 1, 0, -1}};
       }},
      {"throttle[0] is of ranks 7 and 0",
       [](JobOptions& o) {
         o.throttle = {{7, 0, 5, 0}};
       }},
      {"throttle[0] is of ranks 0 and 2",
       [](JobOptions& o) {
         o.throttle = {{0, 2, 5, 0}};
       }},
      {"throttle[0] is of ranks -3 and 0",
       [](JobOptions& o) {
         o.throttle = {{-3, 0, 5, 0}};
       }},
      {"throttle[0] is of ranks 1 and 1", [](JobOptions& o) {
         o.throttle = {{1, 1, 5, 0}};
       }}};
  for (const auto& [says, change] : cases) {
    JobOptions job = steps(1);
    job.prefixes = {{"no-such-command"}, {"no-such-command"}};  // a worker that is started fails
    change(job);
    const auto result = test_app().run(two_stages(), job);
    CHECK(result.exit_code == exit_plan);
    CHECK_MESSAGE(result.status.message().starts_with(std::string("JobOptions::") + says), result.status.message());
  }
  JobOptions most = steps(1);
  most.paced = std::nextafter(1e9, 0);
  most.run_kernels = false;
  most.throttle = {{0, 1, 100'000'000'000'000, 0}, {0, -1, 5, 0}, {-1, -1, 0, 1}};
  const Status taken = test_app().check(two_stages(), most);
  CHECK_MESSAGE(taken.ok(), taken.message());
}

TEST_CASE(
    "a job that would begin with another step than its checkpoint's is refused before a worker starts, and says both") {
  const fs::path folder = fs::temp_directory_path() / ("troupe-first-step-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  troupe::checkpoint::Manifest manifest;
  manifest.stamp.step = 6;
  const auto bytes = troupe::checkpoint::encode(manifest);
  std::ofstream(folder / "manifest", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  auto job = steps(8);
  job.session.first_step = 4;
  job.checkpoint.restore = folder.string();
  job.prefixes = {{"no-such-command"}, {"no-such-command"}};  // a worker that is started fails
  const auto result = test_app().run(two_stages(), job);
  fs::remove_all(folder);
  CHECK(result.exit_code == exit_checkpoint);
  CHECK_MESSAGE(result.status.message().find("is of step 6, and the job would begin with step 4") != std::string::npos,
                result.status.message());
}

TEST_CASE(
    "a job that begins in a folder with checkpoints of another run is refused before a worker starts, and they stay; "
    "one that goes on from them prunes them") {
  const fs::path folder = fs::temp_directory_path() / ("troupe-used-folder-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  CompileOptions o;
  o.stages = stage_meshes({1});
  o.snapshots = 2;
  const auto saving = compile(graph(test_app().ops(), Shape_{}), o);
  REQUIRE_MESSAGE(saving.ok(), saving.status().message());
  const auto job = [&](const std::string& into, std::int64_t first, std::int64_t last, const std::string& restore) {
    auto job = steps(last);
    job.session.first_step = first;
    job.checkpoint = {.dir = folder / into, .every = 1, .retention = {.keep = 1}, .restore = restore};
    return job;
  };
  const auto saved = [&](const std::string& in) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder / in))
      if (entry.path().filename() != "claim") names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto refused = [&](JobOptions options, const std::string& checkpoint) {
    options.prefixes = {{"no-such-command"}};  // a worker that is started fails
    const std::string into = fs::path(options.checkpoint.dir).filename();
    const auto before = saved(into);
    const std::string claim = field(folder / into / "claim", "{\"generation\"");
    const auto result = test_app().run(*saving, options);
    CHECK(result.exit_code == exit_output);
    CHECK_MESSAGE(result.status.message().find("checkpoint '" + (folder / into / checkpoint).string() +
                                               "' is of a run that this job does not go on from") != std::string::npos,
                  result.status.message());
    CHECK(saved(into) == before);
    CHECK(field(folder / into / "claim", "{\"generation\"") == claim);
  };
  using Names = std::vector<std::string>;
  for (const std::string into : {"a", "b"}) REQUIRE(test_app().run(*saving, job(into, 0, 2, "")).status.ok());
  REQUIRE(saved("a") == Names{"step-00000002.g1"});
  refused(job("a", 0, 3, ""), "step-00000002.g1");
  refused(job("a", 2, 3, folder / "b/step-00000002.g1"), "step-00000002.g1");
  const auto on = test_app().run(*saving, job("a", 2, 3, folder / "a/step-00000002.g1"));
  CHECK_MESSAGE(on.status.ok(), on.status.message());
  CHECK(saved("a") == Names{"step-00000003.g2"});
  // The job that goes on elsewhere is the same job: from its checkpoints it may go on in the first folder.
  REQUIRE(test_app().run(*saving, job("c", 3, 4, folder / "a/step-00000003.g2")).status.ok());
  const auto back = test_app().run(*saving, job("a", 4, 5, folder / "c/step-00000004.g1"));
  CHECK_MESSAGE(back.status.ok(), back.status.message());
  CHECK(saved("a") == Names{"step-00000005.g3"});
  fs::remove_all(folder);
}

TEST_CASE("a place that has nothing to save takes part in checkpoints all the same, and in going on from them") {
  const fs::path folder = fs::temp_directory_path() / ("troupe-nothing-to-save-" + std::to_string(::getpid()));
  fs::remove_all(folder);
  std::string hashes;
  for (const std::int64_t dp : {1, 2, 3}) {
    CAPTURE(dp);
    // The one row of its only weight is saved by one of the places.
    Graph g(test_app().ops());
    g.program("main", {.microbatches = 6, .samples = 2});
    g.unit("all");
    const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, 6}}}})[0];
    const Value y = g.actor("data", "y", {}, {{"y", {DType::f32, {2, 1}}}})[0];
    const Value w = g.param("w", {1, 6}, Init::constant(0.5));
    g.minimize(g.op("mse_loss", {g.op("linear", {x, w})[0], y}, {{"scale", 1. / 12}})[0], {});
    const auto p = compile(g, {.stages = stage_meshes({dp}), .snapshots = 2});
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    auto job = steps(2);
    job.checkpoint = {.dir = folder / std::to_string(dp), .every = 1};
    const auto first = test_app().run(*p, job);
    REQUIRE_MESSAGE(first.status.ok(), first.status.message());
    job.session.first_step = 2;
    job.session.steps = 3;
    job.checkpoint.restore = folder / std::to_string(dp) / "step-00000002.g1";
    const auto on = test_app().run(*p, job);
    REQUIRE_MESSAGE(on.status.ok(), on.status.message());
    if (hashes.empty()) hashes = on.params_hash;
    CHECK(on.params_hash == hashes);
  }
  fs::remove_all(folder);
}

TEST_CASE("a job that fails after its trace's window has the whole trace, and nothing outside the window") {
  auto job = steps(1'000'000);
  job.trace = {.first = 1, .steps = 2};
  std::int64_t last = -1;
  // The commit of step 3, the first after the window, makes workers send their spans before they go on to step 4.
  job.session.on_step = [&](const StepResult& r) { last = r.step; };
  job.give_up = [&] { return last >= 4 ? invalid("enough") : Status{}; };
  const auto made = two_stages();
  const JobResult result = test_app().run(made, job);
  CHECK(result.status.message() == "enough");
  REQUIRE(result.places.size() == 2);
  for (Rank r = 0; r < 2; ++r) {
    CHECK(result.places[r].dropped_spans == 0);
    std::map<std::int64_t, int> acts, updates;
    for (const auto& span : result.places[r].spans) {
      ++acts[span.step];
      const auto& role = made.roles[made.stage_of(r)];
      for (const auto& a : role.actors)
        if (a.name == span.row && a.kind == PlanActor::Kind::update) ++updates[span.step];
    }
    CHECK(acts.size() == 2);
    CHECK(acts[1] > 0);
    CHECK(acts[1] == acts[2]);  // the window's last step has as many acts as its first
    CHECK(updates[1] > 0);
    CHECK(updates[1] == updates[2]);
  }
}

TEST_CASE("a signal that comes as the reader of the output goes, as Ctrl-C does to a pipe, is what ends the job") {
  auto job = steps(1'000'000);
  job.reader_gone = [signalled = false]() mutable {
    if (!std::exchange(signalled, true)) ::raise(SIGINT);
    return true;
  };
  const JobResult result = test_app().run(two_stages(), job);
  CHECK(result.exit_code == exit_interrupted);
  CHECK_MESSAGE(result.status.message() == "interrupted by Interrupt", result.status.message());
}

TEST_CASE("workers that together need more memory than there is are refused, with both numbers") {
  const auto made = two_stages();
  std::int64_t need = 0;
  for (Rank r = 0; r < made.workers(); ++r) need += local_plan(made, r)->pool_bytes;
  auto job = steps(1);
  job.memory_bytes_max = need - 1;
  bool ready = false;
  job.on_ready = [&] { ready = true; };
  const JobResult refused = test_app().run(made, job);
  CHECK(refused.exit_code == exit_plan);
  CHECK(refused.status.code() == Code::exhausted);
  constexpr std::int64_t mib = 1 << 20;  // never fewer than are needed, never more than are there
  CHECK(refused.status.message().find("the plan needs " + std::to_string((need + mib - 1) / mib) +
                                      " MiB for its 2 workers and may use " + std::to_string((need - 1) / mib) +
                                      " MiB") == 0);
  CHECK_FALSE(ready);
  CHECK(refused.status.message().find("schedule.ahead") == std::string::npos);
  Plan further = made;
  further.pipeline.ahead = 1;
  CHECK(test_app().run(further, job).status.message().find("or fewer microbatches ahead (schedule.ahead)") !=
        std::string::npos);
  job.memory_bytes_max = need;
  const JobResult result = test_app().run(made, job);
  CHECK_MESSAGE(result.status.ok(), result.status.message());
}

TEST_CASE("a worker's peak memory is its own, not that of the process that started it") {
  constexpr std::int64_t large = 256 << 20;
  const std::vector<char> ours(large, 1);  // resident here, and in a fork until it executes
  const JobResult result = test_app().run(two_stages(), steps(1));
  REQUIRE_MESSAGE(result.status.ok(), result.status.message());
  for (const auto& place : result.places) {
    CHECK(place.peak_bytes > 1 << 20);
    CHECK(place.peak_bytes < large);
  }
  CHECK(ours.back() == 1);
}

TEST_CASE("pinned workers have a core for each compute thread; too few cores are refused, with both numbers") {
  const auto cores = usable_cores();
  auto job = steps(2);
  job.pin = true;
  std::vector<std::string> seen, messages;
  job.session.on_step = [&](const StepResult& r) {
    if (r.step != 0) return;  // they have worked: they have set themselves up
    seen = cores_of_threads("compute");
    messages = cores_of_threads("troupe-ucx");
  };
  const auto made = two_stages();
  if (cores.size() >= 2) {
    const JobResult result = test_app().run(made, job);
    REQUIRE_MESSAGE(result.status.ok(), result.status.message());
    std::vector<std::string> want = {std::to_string(cores[0]), std::to_string(cores[1])};
    std::sort(want.begin(), want.end());
    CHECK(seen == want);
    REQUIRE(messages.size() == 2);
    CHECK(messages[0] != messages[1]);  // each keeps off the core on which the other worker computes
  } else {
    troupe::test::skip("two pinned workers need two cores");
  }
  job.threads = static_cast<int>(cores.size());
  const JobResult refused = test_app().run(made, job);
  CHECK(refused.exit_code == exit_plan);
  CHECK(refused.status.message().find("needs " + std::to_string(2 * cores.size()) + " cores and this process may use " +
                                      std::to_string(cores.size())) != std::string::npos);
}

TEST_CASE(
    "no thread of a pinned worker with microbatches ahead preempts another; in other workers those of messages have "
    "short slices, and those that compute have the system's") {
  if (usable_cores().size() < 2) return troupe::test::skip("two pinned workers need two cores");
  bool allowed = false;
  std::thread([&] {
    const sched_param none{};
    allowed = ::sched_getscheduler(0) == SCHED_OTHER && ::sched_setscheduler(0, SCHED_BATCH, &none) == 0;
  }).join();
  if (!allowed || time_slice() == 0)
    return troupe::test::skip("this system refuses other policies, or knows no slices of a thread's own");
  const auto system_slice = "normal " + std::to_string(time_slice());
  using Threads = std::vector<std::string>;
  const auto scheduling = [](std::int32_t ahead, bool pin) {
    Pipeline pipeline;
    pipeline.ahead = ahead;
    auto job = steps(2);
    job.pin = pin;
    std::pair<Threads, Threads> seen;
    job.session.on_step = [&](const StepResult& r) {  // they have worked: they have set themselves up
      if (r.step == 0) seen = {scheduling_of_threads("troupe-ucx"), scheduling_of_threads("compute")};
    };
    const JobResult result = test_app().run(two_stages(pipeline), job);
    CHECK_MESSAGE(result.status.ok(), result.status.message());
    return seen;
  };
  CHECK(scheduling(1, true) == std::pair(Threads{"batch", "batch"}, Threads{"batch", "batch"}));
  const std::pair usual(Threads(2, "normal 100000"), Threads(2, system_slice));
  CHECK(scheduling(0, true) == usual);
  CHECK(scheduling(1, false) == usual);
}

TEST_CASE("a job with no compute thread is refused before a worker starts") {
  auto job = steps(1);
  job.prefixes = {{"no-such-command"}, {"no-such-command"}};  // a worker that is started fails
  for (const int threads : {0, -1}) {
    job.threads = threads;
    const JobResult result = test_app().run(two_stages(), job);
    CHECK(result.exit_code == exit_plan);
    CHECK_MESSAGE(result.status.message() == "JobOptions::threads is " + std::to_string(threads) + ": use 1 or more",
                  result.status.message());
  }
}
