// Bad input: one line that names the thing and what would do, a documented exit code, nothing left behind.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

struct Case {
  std::vector<std::string> arguments;  ///< after `train lm-tiny.toml --data TEXT --out FOLDER`
  std::vector<std::string> says;
};

void check_cases(int code, const std::vector<Case>& cases) {
  TempDir dir;
  for (const auto& c : cases) {
    std::string all;
    for (const auto& a : c.arguments) all += a + " ";
    CAPTURE(all);
    check_one_line(run(train(dir / "out", c.arguments)), code, c.says);
  }
}

Outcome train_on(const std::string& data, const std::string& out) {
  return run(troupe_command({"train", tiny_config, "--data", data, "--out", out, "--steps", "1"}));
}

}  // namespace

TEST_CASE("fewer microbatches than stages is legal and a warning, in every command") {
  TempDir dir;
  const std::vector<std::string> wasteful = {"--mesh", "pp=4", "--set", "schedule.batch=2"};
  const std::string says = "4 stages, but only 2 microbatches";
  for (const char* command : {"plan", "sim"}) {
    auto words = troupe_command({command, tiny_config});
    words.insert(words.end(), wasteful.begin(), wasteful.end());
    const auto o = run(words);
    CHECK(o.code == 0);
    CHECK_MESSAGE(o.err.find(says) != std::string::npos, o.err);
  }
  auto words = wasteful;
  words.insert(words.end(), {"--steps", "1"});
  const auto o = run(train(dir / "out", words));
  CHECK(o.code == 0);
  CHECK_MESSAGE(o.err.find(says) != std::string::npos, o.err);
}

TEST_CASE("schedule.lanes of old configurations is ignored with a warning, whichever command reads it") {
  TempDir dir;
  const std::string says = "warning: --set schedule.lanes=2: schedule.lanes has no meaning any more and is ignored";
  for (const char* command : {"plan", "sim"}) {
    const auto o = run(troupe_command({command, tiny_config, "--set", "schedule.lanes=2"}));
    CHECK(o.code == 0);
    CHECK_MESSAGE(o.err.find(says) != std::string::npos, o.err);
  }
  const auto o = run(train(dir / "out", {"--steps", "1", "--set", "schedule.lanes=2"}));
  CHECK(o.code == 0);
  CHECK_MESSAGE(o.err.find(says) != std::string::npos, o.err);
}

TEST_CASE("a command line that makes no sense says which word, and the nearest one that does") {
  check_one_line(run(troupe_command({})), exit_usage, {"subcommand is required"});
  check_one_line(run(troupe_command({"trian", tiny_config})), exit_usage, {"unknown command 'trian'", "'train'"});
  check_one_line(run(troupe_command({"train"})), exit_usage, {"name a configuration", "--resume"});
  check_one_line(run(troupe_command({"plan"})), exit_usage, {"config is required"});
  check_cases(exit_usage, {
                              {{"--stepz", "3"}, {"unknown option '--stepz'", "'--steps'"}},
                              {{"more"}, {"unexpected argument 'more'"}},
                              {{"--steps", "-3"}, {"--steps", "at least 0", "'-3'"}},
                              {{"--steps", "2.5"}, {"--steps", "whole number", "'2.5'"}},
                              {{"--threads", "0"}, {"--threads", "at least 1"}},
                              {{"--stall-limit", "0"}, {"--stall-limit", "at least 1"}},
                          });
  check_cases(exit_usage, {{{"--frobnicate", "3"}, {"unknown option '--frobnicate' (see troupe train --help)\n"}}});
  check_one_line(run(troupe_command({"frobnicate"})), exit_usage,
                 {"unknown command 'frobnicate' (see troupe --help)\n"});
  check_success(run(troupe_command({"--version"})));
  check_success(run(troupe_command({"train", "--help"})));
}

