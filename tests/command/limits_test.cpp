// What the command does with as little as there may be: memory that the system refuses, files that must not grow, texts
// of a few windows.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// The lines on stderr that are not the log's: those of the message with which the command ends.
std::vector<std::string> message_of(const std::string& err) {
  const std::regex of_log("(troupe|worker [0-9]+): (debug|info|warning|error): .*");
  std::vector<std::string> message;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);)
    if (!std::regex_match(line, of_log)) message.push_back(line);
  return message;
}

/// A command of which the shell limits what the system gives: "-v 60000", see its ulimit.
std::vector<std::string> limited(const std::string& limit, const std::vector<std::string>& words) {
  std::string command = "ulimit " + limit + "; exec";
  for (const auto& word : words) command += " '" + word + "'";
  return {"/bin/sh", "-c", command};
}

}  // namespace

TEST_CASE(
    "memory that the system refuses ends the command with its reason in one line and a documented code, whatever the "
    "limit") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return skip("a sanitizer reserves terabytes of addresses");
#endif
  TempDir dir;
  int refused = 0;
  for (const int limit_kb : {60'000, 90'000, 120'000, 150'000, 200'000, 250'000, 300'000, 350'000, 400'000, 500'000,
                             600'000, 800'000, 1'000'000}) {
    CAPTURE(limit_kb);
    const auto o = run(limited("-v " + std::to_string(limit_kb),
                               train(dir / "out", {"--steps", "2", "--mesh", "dp=2", "--checkpoint-every", "1",
                                                   "--checkpoint-dir", dir / std::to_string(limit_kb)})),
                       30);
    INFO("code ", o.code, ", signal ", o.signal, ", stderr:\n", o.err);
    CHECK(o.signal == 0);
    CHECK_FALSE(o.timed_out);
    CHECK(o.err.find("terminate called") == std::string::npos);
    if (o.code == 127) continue;  // its libraries have no room
    check_nothing_left(o);
    if (o.code == exit_ok) continue;
    ++refused;
    CHECK((o.code == exit_worker || o.code == exit_plan || o.code == exit_output || o.code == exit_data ||
           o.code == exit_checkpoint));
    const auto message = message_of(o.err);
    REQUIRE_FALSE(message.empty());
    CHECK(message[0].starts_with("troupe: "));
    // one line, behind which only a worker that has ended is quoted: the last lines of its log
    CHECK((message.size() == 1 || message[0].ends_with("; its last log lines:")));
    for (std::size_t i = 1; i < message.size(); ++i) CHECK(message[i].starts_with("  "));
    const auto says = [&](const char* words) { return o.err.find(words) != std::string::npos; };
    CHECK_FALSE(says("no code catches"));
    // The reason: a refusal of the system, an allocation that has failed, libraries that do not fit, or UCX's error.
    CHECK((says("the system refused") || says("alloc") || says("memory") || says("shared librar") || says("UCX") ||
           says("ucp_")));
  }
  CHECK(refused > 0);
}

TEST_CASE("where descriptors would run out, the limit and the one that is enough are named before a worker starts") {
  TempDir dir;
  struct Workers {
    std::vector<std::string> options;
    int enough;
  };
  for (const auto& [options, enough] :
       {Workers{{"--mesh", "dp=2"}, 38}, {{"--mesh", "dp=4", "--ucx-tls", "tcp"}, 44}}) {
    std::vector<std::string> words = {"--steps", "2", "--checkpoint-every", "1", "--quiet"};
    words.insert(words.end(), options.begin(), options.end());
    const auto with = [&](int limit) { return run(limited("-n " + std::to_string(limit), train(dir / "out", words))); };
    for (const int limit : {16, 18, 23, 24, enough - 1}) {
      CAPTURE(limit);
      check_one_line(with(limit), exit_plan,
                     {std::to_string(enough) + " file descriptors", "may have " + std::to_string(limit) + " here",
                      "(ulimit -n " + std::to_string(enough) + ")"});
    }
    check_success(with(enough));
    std::filesystem::remove_all(dir / "out");
  }
}

TEST_CASE("a file at the process's limit ends the command with the code for that file, and its name; a worker's, too") {
  TempDir dir;
  const std::string kib_64 = "-f 128", mib = "-f 2048";  // blocks of 512 bytes
  const auto out = dir / "out";
  // TCP: the limit is one of shared memory, too.
  const auto endless = train(out, {"--steps", "1000000", "--set", "eval.every=0", "--quiet", "--ucx-tls", "tcp"});
  check_one_line(run(limited(kib_64, endless), 60), exit_output,
                 {"cannot write '" + out + "/metrics.jsonl': File too large"});
  const auto status = nlohmann::json::parse(read(out + "/run.json")).at("status").get<std::string>();
  CHECK_MESSAGE(status.find("File too large") != std::string::npos, status);

  const auto text = write_text(dir / "text", std::string(2'000'000, 'a')) + ".gz";
  REQUIRE(std::system(("gzip -k '" + (dir / "text") + "'").c_str()) == 0);
  const std::vector<std::string> says = {"cannot unpack '" + text + "' to '", "File too large"};
  check_one_line(run(limited(mib, troupe_command({"train", tiny_config, "--data", text, "--out", dir / "packed"}))),
                 exit_output, says);
  check_success(run(train(dir / "saved", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  check_one_line(run(limited(mib, troupe_command({"eval", "--from", dir / "saved", "--data", text}))), exit_output,
                 says);

  const auto saves = train(dir / "unsaved", {"--steps", "1", "--checkpoint-every", "1", "--quiet", "--ucx-tls", "tcp"});
  check_failure(run(limited(mib, saves)), exit_checkpoint, {"checkpoint of step 1 failed", "shard-", "File too large"});
}

TEST_CASE(
    "a text of three windows, one layer and a batch of one are enough to train on; where evaluation needs more, what "
    "to set is told") {
  TempDir dir;
  const auto text = write_text(dir / "text", std::string(60, 'a') + std::string(60, 'b'));
  const auto tiny = [&](const std::string& every) {
    return run(troupe_command({"train", tiny_config, "--data", text, "--out", dir / "out", "--steps", "1", "--quiet",
                               "--set", "model.layers=1", "--set", "schedule.batch=1", "--set", "schedule.microbatch=1",
                               "--set", "eval.every=" + every}));
  };
  check_success(tiny("0"));
  check_one_line(tiny("1"), exit_data, {"too short: 120 bytes", "need at least 650 bytes", "or eval.every=0"});
}

TEST_CASE("a small stack is enough for the command") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return skip("a sanitizer needs more stack");
#endif
  if (::sysconf(_SC_PAGESIZE) > 4096) return skip("64 KiB are a page");
  TempDir dir;
  check_success(run(limited("-s 64", train(dir / "out", {"--steps", "2", "--mesh", "dp=2"}))));
}
