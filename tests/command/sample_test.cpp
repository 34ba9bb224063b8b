// troupe sample: text from a checkpoint, on real processes.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// Steps 2 and 4 of a run that sampled at its end: 4 bytes of prompt, and 40 tokens, more than model.seq.
const std::string& trained() {
  static const TempDir dir;
  static const std::string out = [] {
    const auto path = dir / "out";
    check_success(run(train(path, {"--mesh", "dp=2,pp=2", "--steps", "4", "--checkpoint-every", "2", "--sample", "the ",
                                   "--set", "sample.tokens=40"})));
    return path;
  }();
  return out;
}

Outcome sample(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"sample", "--from", trained() + "/checkpoints"});
  return run(troupe_command(arguments));
}

/// What it writes, and nothing else.
std::string text_of(const std::vector<std::string>& arguments) {
  const auto o = sample(arguments);
  check_success(o);
  CHECK(o.err.empty());
  return o.out;
}

}  // namespace

TEST_CASE(
    "a sample from a run's last checkpoint is the one that the run made at its end, on any mesh and with two threads") {
  const auto expected = read(trained() + "/sample.txt") + "\n";
  REQUIRE(expected.size() == 4 + 40 + 1);
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"--mesh", "pp=2"}, {"--mesh", "pp=4"}, {"--threads", "2"}}) {
    auto arguments = how;
    arguments.insert(arguments.begin(), "the ");
    CHECK(text_of(arguments) == expected);
  }
}

TEST_CASE(
    "--tokens, --temperature, --seed and the text say how a sample goes on; without a text it is the configured "
    "prompt") {
  const auto text = text_of({"the "});
  CHECK(text_of({"the ", "--tokens", "7"}) == text.substr(0, 4 + 7) + "\n");
  CHECK(text_of({"the ", "--seed", "9"}) != text);
  CHECK(text_of({"the "}) == text);
  const auto likely = text_of({"the ", "--temperature", "0"});
  CHECK(likely == text_of({"the ", "--temperature", "0", "--seed", "9"}));
  CHECK(likely != text);
  CHECK(text_of({}).substr(0, 1) == "\n");
  CHECK(text_of({}).size() == 1 + 40 + 1);
  const auto long_text = text_of({std::string(100, 'a'), "--tokens", "3"});  // longer than model.seq
  CHECK(long_text.size() == 100 + 3 + 1);
}

TEST_CASE("the first byte of a long text does not wait for its length") {
  const auto o =
      run({"/bin/sh", "-c", TROUPE_COMMAND " sample --from '" + trained() + "' 'the ' --tokens 1000000 | head -c 4"});
  CHECK_FALSE(o.timed_out);
  CHECK(o.out == "the ");
  check_nothing_left(o);
}

TEST_CASE("an older checkpoint is taken by its own folder, and goes on otherwise") {
  std::string first;
  for (const auto& entry : std::filesystem::directory_iterator(trained() + "/checkpoints"))
    if (entry.path().filename().string().starts_with("step-00000002")) first = entry.path();
  REQUIRE_FALSE(first.empty());
  const auto o = run(troupe_command({"sample", "--from", first, "the "}));
  check_success(o);
  CHECK(o.out.size() == 4 + 40 + 1);
  CHECK(o.out != text_of({"the "}));
}

TEST_CASE("a damaged checkpoint is passed over, and told, for the one before it; damaged and named it is an error") {
  TempDir dir;
  std::filesystem::copy(trained() + "/checkpoints", dir / "checkpoints", std::filesystem::copy_options::recursive);
  std::string older, newest;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "checkpoints")) {
    if (entry.path().filename().string().starts_with("step-00000002")) older = entry.path();
    if (entry.path().filename().string().starts_with("step-00000004")) newest = entry.path();
  }
  const auto expected = run(troupe_command({"sample", "--from", older, "the "}));
  check_success(expected);
  {
    std::fstream shard(newest + "/shard-00000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    shard.seekp(200'000);
    shard.write("damage", 6);
    REQUIRE(shard.flush());
  }
  const auto o = run(troupe_command({"sample", "--from", dir / "checkpoints", "the "}));
  CHECK(o.code == exit_ok);
  CHECK(o.out == expected.out);
  CHECK_MESSAGE(o.err.find("is passed over") != std::string::npos, o.err);
  check_one_line(run(troupe_command({"sample", "--from", newest, "the "})), exit_checkpoint,
                 {"shard-00000.safetensors", "is damaged"});
}

TEST_CASE("what cannot be sampled from says why") {
  TempDir dir;
  check_one_line(run(troupe_command({"sample", "the "})), exit_usage, {"--from"});
  check_one_line(run(troupe_command({"sample", "--from", dir / "none", "the "})), exit_checkpoint, {"--from", "none"});
  check_one_line(run(troupe_command({"sample", "--from", dir.path(), "the "})), exit_checkpoint,
                 {"--from", "there is no checkpoint in"});
  check_one_line(sample({"the ", "--tokens", "0"}), exit_usage, {"--tokens", "at least 1"});
  check_one_line(sample({"the ", "--temperature", "-1"}), exit_usage, {"--temperature", "at least 0"});
  check_one_line(sample({"the ", "--temperature", "11"}), exit_usage, {"'sample.temperature' = 11 is out of range"});
  check_one_line(sample({"the ", "--mesh", "dp=2"}), exit_plan, {"mesh dp=2", "one replica makes a text"});
  check_one_line(sample({"the ", "--mesh", "pp=99"}), exit_plan, {"the nearest mesh that works is pp=9"});
  check_one_line(sample({"the ", "--mesh", "xp=2"}), exit_usage, {"unknown axis 'xp'"});
}

TEST_CASE("a model whose numbers are not finite gives no text, and a code that says so") {
  TempDir dir;
  check_success(run(troupe_command({"ckpt", "export", trained(), "--format", "hf", "--out", dir / "hf"})));
  const auto file = dir / "hf/model.safetensors";
  std::string bytes = read(file);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (std::size_t at = sizeof header + header; at + 4 <= bytes.size(); at += 4)
    std::memcpy(bytes.data() + at, "\x00\x00\xc0\x7f", 4);  // not a number
  write_text(file, bytes);
  CHECK(run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "ruined"})).code ==
        exit_ok);  // with a warning
  for (const char* temperature : {"0", "1"}) {
    const auto o = run(troupe_command({"sample", "--from", dir / "ruined", "--temperature", temperature, "the "}));
    check_one_line(o, exit_diverged, {dir / "ruined", "not finite"});
    CHECK(o.out == "the \n");
  }
  const auto o = run(train(dir / "out", {"--resume", dir / "ruined", "--steps", "2"}));
  check_failure(o, exit_diverged, {"training has diverged", "the weights in '" + dir.path(), "go on from another"});
  CHECK_MESSAGE(o.err.find("schedule.lr") == std::string::npos, o.err);
}

TEST_CASE("a text that begins with '-' is no call for help: where it is written is told") {
  check_one_line(sample({"-hello"}), exit_usage, {"unknown option '-hello'", "behind '--'"});
  CHECK(text_of({"--tokens", "1", "--", "-hello"}).starts_with("-hello"));
}
