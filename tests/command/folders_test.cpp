// The folders of a run: who may write there, what is left of earlier runs, what a run that goes on does.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "tests/command/checks.h"
#include "tests/command/summary.h"

using namespace troupe::runtime;
using namespace troupe::test;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// A run that would take hours, once its metrics have so many lines.
struct Endless {
  Run command;
  Endless(const std::string& out, std::vector<std::string> more, int lines = 3)
      : command(train(out, [&] {
          more.insert(more.end(), {"--steps", "1000000", "--set", "eval.every=0"});
          return more;
        }())) {
    const bool running = command.wait_for_lines(out + "/metrics.jsonl", lines);
    REQUIRE_MESSAGE(running, "the job makes no steps: ", command.wait(0).err);
  }
};

}  // namespace

TEST_CASE("a folder of checkpoints that cannot be taken ends the command with one line that names it, quiet or not") {
  TempDir dir;
  for (const char* claim : {"", "garbage", "{\"job\": 7}"}) {
    CAPTURE(claim);
    fs::create_directories(dir / "checkpoints");
    write_text(dir / "checkpoints/claim", claim);
    check_one_line(run(train(dir / "out", {"--steps", "2", "--checkpoint-every", "1", "--checkpoint-dir",
                                           dir / "checkpoints", "--quiet"})),
                   exit_checkpoint, {"'" + (dir / "checkpoints/claim") + "' is damaged"});
  }
  write_text(dir / "file", "no folder");
  const auto o = run(
      train(dir / "out", {"--steps", "2", "--checkpoint-every", "1", "--checkpoint-dir", dir / "file/checkpoints"}));
  CHECK((o.code == exit_output || o.code == exit_checkpoint));
  CHECK_MESSAGE(o.err.find(dir / "file") != std::string::npos, o.err);
  check_nothing_left(o);
}

TEST_CASE(
    "of two runs at a time one writes into an output folder, or into a folder of checkpoints; kill -9 frees both at "
    "once") {
  TempDir dir;
  // and some checkpoints
  Endless first(dir / "one", {"--checkpoint-every", "5", "--checkpoint-dir", dir / "checkpoints"}, 30);
  check_one_line(run(train(dir / "one", {"--steps", "1"})), exit_output,
                 {"output folder '" + (dir / "one") + "' is written by another run"});
  check_one_line(run(train(dir / "two", {"--quiet", "--resume", dir / "checkpoints", "--checkpoint-every", "5",
                                         "--checkpoint-dir", dir / "checkpoints", "--steps", "1000000"})),
                 exit_checkpoint, {"'" + (dir / "checkpoints") + "' is written by another run"});
  check_one_line(run(train(dir / "two", {"--quiet", "--checkpoint-every", "5", "--checkpoint-dir", dir / "checkpoints",
                                         "--steps", "1"})),
                 exit_checkpoint, {"'" + (dir / "checkpoints") + "' is written by another run"});
  // nor a run that goes on from elsewhere
  check_success(run(train(dir / "before", {"--quiet", "--checkpoint-every", "1", "--steps", "1"})));
  check_one_line(run(train(dir / "two", {"--quiet", "--resume", dir / "before", "--checkpoint-every", "5",
                                         "--checkpoint-dir", dir / "checkpoints", "--steps", "2"})),
                 exit_checkpoint, {"'" + (dir / "checkpoints") + "' is written by another run"});
  check_one_line(run(troupe_command({"ckpt", "prune", dir / "checkpoints", "--keep", "1"})), exit_checkpoint,
                 {"'" + (dir / "checkpoints") + "' is written by another run"});
  first.command.send(SIGKILL);
  first.command.wait(2);
  const auto o = run(train(dir / "one", {"--resume", "--checkpoint-dir", dir / "checkpoints", "--quiet", "--set",
                                         "eval.every=0", "--steps", "1"}));
  CHECK(o.err.find("written by another run") == std::string::npos);
}