TEST_CASE("an option that is given twice, or has no value, is named, with how often or what was expected") {
  const std::vector<std::vector<std::string>> commands = {
      {"plan", tiny_config}, {"train", tiny_config}, {"eval", "--from", "x"}, {"sample", "--from", "x"}};
  for (const auto& command : commands) {
    const auto with = [&](const std::vector<std::string>& more) {
      auto words = troupe_command(command);
      words.insert(words.end(), more.begin(), more.end());
      return run(words);
    };
    check_one_line(with({"--mesh", "dp=1", "--mesh", "pp=1"}), exit_usage,
                   {"troupe: --mesh is given 2 times: expected it once (see troupe " + command[0] + " --help)\n"});
    check_one_line(with({"--costs", ""}), exit_usage, {"--costs: expected the name of a file, not an empty text"});
    check_one_line(with({"--mesh", ""}), exit_usage, {"--mesh: expected a mesh, such as ", "not an empty text"});
    for (const auto& none : {std::vector<std::string>{"--mesh"}, {"--mesh="}})
      check_one_line(with(none), exit_usage, {"troupe: --mesh has no value; it takes TEXT: ", "pp=2"});
  }
  check_cases(exit_usage,
              {{{"--steps"}, {"--steps has no value; it takes INT: stop after so many steps"}},
               {{"--steps", "1", "--steps", "2"}, {"--steps is given 2 times: expected it once"}},
               {{"--set", "model.layers=3", "--set"}, {"--set has no value; it takes TEXT: section.key=value"}}});
  // The next argument is no value of an option that ends with '='.
  TempDir dir;
  REQUIRE_FALSE(std::filesystem::exists("--quiet"));
  for (const std::string option : {"--out=", "--checkpoint-dir="})
    check_one_line(run(troupe_command({"train", tiny_config, "--data", dir / "none", option, "--quiet"})), exit_usage,
                   {option.substr(0, option.size() - 1) + " has no value; it takes TEXT: "});
  for (const auto& words : {std::vector<std::string>{"--trace=", "--quiet"}, {"--quiet", "--trace="}, {"--resume="}}) {
    std::vector<std::string> command = {"train", tiny_config, "--data", dir / "none"};
    command.insert(command.end(), words.begin(), words.end());
    const std::string& option = words[0].ends_with('=') ? words[0] : words[1];
    check_one_line(run(troupe_command(command)), exit_usage, {"'" + option + "' has no value behind its '='"});
  }
  CHECK_FALSE(std::filesystem::exists("--quiet"));
}

TEST_CASE("a usage error names the help of the command that was typed") {
  check_one_line(run(troupe_command({})), exit_usage, {"(see troupe --help)\n"});
  check_one_line(run(troupe_command({"train"})), exit_usage, {"(see troupe train --help)\n"});
  check_one_line(run(troupe_command({"plan"})), exit_usage, {"(see troupe plan --help)\n"});
  check_one_line(run(troupe_command({"eval", "--stepz"})), exit_usage, {"(see troupe eval --help)\n"});
  check_one_line(run(troupe_command({"ckpt"})), exit_usage, {"(see troupe ckpt --help)\n"});
  check_one_line(run(troupe_command({"ckpt", "ls"})), exit_usage, {"(see troupe ckpt ls --help)\n"});
}

