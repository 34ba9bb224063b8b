// troupe ckpt export and import, and training from what was imported.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <set>
#include <sstream>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

std::vector<double> losses(const std::string& path) {
  std::vector<double> out;
  std::istringstream lines(read(path));
  for (std::string line; std::getline(lines, line);)
    if (const auto m = nlohmann::json::parse(line); m.contains("loss")) out.push_back(m["loss"]);
  return out;
}

Outcome exported(const std::string& from, const std::string& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"ckpt", "export", from, "--format", "hf", "--out", out};
  words.insert(words.end(), more.begin(), more.end());
  return run(troupe_command(words));
}

/// Sets the weight of the last token, which no text here has, to what one update with a factor of -2 makes infinite.
void plant(const std::string& safetensors) {
  std::string bytes = read(safetensors);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto offsets =
      nlohmann::json::parse(bytes.substr(8, length)).at("model.embed_tokens.weight").at("data_offsets");
  const float large = 3e38f;
  std::memcpy(bytes.data() + 8 + length + offsets[1].get<std::size_t>() - sizeof large, &large, sizeof large);
  write_text(safetensors, bytes);
}

}  // namespace

TEST_CASE(
    "parameters that are not finite are divergence though every loss is finite, and no checkpoint of them is "
    "committed") {
  TempDir dir;
  check_success(
      run(train(dir / "run", {"--steps", "1", "--checkpoint-every", "1", "--set", "model.tied=false", "--quiet"})));
  check_success(exported(dir / "run", dir / "hf"));
  plant(dir / "hf/model.safetensors");
  check_success(run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "imported"})));
  const auto ruined = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words{"train",
                                   "--resume",
                                   dir / "imported",
                                   "--data",
                                   sample_text(),
                                   "--out",
                                   out,
                                   "--quiet",
                                   "--set",
                                   "eval.every=0",
                                   "--set",
                                   "schedule.warmup=0",
                                   "--set",
                                   "schedule.lr=0.3",
                                   "--set",
                                   "schedule.min_lr=0.3",
                                   "--set",
                                   "optimizer.weight_decay=10"};
    words.insert(words.end(), more.begin(), more.end());
    return run(troupe_command(words));
  };
  const std::string says = "parameter 'model.embed_tokens.weight' is not finite after step 1: training has diverged";
  check_one_line(ruined(dir / "last", {"--steps", "1", "--checkpoint-every", "0"}), exit_diverged, {says});
  REQUIRE(losses(dir / "last/metrics.jsonl").size() == 1);
  for (const std::string steps : {"1", "1000"}) {
    CAPTURE(steps);
    const auto o = ruined(dir / steps, {"--steps", steps, "--checkpoint-every", "1"});
    check_failure(o, exit_diverged, {says});
    CHECK(nlohmann::json::parse(read(dir / steps + "/run.json"))["status"].get<std::string>().find("diverged") !=
          std::string::npos);
    const auto list = run(troupe_command({"ckpt", "ls", dir / steps}));
    CHECK_MESSAGE(list.out.find("newest") == std::string::npos, list.out);
  }
}