TEST_CASE(
    "a run does not go on from a folder that another run saves in, wherever it would write itself; a reader may") {
  TempDir dir;
  Endless first(dir / "one", {"--checkpoint-every", "5"}, 30);
  const auto fork = [&](const std::string& from) {
    return run(train(dir / "two", {"--quiet", "--resume", from, "--checkpoint-every", "0", "--set", "eval.every=0",
                                   "--steps", "1000000", "--stall-limit", "5"}),
               5);
  };
  const std::string checkpoints = dir / "one/checkpoints";
  for (const auto& from : {dir / "one", checkpoints})
    check_one_line(fork(from), exit_checkpoint, {"--resume: '" + checkpoints + "' is written by another run"});
  CHECK_FALSE(fs::exists(dir / "two/metrics.jsonl"));
  check_success(run(troupe_command({"ckpt", "ls", dir / "one"})));
  const auto sample = run(troupe_command({"sample", "--from", dir / "one", "--tokens", "1"}));
  CHECK_MESSAGE(sample.err.find("written by another run") == std::string::npos, sample.err);
}

TEST_CASE(
    "a run whose folder of checkpoints a job on another machine has claimed ends with the first one that is refused, "
    "names that job, and goes on where it was when told to") {
  TempDir dir;
  const std::string checkpoints = dir / "out/checkpoints";
  Endless first(dir / "out", {"--checkpoint-every", "5", "--set", "checkpoint.max_failures=1000000"}, 30);
  troupe::FileStorage storage;
  // Without the lock, of which another machine knows nothing.
  const auto claim = troupe::checkpoint::Catalog(storage, checkpoints).claim(5, 0);
  REQUIRE_MESSAGE(claim.ok(), claim.status().message());
  check_failure(first.command.wait(20), exit_checkpoint,
                {" failed (1 in a row): ", "troupe: this run is superseded, its checkpoint of step ",
                 "'" + checkpoints + "' belongs to generation 2 of job 0000000000000005: generation 1 of job ",
                 "end that job and go on here with --resume"});
  const auto newest = summary(dir / "out")["checkpoints"]["newest"].get<std::int64_t>();
  CHECK(newest >= 5);
  const auto steps = summary(dir / "out")["steps"].get<std::int64_t>() + 3;
  const auto more = std::to_string(steps);
  // Saves at its end only: a disk that does not keep up with every fifth step is told of.
  check_success(run(train(
      dir / "out", {"--resume", "--steps", more, "--checkpoint-every", "100000", "--set", "eval.every=0", "--quiet"})));
  CHECK(summary(dir / "out")["resumed_at"] == newest);
  CHECK(fs::exists(checkpoints + "/" + troupe::checkpoint::folder_name(steps, 3) + "/manifest"));
  check_success(run(train(dir / "straight", {"--steps", more, "--set", "eval.every=0", "--quiet"})));
  CHECK(summary(dir / "out")["params_hash"] == summary(dir / "straight")["params_hash"]);
}

TEST_CASE(
    "--resume auto begins a run that has no checkpoint, sets aside what a start without one has left, and goes on from "
    "the newest once there is one, or the one before where that is damaged; where all are, it does not begin anew") {
  TempDir dir;
  const auto start = [&](const char* steps, const char* every) {
    return run(train(dir / "out", {"--resume", "auto", "--steps", steps, "--checkpoint-every", every, "--quiet"}));
  };
  check_success(start("2", "0"));  // no folder yet
  const auto metrics = read(dir / "out/metrics.jsonl");
  check_success(start("2", "2"));  // lines, and no checkpoint
  CHECK(read(dir / "out/earlier-1/metrics.jsonl") == metrics);
  check_success(start("4", "2"));
  CHECK(summary(dir / "out")["resumed_at"] == 2);
  std::vector<std::string> manifests;
  for (const auto& entry : fs::directory_iterator(dir / "out/checkpoints"))
    if (fs::exists(entry.path() / "manifest")) manifests.push_back((entry.path() / "manifest").string());
  std::sort(manifests.begin(), manifests.end());
  REQUIRE(manifests.size() == 2);
  write_text(manifests[1], "garbage");
  const Outcome passed = start("4", "2");
  CHECK(passed.code == exit_ok);
  CHECK(passed.err.find("is passed over") != std::string::npos);
  CHECK(summary(dir / "out")["resumed_at"] == 2);
  check_success(run(train(dir / "straight", {"--steps", "4", "--quiet"})));
  CHECK(summary(dir / "out")["params_hash"] == summary(dir / "straight")["params_hash"]);
  for (const auto& entry : fs::directory_iterator(dir / "out/checkpoints"))
    if (fs::exists(entry.path() / "manifest")) write_text((entry.path() / "manifest").string(), "garbage");
  CHECK(start("6", "2").code == exit_checkpoint);
  check_one_line(run(troupe_command({"train", "--resume", "auto", "--out", dir / "none"})), exit_usage,
                 {"--resume auto: the run may begin: give its configuration"});
}

