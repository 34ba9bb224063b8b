// --log-level: what is logged on stderr, by whom, with --quiet or without.
#include <sys/stat.h>

#include <regex>
#include <sstream>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// A run of two workers that evaluates, and its log.
Outcome logged(const std::string& out, std::vector<std::string> more) {
  more.insert(more.end(), {"--mesh", "dp=2", "--steps", "2", "--set", "eval.every=1", "--set", "eval.batches=2"});
  return run(train(out, more));
}

void check_log_has(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& word : words) CHECK_MESSAGE(text.find(word) != std::string::npos, "'", word, "' is not in:\n", text);
}

/// Each line is of a log, of one of these levels.
void check_form(const std::string& text, const std::string& levels) {
  const std::regex form("(troupe|worker [01]): (" + levels + "): .+");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(std::regex_match(line, form), line);
}

}  // namespace

TEST_CASE(
    "at level debug the log tells of each worker, by its rank, which actors it builds, with whom it exchanges, and "
    "when programs begin; trace tells of steps") {
  TempDir dir;
  const auto debug = logged(dir / "out", {"--log-level", "debug", "--quiet"});
  CHECK(debug.code == exit_ok);
  CHECK(debug.out.empty());  // --quiet is about stdout
  check_form(debug.err, "debug|info|warning");
  check_log_has(debug.err,
                {"troupe: debug: worker 1 is process ", "troupe: debug: all workers are ready: version 0 begins\n"});
  for (const std::string rank : {"0", "1"}) {
    const std::string worker = "worker " + rank + ": debug: ";
    check_log_has(debug.err, {worker + "builds its part of stage 0: ", " (segment ", worker + "connects to 1 peer\n",
                              worker + "begins with version 0\n", worker + "program 'evaluate' begins, step 1\n",
                              worker + "program 'evaluate' begins, step 2\n"});
    CHECK(std::regex_search(debug.err,
                            std::regex(worker + "exchange '.+' with rank " + (rank == "0" ? "1" : "0") + "\n")));
  }
  check_nothing_left(debug);
  const auto trace = logged(dir / "out", {"--log-level=trace"});
  CHECK(trace.code == exit_ok);
  check_form(trace.err, "trace|debug|info|warning");
  check_log_has(trace.err,
                {"worker 0: trace: program 'train' begins, step 1\n", "worker 1: trace: step 1 is committed\n",
                 "worker 1: debug: program 'evaluate' begins, step 2\n"});
  check_log_has(trace.out, {"step 2/2"});
}

TEST_CASE(
    "a warning is logged at level warn and below, --quiet or not; an error that ends the command is told at any "
    "level") {
  TempDir dir;
  const std::string warning = "troupe: warning: mesh pp=9: 9 stages, but only 8 microbatches";
  for (const std::string level : {"", "info", "warn", "error", "off"})
    for (const bool quiet : {false, true}) {
      CAPTURE(level);
      CAPTURE(quiet);
      std::vector<std::string> words = {"--mesh", "pp=9", "--steps", "1"};
      if (!level.empty()) words.insert(words.end(), {"--log-level", level});
      if (quiet) words.push_back("--quiet");
      const auto o = run(train(dir / "out", words));
      CHECK(o.code == exit_ok);
      CHECK(o.out.empty() == quiet);
      if (level == "error" || level == "off") CHECK(o.err.empty());
      else check_one_line(o, exit_ok, {warning});
      check_one_line(run(train(dir / "out", {"--log-level", level.empty() ? "info" : level, "--mesh", "dp=9"})),
                     exit_plan, {"troupe: mesh dp=9"});
    }
  CHECK(run(troupe_command({"plan", tiny_config, "--mesh", "pp=9"})).err.starts_with(warning));
  CHECK(run(troupe_command({"sim", tiny_config, "--mesh", "pp=9", "--log-level", "off"})).err.empty());
}

TEST_CASE(
    "what a worker's libraries print is logged as of that worker, at level info: not with --quiet, unless the level is "
    "named") {
  TempDir dir;
  const auto talker = write_text(dir / "talker", "#!/bin/sh\necho hello from afar >&2\nexec \"$@\"\n");
  REQUIRE(::chmod(talker.c_str(), 0700) == 0);
  const auto said = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--worker-prefix", "", "--worker-prefix", talker});
    const auto o = logged(dir / "out", more);
    CHECK(o.code == exit_ok);
    CHECK(o.out.find("hello") == std::string::npos);
    return o.err;
  };
  const std::string line = "worker 1: info: hello from afar\n";
  CHECK(said({}) == line);
  CHECK(said({"--quiet"}).empty());
  CHECK(said({"--quiet", "--log-level", "info"}) == line);
  CHECK(said({"--log-level", "warn"}).empty());
}

TEST_CASE("a level that is none is refused by every command, with the six that there are") {
  TempDir dir;
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"train", tiny_config, "--data", sample_text(), "--out", dir / "out"},
                                             {"plan", tiny_config},
                                             {"sim", tiny_config},
                                             {"sample", "--from", dir / "out"},
                                             {"calibrate", "--costs", dir / "costs"},
                                             {"ckpt", "ls", dir / "out"},
                                             {"ckpt", "prune", dir / "out"},
                                             {"ckpt", "export", dir / "out", "--format", "hf", "--out", dir / "hf"},
                                             {"ckpt", "import", dir / "hf", "--out", dir / "out"}}) {
    auto words = command;
    words.insert(words.end(), {"--log-level", "loud"});
    check_one_line(run(troupe_command(words)), exit_usage,
                   {"--log-level", "expected trace, debug, info, warn, error or off, not 'loud'"});
  }
  CHECK_FALSE(std::filesystem::exists(dir / "out"));
  CHECK_FALSE(std::filesystem::exists(dir / "costs"));
}