TEST_CASE("a config that cannot be used says where and why") {
  TempDir dir;
  auto with = [&](const std::string& config) {
    return run(troupe_command({"train", config, "--data", sample_text(), "--out", dir / "out"}));
  };
  check_one_line(with(dir / "none.toml"), exit_usage, {"none.toml' does not exist"});
  check_one_line(with(dir.path()), exit_usage, {"is a directory"});
  check_one_line(with(write_text(dir / "broken.toml", "[model]\nlayers = = 3\n")), exit_usage,
                 {"broken.toml:2:", "not valid TOML"});
  check_one_line(with(write_text(dir / "empty.toml", "")), exit_usage, {"missing 'model.layers'"});
  check_one_line(with(write_text(dir / "unknown.toml", "[model]\nlayer = 3\n")), exit_usage,
                 {"unknown.toml:2: ", "unknown key 'model.layer'", "'model.layers'"});
  check_one_line(with(write_text(dir / "type.toml", "[model]\n\nlayers = \"four\"\n")), exit_usage,
                 {"type.toml:3: ", "'model.layers' must be an integer"});
  check_one_line(with(write_text(dir / "range.toml", "[model]\n\n\nlayers = 0\n")), exit_usage,
                 {"range.toml:4: ", "'model.layers' = 0 is out of range"});
  check_cases(exit_usage,
              {
                  {{"--set", "modle.layers=3"}, {"unknown key 'modle.layers'", "'model.layers'"}},
                  {{"--set", "model.layers"}, {"section.key=value"}},
                  {{"--set", "model.layers=0"}, {"'model.layers' = 0 is out of range", "1..1024"}},
                  {{"--set", "model.layers=many"}, {"'model.layers' must be an integer", "\"many\""}},
                  {{"--set", "schedule.lr=nan"}, {"'schedule.lr' = nan is out of range"}},
                  {{"--set", "model.heads=5"}, {"'model.heads' = 5", "'model.kv_heads' = 3"}},
                  {{"--sample", "x", "--set", "sample.tokens=0"}, {"'sample.tokens' = 0"}},
                  {{"--sample", "ax", "--set", "model.vocab=100"}, {"'model.vocab' = 100", "byte 120 at offset 1"}},
              });
}

TEST_CASE("where --set makes a configuration illegal that the file has legal, the message names --set and its value") {
  check_cases(exit_usage, {{{"--set", "model.heads=5"}, {"troupe: --set model.heads=5: 'model.heads' = 5"}},
                           {{"--set", "schedule.lr=1e-5", "--set", "schedule.min_lr=1e-4"},
                            {"troupe: --set schedule.lr=1e-5, --set schedule.min_lr=1e-4: 'schedule.min_lr' = "}},
                           {{"--set", "model.layers=3", "--set", "schedule.microbatch=3"},
                            {"troupe: --set schedule.microbatch=3: 'schedule.batch' = 8 must be a multiple"}}});
  TempDir dir;
  const auto config = write_text(dir / "wrong.toml", read(tiny_config) + "\n[eval]\nevery = 1\nfraction = 0\n");
  check_one_line(run(troupe_command({"plan", config, "--set", "model.layers=3"})), exit_usage, {"wrong.toml"});
}

TEST_CASE("more microbatches in an evaluation than a program may have are refused before the run writes anything") {
  TempDir dir;
  for (const char* command : {"plan", "sim"})
    check_one_line(run(troupe_command({command, tiny_config, "--set", "eval.batches=1048577"})), exit_usage,
                   {"'eval.batches' = 1048577", "at most 1048576"});
  check_one_line(run(train(dir / "out", {"--set", "eval.batches=1048577"})), exit_usage,
                 {"'eval.batches' = 1048577", "at most 1048576"});
  CHECK_FALSE(std::filesystem::exists(dir / "out"));
}

TEST_CASE("a file of costs that can be none is refused as it is read: file, line, key and range are named") {
  TempDir dir;
  const auto with = [&](const std::string& latency_us, const std::string& gflops, const std::string& row) {
    const auto costs = write_text(
        dir / "costs.toml", "version = 3\nmachine = \"m\"\nthreads = 1\nhandover_us = 1\n[intra_node]\nlatency_us = " +
                                latency_us + "\ngb_per_s = 1\n[[kernels]]\nworkers = 1\ngflops = " + gflops +
                                "\nmemory_gb_per_s = 1\nlaunch_us = 1\n[kernels.times]\nadd = [" + row + "]\n");
    return run(troupe_command({"plan", tiny_config, "--mesh", "pp=2", "--costs", costs}));
  };
  check_success(with("10", "50", "[0, 64, 1]"));
  const std::string file = "costs " + (dir / "costs.toml");
  check_one_line(with("1e17", "50", "[0, 64, 1]"), exit_usage,
                 {file + ":6: ", "'latency_us' must be a number in 1e-06..1e+09"});
  check_one_line(with("-1", "50", "[0, 64, 1]"), exit_usage,
                 {file + ":6: ", "'latency_us' must be a number in 1e-06..1e+09"});
  check_one_line(with("10", "1e-6", "[0, 64, 1]"), exit_usage,
                 {file + ":10: ", "'gflops' must be a number in 0.001..1e+09"});
  check_one_line(with("10", "50", "[0, 64, 1e17]"), exit_usage, {file + ":14: ", "'add'", "the last in 1e-06..1e+09"});
  // Each number is in its range, and a step would take longer than simulated time, or no time at all.
  for (const char* row : {"[0, 64, 1e9]", "[1e-308, 0, 1]"})
    check_one_line(with("10", "1e9", row), exit_usage, {file + ":14: ", "'add': the call takes more than 1e+06 times"});
}