TEST_CASE("checkpoints may lie in the output folder itself") {
  TempDir dir;
  check_success(
      run(train(dir / "out", {"--steps", "2", "--checkpoint-every", "2", "--checkpoint-dir", dir / "out", "--quiet"})));
  check_success(run(train(dir / "out", {"--steps", "4", "--resume", "--checkpoint-dir", dir / "out", "--quiet"})));
  CHECK(summary(dir / "out")["resumed_at"] == 2);
  CHECK(summary(dir / "out")["checkpoints"]["newest"] == 4);
}

TEST_CASE(
    "what an earlier run has left is set aside, whole, by a run that does not go on from it; run.json tells that a run "
    "is under way") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "3", "--quiet"})));
  const auto metrics = read(dir / "out/metrics.jsonl"), hash = summary(dir / "out")["params_hash"].get<std::string>();
  {
    Endless second(dir / "out", {}, 12);  // more than the earlier one has
    CHECK(summary(dir / "out")["status"] == "running");
    CHECK(read(dir / "out/earlier-1/metrics.jsonl") == metrics);
    CHECK(summary(dir / "out/earlier-1")["params_hash"] == hash);
    CHECK(fs::exists(dir / "out/earlier-1/loss.svg"));
    second.command.send(SIGTERM);
    CHECK(second.command.wait(5).code == exit_interrupted);
  }
  check_success(run(train(dir / "out", {"--steps", "1", "--quiet"})));
  CHECK(fs::exists(dir / "out/earlier-2/metrics.jsonl"));
  CHECK(count_lines(dir / "out/metrics.jsonl") >= 1);
  // A checkpoint of another run: its steps are not this folder's.
  check_success(run(train(dir / "other", {"--steps", "4", "--checkpoint-every", "4", "--quiet"})));
  check_success(run(train(
      dir / "out", {"--steps", "6", "--resume", dir / "other/checkpoints", "--checkpoint-every", "0", "--quiet"})));
  CHECK(fs::exists(dir / "out/earlier-3/metrics.jsonl"));
  CHECK(summary(dir / "out")["resumed_at"] == 4);
  // Results of a run without checkpoints, where another one's are: they are not that one's, to be cut and gone on from.
  check_success(run(train(dir / "other", {"--steps", "9", "--quiet"})));
  check_success(run(train(dir / "other", {"--steps", "5", "--resume", "--quiet"})));
  CHECK(count_lines(dir / "other/earlier-2/metrics.jsonl") >= 9);
  CHECK(count_lines(dir / "other/metrics.jsonl") <= 3);
}

TEST_CASE("a run that goes on does not leave an earlier trace or sample as if it were its own") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "4", "--checkpoint-every", "4", "--trace", "--sample", "--quiet"})));
  const auto sample = read(dir / "out/sample.txt");
  const auto o = run(train(dir / "out", {"--steps", "6", "--resume"}));
  check_success(o);
  CHECK(o.out.find("the trace or sample that the run had in '" + (dir / "out") + "' is now in '" +
                   (dir / "out/earlier-1") + "'") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "out/trace.json"));
  CHECK_FALSE(fs::exists(dir / "out/sample.txt"));
  CHECK(fs::exists(dir / "out/earlier-1/trace.json"));
  CHECK(read(dir / "out/earlier-1/sample.txt") == sample);
  CHECK_FALSE(fs::exists(dir / "out/earlier-1/metrics.jsonl"));  // which goes on
  // a name that is taken by something else is no folder to move to
  write_text(dir / "out/earlier-2", "a file");
  write_text(dir / "out/sample.txt", sample);
  check_success(run(train(dir / "out", {"--steps", "7", "--resume", "--quiet"})));
  CHECK(read(dir / "out/earlier-2") == "a file");
  CHECK(read(dir / "out/earlier-3/sample.txt") == sample);
}