TEST_CASE(
    "a run's checkpoint is exported, imported, exported again with the same bytes, and trained on with another "
    "schedule and other data") {
  TempDir dir;
  check_success(run(train(dir / "run", {"--steps", "2", "--checkpoint-every", "1", "--mesh", "dp=2,tp=2", "--quiet"})));
  const auto first = exported(dir / "run/checkpoints", dir / "hf");
  check_success(first);
  CHECK(first.out.find("step-00000002.g1' to '" + (dir / "hf") + "': 170448 parameters, 681792 bytes in 1 file\n") !=
        std::string::npos);
  check_success(run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "imported"})));
  check_success(exported(dir / "imported", dir / "hf2"));
  for (const char* file : {"/config.json", "/model.safetensors"})
    CHECK(read(dir / "hf" + file) == read(dir / "hf2" + file));
  CHECK(read(dir / "hf/model.safetensors").size() > 681792);

  const std::string text = write_text(dir / "text.txt", std::string(3000, 'a') + std::string(3000, 'b'));
  const auto resumed = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"train", "--data", text, "--out", dir / "on", "--steps", "12", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    if (std::find(more.begin(), more.end(), "--resume") == more.end())
      words.insert(words.end(), {"--resume", dir / "imported"});
    return run(troupe_command(words));
  };
  check_success(resumed({"--mesh", "pp=2", "--set", "schedule.batch=4", "--set", "model.seq=16", "--set", "run.seed=3",
                         "--set", "schedule.lr=1e-2", "--set", "schedule.warmup=0", "--checkpoint-every", "12"}));
  const auto steps = losses(dir / "on/metrics.jsonl");
  REQUIRE(steps.size() == 12);
  CHECK(steps.back() < steps.front() / 2);
  check_one_line(resumed({"--set", "model.ffn=64"}), exit_usage, {"'model.ffn' was 96 and is 64", "another model"});
  check_one_line(resumed({"--set", "model.seq=64"}), exit_usage,
                 {"'model.seq' was 32 and is 64", "no position beyond"});

  check_one_line(resumed({"--checkpoint-every", "12"}), exit_output, {"has checkpoints of an earlier run"});
  check_one_line(resumed({"--resume", dir / "run/checkpoints", "--checkpoint-every", "12"}), exit_output,
                 {"is of another run than '" + (dir / "run/checkpoints"), "would be pruned"});

  // What was trained from it is a run like any other.
  check_success(exported(dir / "on/checkpoints", dir / "hf3"));
  CHECK(nlohmann::json::parse(read(dir / "hf3/config.json"))["max_position_embeddings"] == 16);
  CHECK(read(dir / "hf3/model.safetensors") != read(dir / "hf/model.safetensors"));
}

TEST_CASE(
    "an import of a model with tokens that are no bytes warns that its tokenizer is not used; one of bytes says "
    "nothing") {
  TempDir dir;
  for (const std::string vocab : {"280", "256"}) {
    CAPTURE(vocab);
    const std::string run_dir = dir / ("run" + vocab), hf = dir / ("hf" + vocab);
    CHECK(run(train(run_dir, {"--steps", "1", "--checkpoint-every", "1", "--quiet", "--set", "model.vocab=" + vocab}))
              .code == exit_ok);
    check_success(exported(run_dir, hf));
    const auto o = run(troupe_command({"ckpt", "import", hf, "--out", dir / ("in" + vocab)}));
    CHECK(o.code == exit_ok);
    CHECK(o.out.find("imported '" + hf) != std::string::npos);
    CHECK(o.err == (vocab == "256"
                        ? ""
                        : "troupe: warning: the model has 280 tokens, and texts are read as bytes, tokens 0 to 255: "
                          "a tokenizer that it was trained with is not used\n"));
  }
}

TEST_CASE(
    "runs that begin from one import are different jobs: one does not save where the other has, and each goes on") {
  TempDir dir;
  check_success(run(train(dir / "run", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  check_success(exported(dir / "run", dir / "hf"));
  check_success(run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "imported"})));
  std::set<std::string> jobs;
  const auto note_job = [&](const std::string& folder) {
    const auto shown = run(troupe_command({"ckpt", "show", folder}));
    check_success(shown);
    jobs.insert(nlohmann::json::parse(shown.out)["job"]);
  };
  note_job(dir / "imported");
  for (const std::string name : {"a", "b"}) {
    check_success(
        run(train(dir / name, {"--resume", dir / "imported", "--steps", "1", "--checkpoint-every", "1", "--quiet"})));
    note_job(dir / name);
  }
  CHECK(jobs.size() == 3);
  const std::vector<std::string> on = {"--resume", dir / "a", "--steps", "2", "--quiet"};
  auto into_b = on;
  into_b.insert(into_b.end(), {"--checkpoint-dir", dir / "b/checkpoints"});
  check_one_line(run(train(dir / "c", into_b)), exit_output, {"is of another run than '" + (dir / "a/checkpoints")});
  check_success(run(train(dir / "a", on)));
  note_job(dir / "a");
  CHECK(jobs.size() == 3);
}