TEST_CASE("an empty name of a folder is refused, and no other folder is taken for it") {
  const auto o = run(troupe_command({"train", tiny_config, "--data", sample_text(), "--steps", "0", "--out", ""}));
  check_one_line(o, exit_usage, {"--out", "expected the name of a folder, not an empty text"});
  check_cases(exit_usage, {{{"--checkpoint-dir", ""}, {"--checkpoint-dir", "expected the name of a folder"}},
                           {{"--costs", ""}, {"--costs", "expected the name of a file, not an empty text"}}});
  check_one_line(run(troupe_command({"calibrate", "--costs", ""})), exit_usage,
                 {"--costs", "expected the name of a file"});
}

TEST_CASE("a text that cannot be trained on says why, and how much would do") {
  TempDir dir;
  const auto out = dir / "out";
  check_one_line(run(troupe_command({"train", tiny_config, "--out", out})), exit_data, {"--data"});
  check_one_line(train_on(dir / "none.txt", out), exit_data, {"none.txt' does not exist"});
  check_one_line(train_on(write_text(dir / "empty.txt", ""), out), exit_data, {"empty.txt' is empty"});
  check_one_line(train_on(write_text(dir / "short.txt", "Once upon a time"), out), exit_data,
                 {"too short: 16 bytes", "sequences of 32", "at least 650 bytes"});
  check_one_line(train_on(dir.path(), out), exit_data, {"is a directory"});
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  check_one_line(train_on(dir / "fifo", out), exit_data, {"not a regular file"});
  check_one_line(train_on(write_text(dir / "bad.gz", "\x1f\x8b rubbish"), out), exit_data, {"damaged gzip"});
  check_cases(exit_data, {{{"--set", "model.vocab=100"}, {"holds byte", "'model.vocab' is only 100"}},
                          {{"--set", "data.fingerprint=\"x\""}, {"has fingerprint", "'data.fingerprint' is x"}}});
}

TEST_CASE("where a good text cannot be unpacked, it is the output that is at fault") {
  TempDir dir;
  REQUIRE(std::system(("gzip -c '" + sample_text() + "' > '" + (dir / "text.gz") + "'").c_str()) == 0);
  std::filesystem::create_directory(dir / "out");
  write_text(dir / "out/corpus", "no folder");
  check_one_line(train_on(dir / "text.gz", dir / "out"), exit_output, {"cannot create '" + (dir / "out/corpus") + "'"});
}

TEST_CASE("a text that may not be read says so") {
  if (::geteuid() == 0) return skip("root reads everything");
  TempDir dir;
  REQUIRE(::chmod(write_text(dir / "secret.txt", "x").c_str(), 0) == 0);
  check_one_line(train_on(dir / "secret.txt", dir / "out"), exit_data, {"cannot read", "Permission denied"});
}