TEST_CASE("a run that goes on and cannot write its results there says so, with the code of the output") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "2", "--checkpoint-every", "2", "--quiet"})));
  fs::remove(dir / "out/plan.txt");
  fs::create_directories(dir / "out/plan.txt/in the way");
  check_one_line(run(train(dir / "out", {"--steps", "4", "--resume", "--quiet"})), exit_output,
                 {"'" + (dir / "out/plan.txt") + "'"});
}

TEST_CASE(
    "a run that would go on with another text ends with the code of the text, whether its configuration is named or "
    "not; with another order of samples, with that of the configuration") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "2", "--checkpoint-every", "2", "--quiet"})));
  const auto other = write_text(dir / "other.txt", read(sample_text()) + "and more");
  for (const bool named : {false, true}) {
    std::vector<std::string> words = {"train", "--data", other, "--out", dir / "out", "--resume", "--quiet"};
    if (named) words.insert(words.begin() + 1, tiny_config);
    check_one_line(run(troupe_command(words)), exit_data, {"fingerprint"});
  }
  check_one_line(run(train(dir / "out", {"--resume", "--quiet", "--set", "run.seed=7"})), exit_usage,
                 {"'run.seed' was", "other samples"});
}

TEST_CASE(
    "a run that goes on saves checkpoints as before, in the folder that it was of, whether its configuration is named "
    "or not") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "4", "--checkpoint-every", "2", "--quiet"})));
  // the output folder will do
  const auto onward = run(train(dir / "out", {"--steps", "6", "--resume", dir / "out"}));
  check_success(onward);
  CHECK(onward.out.find("step 4; a checkpoint every 2 steps") != std::string::npos);
  CHECK(fs::exists(dir / "out/checkpoints/step-00000006.g2/manifest"));
  const auto list = run(troupe_command({"ckpt", "ls", dir / "out"}));
  check_success(list);
  CHECK(list.out.find("step-00000006.g2") != std::string::npos);
  check_success(run(troupe_command({"sample", "--from", dir / "out", "--tokens", "3"})));
  check_success(run(troupe_command({"train", "--data", sample_text(), "--out", dir / "out", "--resume", "--steps", "7",
                                    "--quiet"})));  // as the checkpoint's configuration says
  CHECK(fs::exists(dir / "out/checkpoints/step-00000007.g3/manifest"));
  const auto none = run(train(dir / "out", {"--steps", "8", "--resume", "--checkpoint-every", "0"}));
  check_success(none);
  CHECK(none.out.find("no checkpoint is saved") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "out/checkpoints/step-00000008.g4"));
  const auto done = run(train(dir / "out", {"--steps", "7", "--resume"}));  // there is nothing left to train
  check_success(done);
  CHECK(done.out.find("7 steps on dp=1: nothing trained") != std::string::npos);
  CHECK_FALSE(summary(dir / "out").contains("loss"));
}

