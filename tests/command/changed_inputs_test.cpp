// A worker is lost, and its run's text, program or checkpoints are no longer what they were.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

std::vector<std::string> elastic(const std::string& out, std::vector<std::string> more = {}) {
  std::vector<std::string> words{"--mesh", "dp=2", "--steps", "200", "--quiet", "--recovery", "slots"};
  words.insert(words.end(), more.begin(), more.end());
  return train(out, words);
}

/// A command with another value of an option that it has.
std::vector<std::string> with(std::vector<std::string> words, const std::string& option, const std::string& value) {
  *(std::find(words.begin(), words.end(), option) + 1) = value;
  return words;
}

/// The second text in the place of the first, behind the back of a run that has it open.
void replace(const std::string& text, const std::string& by) {
  std::ofstream(text + ".new") << by;
  std::filesystem::rename(text + ".new", text);
}

/// The complete checkpoints of a run, by step.
std::vector<std::string> checkpoints(const std::string& out) {
  std::vector<std::string> folders;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints", none))
    if (std::filesystem::exists(entry.path() / "manifest")) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// Changes some bytes in the middle of a file.
void damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  REQUIRE(file.good());
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) / 2));
  file << "damaged!";
}

}  // namespace

TEST_CASE("a run that recovers is of one text: where that has changed, no worker opens it anew") {
  const std::string text = read(sample_text());
  struct Change {
    const char* name;
    std::function<void(const std::string&)> make;
    const char* says;
  };
  for (const auto& change :
       {Change{"replaced", [&](const std::string& file) { replace(file, text.substr(100)); }, "was replaced"},
        Change{"removed", [](const std::string& file) { std::filesystem::remove(file); }, "was replaced"},
        Change{"grown", [](const std::string& file) { std::ofstream(file, std::ios::app) << "more"; }, "has grown"}}) {
    CAPTURE(change.name);
    TempDir dir;
    const std::string file = dir / "text.txt";
    std::filesystem::copy_file(sample_text(), file);
    Run job(with(with(elastic(dir / "out"), "--data", file), "--steps", "100000"));
    REQUIRE(job.wait_for_lines(dir / "out/metrics.jsonl", 3));
    change.make(file);
    if (change.says == std::string("was replaced")) {  // its workers have it open: they go on
      const auto refused = run(troupe_command({"scale", dir / "out", "--mesh", "dp=1"}));
      CHECK(refused.code == exit_plan);
      CHECK_MESSAGE(refused.err.find(change.says) != std::string::npos, refused.err);
      const int lines = count_lines(dir / "out/metrics.jsonl");
      REQUIRE(job.wait_for_lines(dir / "out/metrics.jsonl", lines + 3));
      const auto workers = job.workers();
      REQUIRE(workers.size() == 2);
      ::kill(workers[1], SIGKILL);
    }
    const auto o = job.wait(10);
    check_failure(o, exit_data, {file, change.says});
  }
}

TEST_CASE("a run goes on with the program that it is, also where another one has taken its file's place") {
  TempDir dir;
  const std::string program = dir / "program";
  auto words = with(elastic(dir / "out"), "--steps", "100000");
  std::filesystem::copy_file(words[0], program);
  words[0] = program;
  Run job(words);
  REQUIRE(job.wait_for_lines(dir / "out/metrics.jsonl", 3));
  replace(program, "no program");
  const auto workers = job.workers();
  REQUIRE(workers.size() == 2);
  ::kill(workers[0], SIGKILL);
  const bool goes_on = job.wait_for_lines(dir / "out/incidents.jsonl", 1);
  const int lines = count_lines(dir / "out/metrics.jsonl");
  CHECK(goes_on);
  CHECK(job.wait_for_lines(dir / "out/metrics.jsonl", lines + 3));
  job.send(SIGKILL);
  check_nothing_left(job.wait(5));
}

TEST_CASE("a crash whose newest checkpoint is damaged or gone goes on from the one before it") {
  struct How {
    const char* name;
    std::function<void(const std::string& folder)> make;
  };
  for (const auto& how : {How{"shard", [](const std::string& f) { damage(f + "/shard-00001.safetensors"); }},
                          How{"manifest", [](const std::string& f) { damage(f + "/manifest"); }},
                          How{"gone", [](const std::string& f) { std::filesystem::remove_all(f); }}}) {
    CAPTURE(how.name);
    TempDir dir;
    auto words = with(elastic(dir / "out", {"--checkpoint-every", "60", "--keep", "9"}), "--steps", "100000");
    words = with(words, "--mesh", "pp=2");  // no other worker has what the one that crashes had
    Run job(words);
    for (int tries = 0; tries < 2000 && checkpoints(dir / "out").size() < 2; ++tries) ::usleep(10'000);
    const auto folders = checkpoints(dir / "out");
    REQUIRE(folders.size() == 2);
    how.make(folders[1]);
    const auto workers = job.workers();
    REQUIRE(workers.size() == 2);
    ::kill(workers[1], SIGSEGV);
    REQUIRE(job.wait_for_lines(dir / "out/incidents.jsonl", 1));
    const std::string line = read(dir / "out/incidents.jsonl");
    const std::string before = std::filesystem::path(folders[0]).filename();
    CHECK_MESSAGE(line.find(before) != std::string::npos, line);
    const int lines = count_lines(dir / "out/metrics.jsonl");
    CHECK(job.wait_for_lines(dir / "out/metrics.jsonl", lines + 3));
    job.send(SIGKILL);
    const auto o = job.wait(5);
    const std::string passed = std::filesystem::path(folders[1]).filename();
    CHECK_MESSAGE(o.err.find("checkpoint '" + passed + "' is passed over") != std::string::npos, o.err);
    check_nothing_left(o);
  }
}

TEST_CASE("a run that cannot go on, since its checkpoints are damaged, leaves the lines of the one before") {
  TempDir dir;
  const std::string out = dir / "out";
  auto words = with(elastic(out, {"--checkpoint-every", "4", "--keep", "9"}), "--steps", "10");
  check_success(run(words));
  const std::string lines = read(out + "/metrics.jsonl");
  for (const auto& folder : checkpoints(out)) damage(folder + "/shard-00001.safetensors");
  const auto o = run(train(out, {"--resume", "--steps", "20", "--quiet"}));
  check_failure(o, exit_checkpoint, {"damaged"});
  CHECK(read(out + "/metrics.jsonl") == lines);
}