TEST_CASE("a mesh that cannot work names the numbers and the nearest one that does") {
  check_cases(exit_usage, {
                              {{"--mesh", "dp"}, {"mesh 'dp'", "dp=2,pp=2"}},
                              {{"--mesh", "dp=0"}, {"dp=0", "at least 1"}},
                              {{"--zero", "4"}, {"'mesh.zero' = 4 is out of range"}},
                              {{"--mesh", "xp=2"}, {"unknown axis 'xp'"}},
                              {{"--mesh", "dp=2/1,pp=3"}, {"names 2 stages", "pp=3"}},
                          });
  check_cases(exit_plan,
              {
                  {{"--mesh", "dp=9"}, {"dp=9", "8 microbatches", "the nearest mesh that works is dp=8\n"}},
                  {{"--mesh", "pp=10"}, {"pp=10", "at most 9", "7 layers", "the nearest mesh that works is pp=9\n"}},
                  {{"--mesh", "dp=9,pp=20"}, {"the nearest mesh that works is dp=8,pp=9\n"}},
                  {{"--mesh", "tp=9"}, {"tp=9", "6 heads", "the nearest mesh that works is tp=6\n"}},
              });
}

TEST_CASE("fewer microbatches than stages is legal, with a warning on stderr, quiet or not") {
  TempDir dir;
  for (const bool quiet : {false, true}) {
    std::vector<std::string> words = {"--mesh", "pp=9", "--steps", "1"};
    if (quiet) words.push_back("--quiet");
    const auto o = run(train(dir / "out", words));
    CHECK(o.code == exit_ok);
    CHECK(o.err.find("troupe: warning: mesh pp=9: 9 stages, but only 8 microbatches") == 0);
    CHECK(o.out.empty() == quiet);
  }
}

TEST_CASE("a plan larger than the machine's memory is refused before any worker starts") {
  check_cases(exit_plan, {{{"--set", "model.dim=8192", "--set", "model.ffn=65536", "--set", "model.vocab=100000"},
                           {"the plan needs", "MiB", "this machine has"}}});
}

TEST_CASE("an output folder that cannot be written is told before training begins") {
  TempDir dir;
  const auto file = write_text(dir / "file", "x");
  auto into = [&](const std::string& out) { return run(train(out, {"--steps", "1"})); };
  check_one_line(into(file), exit_output, {"is a file"});
  check_one_line(into(file + "/below"), exit_output, {"cannot create output folder", "Not a directory"});
  check_one_line(into("/proc/troupe"), exit_output, {"cannot create output folder '/proc/troupe'"});
  REQUIRE(::mkdir((dir / "out").c_str(), 0700) == 0);
  REQUIRE(::mkdir((dir / "out/metrics.jsonl").c_str(), 0700) == 0);
  check_one_line(into(dir / "out"), exit_output, {"metrics.jsonl", "Is a directory"});
}

TEST_CASE("a disk that is full stops the job at once, and every line that was written is whole") {
  TempDir dir;
  std::string command = "ulimit -f 40; trap '' XFSZ; exec";  // files of at most 40 blocks
  for (const auto& word : train(dir / "out", {"--steps", "10000000", "--ucx-tls", "tcp"})) command += " '" + word + "'";
  const auto o = run({"/bin/sh", "-c", command}, 20);
  check_one_line(o, exit_output, {"cannot write '" + (dir / "out/metrics.jsonl") + "'"});
  const auto metrics = read(dir / "out/metrics.jsonl");
  REQUIRE(metrics.size() > 1000);
  CHECK(metrics.back() == '\n');
}

TEST_CASE("a worker that cannot start is named, with what it said") {
  TempDir dir;
  check_failure(run(train(dir / "out", {"--mesh", "dp=2", "--ucx-tls", "telepathy"})), exit_worker,
                {"troupe: worker ", "UCX cannot use transports \"telepathy\""});
  check_failure(
      run(train(dir / "out", {"--mesh", "dp=2", "--ucx-tls", "tcp", "--net-device", "lo", "--net-device", "eth77"})),
      exit_worker, {"troupe: worker 1", "eth77"});
  // UCX would take shared memory and say nothing.
  check_failure(run(train(dir / "out", {"--mesh", "dp=2", "--net-device", "lo", "--net-device", "eth77"})), exit_worker,
                {"troupe: worker 1", "network device 'eth77' is not there; this host has ", "lo"});
  check_failure(
      run(train(dir / "out", {"--mesh", "dp=2", "--worker-prefix", "", "--worker-prefix", "no-such-command"})),
      exit_worker, {"troupe: worker 1", "exited with code 127", "cannot execute no-such-command"});
}