TEST_CASE(
    "the first SIGINT, SIGTERM or SIGHUP ends a run that saves checkpoints with one, from which it goes on to the same "
    "bits") {
  TempDir dir;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    const std::string out = dir / std::to_string(signal);
    Endless job(out, {"--mesh", "dp=2", "--checkpoint-every", "100000"});
    job.command.send_to_group(signal);
    ::usleep(2000);
    // a terminal that closes sends two, a service manager SIGTERM and SIGHUP
    job.command.send_to_group(SIGHUP);
    const auto o = job.command.wait(5);
    check_one_line(o, exit_interrupted, {"interrupted by ", " of 1000000; go on with --resume"});
    CHECK(o.out.find("another SIGINT or SIGTERM, at least a second from now, ends the run at once") !=
          std::string::npos);
    const std::int64_t steps = summary(out)["steps"];
    CHECK(steps >= 4);
    CHECK(count_lines(out + "/metrics.jsonl") == steps + 1);  // and the line of the checkpoint
    const auto more = std::to_string(steps + 3);
    check_success(run(train(out, {"--resume", "--mesh", "pp=2", "--steps", more, "--set", "eval.every=0", "--quiet"})));
    CHECK(summary(out)["resumed_at"] == steps);
    check_success(run(train(dir / "straight", {"--steps", more, "--set", "eval.every=0", "--quiet"})));
    CHECK(summary(out)["params_hash"] == summary(dir / "straight")["params_hash"]);
  }
}