TEST_CASE("a run in the folder of its import, whose later checkpoints are damaged, begins again from the import") {
  TempDir dir;
  check_success(run(train(dir / "run", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  check_success(exported(dir / "run", dir / "hf"));
  const std::string folder = dir / "out/checkpoints";
  check_success(run(troupe_command({"ckpt", "import", dir / "hf", "--out", folder})));
  const auto two_steps = [&] {
    return run(train(dir / "out", {"--resume", folder, "--steps", "2", "--checkpoint-every", "1", "--keep", "9"}));
  };
  const auto record = [&] { return nlohmann::json::parse(read(dir / "out/run.json")); };
  check_success(two_steps());
  const auto hash = record()["params_hash"];
  const std::vector<std::string> later = {"step-00000001.g2", "step-00000002.g2"};
  for (const auto& name : later) {
    const std::string shard = folder + "/" + name + "/shard-00000.safetensors";
    std::string bytes = read(shard);
    bytes.at(bytes.size() / 2) = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_text(shard, bytes);
  }
  const auto o = two_steps();
  check_failure(o, exit_ok, {"'" + later[0] + "' is passed over: ", "'" + later[1] + "' is passed over: "});
  CHECK(o.out.find("resumed from '" + folder + "/step-00000000.g1', step 0") != std::string::npos);
  CHECK(record()["params_hash"] == hash);
}

TEST_CASE("export and import that cannot be done say why, with the code of what was wrong") {
  TempDir dir;
  check_success(run(train(dir / "run", {"--steps", "1", "--checkpoint-every", "1", "--quiet"})));
  const std::string checkpoints = dir / "run/checkpoints";
  check_one_line(run(troupe_command({"ckpt", "export", checkpoints, "--out", dir / "hf"})), exit_usage,
                 {"--format is required"});
  check_one_line(run(troupe_command({"ckpt", "export", checkpoints, "--format", "gguf", "--out", dir / "hf"})),
                 exit_usage, {"--format", "gguf", "hf"});
  check_one_line(run(troupe_command({"ckpt", "exprot"})), exit_usage, {"unknown command 'exprot'", "'export'"});
  check_one_line(exported(dir / "nothing", dir / "hf"), exit_checkpoint, {dir / "nothing", "No such file"});
  check_one_line(exported(dir.path(), dir / "hf"), exit_checkpoint, {"there is no checkpoint in"});
  check_one_line(exported(checkpoints, dir / "run"), exit_output, {"is there already"});
  check_success(exported(checkpoints, dir / "hf", {"--file-bytes", "100000"}));

  const auto imported = [&](const std::string& from, const std::string& out, const std::string& config) {
    std::vector<std::string> words{"ckpt", "import", from, "--out", out};
    if (!config.empty()) words.insert(words.end(), {"--config", config});
    return run(troupe_command(words));
  };
  check_one_line(imported(dir / "nothing", dir / "in", ""), exit_checkpoint, {"nothing/config.json", "No such file"});
  check_one_line(imported(dir / "hf", dir / "in", dir / "no.toml"), exit_usage, {"no.toml", "does not exist"});
  check_one_line(imported(dir / "hf", checkpoints, ""), exit_output, {"has checkpoints already"});
  check_one_line(imported(dir / "hf", dir / "run", ""), exit_output, {"is the output folder of a run", checkpoints});
  check_success(imported(dir / "hf", dir / "in", tiny_config));
  std::filesystem::remove(dir / "hf/model-00002-of-00008.safetensors");
  check_one_line(imported(dir / "hf", dir / "in2", ""), exit_checkpoint,
                 {"model-00002-of-00008.safetensors", "No such file"});
  CHECK_FALSE(std::filesystem::exists(dir / "in2"));
}