TEST_CASE("a loss that is not finite ends the job with a code of its own") {
  TempDir dir;
  check_one_line(run(train(dir / "out", {"--mesh", "dp=2", "--steps", "50", "--set", "schedule.lr=10", "--set",
                                         "schedule.warmup=0", "--set", "model.init_std=10", "--set", "optimizer.clip=0",
                                         "--set", "optimizer.weight_decay=10"})),
                 exit_diverged, {"training has diverged", "schedule.lr"});
}

TEST_CASE("--steps 0 trains nothing and writes its files") {
  TempDir dir;
  const auto o = run(train(dir / "out", {"--mesh", "dp=2,pp=2", "--steps", "0"}));
  check_success(o);
  CHECK(o.out.find("0 steps on dp=2,pp=2: nothing trained") != std::string::npos);
  CHECK(read(dir / "out/metrics.jsonl").empty());
  for (const char* file : {"run.json", "plan.txt", "loss.svg"})
    CHECK_FALSE(read(dir / (std::string("out/") + file)).empty());
}

TEST_CASE("a /dev/shm without room, or read-only, is named, with what is there and what to do") {
  TempDir dir;
  // A mount namespace of its own, which needs the right to make one.
  const auto with_shm = [&](const std::string& options, const std::string& more) {
    return run({"/usr/bin/unshare", "-m", "/bin/sh", "-c",
                "mount -t tmpfs -o " + options + " tmpfs /dev/shm || exit 99; exec " TROUPE_COMMAND " train " +
                    tiny_config + " --data " + sample_text() + " --out " + (dir / "out") +
                    " --mesh dp=2 --steps 1 --quiet" + more});
  };
  const auto small = with_shm("size=64k", "");
  // unshare says why, with code 1, which the command has no use for.
  if (small.code == 99 || (small.code == 1 && small.err.starts_with("unshare: ")))
    return skip("no file system can be mounted here: " + small.err.substr(0, small.err.find('\n')));
  check_failure(small, exit_worker, {"/dev/shm has ", " KiB free, and each worker needs about ", "--ucx-tls tcp"});
  check_failure(with_shm("ro", ""), exit_worker, {"/dev/shm, which is read-only", "--ucx-tls tcp"});
  check_success(with_shm("size=64k", " --ucx-tls tcp"));
}

TEST_CASE("an empty text to go on from is refused; none at all is the configuration's") {
  TempDir dir;
  check_one_line(run(train(dir / "out", {"--steps", "1", "--sample", ""})), exit_usage,
                 {"the text to go on from is empty"});
  check_success(run(train(dir / "out", {"--steps", "1", "--sample", "--quiet", "--checkpoint-every", "1"})));
  check_one_line(run(troupe_command({"sample", "--from", dir / "out", ""})), exit_usage,
                 {"the text to go on from is empty"});
  check_success(run(troupe_command({"sample", "--from", dir / "out", "--tokens", "2"})));
}

TEST_CASE("a configuration may come through a pipe, and one that never ends or comes is refused") {
  TempDir dir;
  const auto plan = [](const std::string& config) { return run(troupe_command({"plan", config}), 10); };
  check_one_line(plan("/dev/zero"), exit_usage, {"config '/dev/zero' has more than 1048576 bytes"});
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  check_one_line(plan(dir / "pipe"), exit_usage, {"pipe' is a pipe that no process writes to"});
  const auto words = troupe_command({"plan"});
  check_success(run({"/bin/sh", "-c", "cat '" + tiny_config + "' | '" + words[0] + "' plan /dev/stdin"}));
}

TEST_CASE("--dot that names a folder, and --stall-limit beyond its range, are refused in words") {
  check_one_line(run(troupe_command({"plan", tiny_config, "--dot", "."})), exit_output, {"--dot '.' is a folder"});
  check_cases(exit_usage,
              {{{"--stall-limit", "2147483648"}, {"--stall-limit", "a whole number of at most 2147483647"}}});
}