TEST_CASE(
    "another SIGINT or SIGTERM, at least a second after the first signal, ends a run at once; another SIGHUP does not, "
    "and nohup's SIGHUP is ignored") {
  TempDir dir;
  const std::vector<std::string> slow = {"--checkpoint-every", "100000", "--worker-prefix", "nice"};
  Endless job(dir / "out", slow);
  for (const pid_t worker : job.command.workers()) ::kill(worker, SIGSTOP);  // no step ends any more
  job.command.send(SIGTERM);
  ::usleep(1'200'000);  // two signals at once are one event
  CHECK(summary(dir / "out")["status"] == "running");
  job.command.send(SIGHUP);
  ::usleep(300'000);
  CHECK(summary(dir / "out")["status"] == "running");
  job.command.send(SIGTERM);
  check_failure(job.command.wait(3), exit_interrupted, {"troupe: interrupted by Terminated\n"});
  std::vector<std::string> words = {"/usr/bin/nohup"};
  for (const auto& word : train(dir / "hup", {"--steps", "1000000"})) words.push_back(word);
  Run deaf(words);
  REQUIRE(deaf.wait_for_lines(dir / "hup/metrics.jsonl", 3));
  deaf.send_to_group(SIGHUP);
  REQUIRE(deaf.wait_for_lines(dir / "hup/metrics.jsonl", count_lines(dir / "hup/metrics.jsonl") + 20));
  deaf.send(SIGTERM);
  CHECK(deaf.wait(5).code == exit_interrupted);
}

TEST_CASE("a run whose last checkpoint cannot be saved has failed, and says so with --quiet too") {
  TempDir dir;
  fs::create_directories(dir / "out/checkpoints");
  // A file where the checkpoint's folder is to be.
  write_text(dir / "out/checkpoints/step-00000003.g1", "in the way");
  check_failure(run(train(dir / "out", {"--steps", "3", "--checkpoint-every", "3", "--quiet"})), exit_checkpoint,
                {"troupe: warning: checkpoint of step 3 failed (1 in a row)",
                 "troupe: the last checkpoint, of step 3, could not be saved"});
}

TEST_CASE("output that cannot be written is an error, and a closed standard output harms no file") {
  TempDir dir;
  for (const std::string to : {">/dev/full", ">&-"}) {
    CAPTURE(to);
    const auto o = run({"/bin/sh", "-c", TROUPE_COMMAND " plan " + tiny_config + " " + to});
    CHECK(o.code == exit_output);
    CHECK(o.err == "troupe: cannot write to the standard output: what was to be printed is lost\n");
  }
  // also of warnings
  for (const std::string to : {">/dev/full 2>/dev/full", ">/dev/full", "2>/dev/full", "2>&-"}) {
    CAPTURE(to);
    const auto o = run({"/bin/sh", "-c",
                        TROUPE_COMMAND " train " + tiny_config + " --data " + sample_text() + " --out " +
                            (dir / "out") + " --mesh pp=9 --steps 2 " + to});
    CHECK(o.signal == 0);
    CHECK(o.code == (to.starts_with(">") ? exit_output : exit_ok));
    CHECK(summary(dir / "out")["status"] == "finished");
  }
  const auto o = run({"/bin/sh", "-c",
                      TROUPE_COMMAND " train " + tiny_config + " --data " + sample_text() + " --out " + (dir / "out") +
                          " --steps 2 --quiet >&-"});
  CHECK(o.code == exit_ok);
  CHECK(o.err.empty());
  CHECK(summary(dir / "out")["status"] == "finished");
  // No file that the command opens has the number of a stream that its caller has closed.
  Run closed({"/bin/sh", "-c",
              "exec " TROUPE_COMMAND " train " + tiny_config + " --data " + sample_text() + " --out " +
                  (dir / "closed") + " --steps 1000000 --set eval.every=0 <&- >&- 2>&-"});
  REQUIRE(closed.wait_for_lines(dir / "closed/metrics.jsonl", 3));
  const std::string files = "/proc/" + std::to_string(closed.pid()) + "/fd/";
  CHECK(fs::read_symlink(files + "0") == "/dev/null");
  for (const char* stream : {"1", "2"}) CHECK(fs::read_symlink(files + stream) == "/dev/full");
  closed.send(SIGTERM);
  CHECK(closed.wait(60).code == exit_interrupted);
}

TEST_CASE(
    "a damaged costs file that no option names is passed over with a warning, by every command that plans; one that an "
    "option names is refused") {
  TempDir dir;
  fs::create_directories(dir / "troupe");
  const auto with_damaged_costs = [&](const std::string& command) {
    return run({"/bin/sh", "-c",
                "for f in costs-$(hostname).toml; do echo garbage > " + (dir / "troupe/$f") +
                    "; XDG_CACHE_HOME=" + dir.path() + " " TROUPE_COMMAND " " + command + "; done"});
  };
  const std::string plan = "plan " + tiny_config, out = dir / "out";
  for (const std::string& command :
       {plan, "train " + tiny_config + " --data " + sample_text() + " --steps 1 --checkpoint-every 1 --out " + out,
        "eval --from " + out, "sample --from " + out + " --tokens 1"}) {
    CAPTURE(command);
    const auto o = with_damaged_costs(command);
    CHECK(o.code == exit_ok);
    const auto said = o.err.find("troupe: warning: costs ");
    REQUIRE_MESSAGE(said != std::string::npos, o.err);
    CHECK(o.err.find("the cost model's defaults are used", said) != std::string::npos);
    CHECK(o.err.find("troupe: warning: costs ", said + 1) == std::string::npos);  // once
  }
  for (const std::string& command : {plan, "eval --from " + out, "sample --from " + out})
    check_failure(with_damaged_costs(command + " --costs " + (dir / "troupe/$f")), exit_usage,
                  {"costs " + (dir / "troupe/costs-"), "not valid TOML"});
}

TEST_CASE("a text that is packed otherwise than with gzip is refused by the name of its format") {
  TempDir dir;
  for (const auto& [format, head] : {std::pair<std::string, std::string>{"xz",
                                                                         "\xfd"
                                                                         "7zXZ"},
                                     {"zstd", "\x28\xb5\x2f\xfd"},
                                     {"bzip2", "BZh9"},
                                     {"zip", "PK\x03\x04"}}) {
    const auto packed = write_text(dir / format, head + std::string(5000, 'x'));
    check_one_line(run(troupe_command({"train", tiny_config, "--data", packed, "--out", dir / "out", "--steps", "1"})),
                   exit_data, {"is packed with " + format + ": unpack it first"});
  }
}

TEST_CASE(
    "a text that is overwritten or truncated while it is read ends the run with the code of the text, and is named") {
  TempDir dir;
  for (const bool truncated : {false, true}) {
    CAPTURE(truncated);
    const auto text = write_text(dir / "text", read(sample_text())),
               out = dir / (truncated ? "truncated" : "overwritten");
    Run command(troupe_command({"train", tiny_config, "--data", text, "--out", out, "--steps", "1000000", "--set",
                                "eval.every=0", "--quiet"}));
    REQUIRE(command.wait_for_lines(out + "/metrics.jsonl", 3));
    if (truncated) fs::resize_file(text, 10);
    else std::fstream(text, std::ios::in | std::ios::out) << "other words";
    const auto o = command.wait(60);
    check_one_line(
        o, exit_data,
        {"data file '" + text + "' was " + (truncated ? "truncated" : "written") + " since the run opened it"});
    CHECK(summary(out)["status"].get<std::string>().find(text) != std::string::npos);
  }
}

TEST_CASE("a model with tokens that are no bytes is not sampled: its samples would have another text") {
  TempDir dir;
  const std::vector<std::string> large = {"--set", "model.vocab=280", "--steps", "1"};
  auto words = large;
  words.push_back("--sample");
  check_one_line(run(train(dir / "out", words)), exit_usage, {"'model.vocab' = 280", "tokens are bytes"});
  words = large;
  words.insert(words.end(), {"--checkpoint-every", "1", "--quiet"});
  check_one_line(run(train(dir / "out", words)), exit_ok,
                 {"warning: the model has 280 tokens, and texts are read as bytes",
                  "tokenizer that it was trained with is not used"});
  check_one_line(run(troupe_command({"sample", "--from", dir / "out", "--tokens", "3"})), exit_usage,
                 {"'model.vocab' = 280"});
}

TEST_CASE("a run whose last update has ruined the parameters has diverged, though all its own losses are finite") {
  TempDir dir;
  const std::vector<std::string> ruinous = {"--set",  "schedule.lr=10",    "--set", "schedule.min_lr=10",
                                            "--set",  "schedule.warmup=0", "--set", "optimizer.weight_decay=10",
                                            "--quiet"};
  const auto train_for = [&](int steps) {
    auto words = ruinous;
    words.insert(words.end(), {"--steps", std::to_string(steps), "--set", "eval.every=1000"});
    return run(train(dir / "out", words));
  };
  CHECK(train_for(60).code == exit_diverged);
  const int good = count_lines(dir / "out/metrics.jsonl");  // steps whose loss was finite
  REQUIRE(good > 0);
  REQUIRE(good < 60);
  check_one_line(train_for(good), exit_diverged,
                 {"the evaluation loss after step " + std::to_string(good) + " is not finite: training has diverged"});
  CHECK(count_lines(dir / "out/metrics.jsonl") == good + 1);
}

TEST_CASE("numbers that kernels would compute with as others, and numbers of steps that no integer has, are refused") {
  TempDir dir;
  check_one_line(run(train(dir / "out", {"--set", "optimizer.beta1=0.9999999999"})), exit_usage,
                 {"'optimizer.beta1'", "is 1 in float32"});
  check_one_line(run(train(dir / "out", {"--set", "optimizer.eps=1e-300"})), exit_usage,
                 {"'optimizer.eps'", "is below the least normal float32"});
  check_one_line(run(train(dir / "out", {"--set", "model.norm_eps=1e-300"})), exit_usage,
                 {"'model.norm_eps'", "is below the least normal float32"});
  check_one_line(run(train(dir / "out", {"--set", "model.dropout=0.99999999999"})), exit_usage,
                 {"'model.dropout'", "every value would be dropped"});
  check_one_line(run(train(dir / "out", {"--steps", "99999999999999999999"})), exit_usage, {"expected a whole number"});
}

TEST_CASE("a pipe in the place of a file of results ends the command at once, with its name") {
  TempDir dir;
  for (const char* name : {"plan.txt", "run.json", "loss.svg", "metrics.jsonl"}) {
    CAPTURE(name);
    const auto out = dir / (std::string("of-") + name), pipe = out + "/" + name;
    fs::create_directory(out);
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const auto o = run(train(out, {"--steps", "2"}));
    check_failure(o, exit_output, {pipe});
  }
}

TEST_CASE("a --checkpoint-dir that is no folder is told by the option's name") {
  TempDir dir;
  for (const auto& wrong : {std::string("/dev/null"), write_text(dir / "file", "x")})
    check_one_line(run(train(dir / "out", {"--steps", "2", "--checkpoint-every", "1", "--checkpoint-dir", wrong})),
                   exit_checkpoint, {"--checkpoint-dir '" + wrong + "' is no folder"});
}
