// troupe eval: the loss of a checkpoint on a text, on real processes.
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// A run that has evaluated and saved steps 2 and 4.
struct EvaluatedRun {
  TempDir dir;
  const std::string out = dir / "out";
  const Outcome outcome =
      run(train(out, {"--mesh", "dp=2,pp=2", "--steps", "4", "--checkpoint-every", "2", "--set", "eval.every=2"}));
  std::map<std::int64_t, double> losses;  ///< that it found, by step

  EvaluatedRun() {
    check_success(outcome);
    std::istringstream lines(read(out + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const auto m = nlohmann::json::parse(line); m.contains("eval_loss"))
        losses[m["step"].get<std::int64_t>()] = m["eval_loss"].get<double>();
    REQUIRE(losses.size() == 2);
    REQUIRE(losses.at(2) != losses.at(4));
  }
};

const EvaluatedRun& evaluated_run() {
  static const EvaluatedRun once;
  return once;
}

Outcome evaluate(std::vector<std::string> arguments, const std::string& from = evaluated_run().out) {
  arguments.insert(arguments.begin(), {"eval", "--from", from});
  return run(troupe_command(arguments));
}

/// The JSON object that is all that the command writes.
nlohmann::json evaluation(std::vector<std::string> arguments, const std::string& from = evaluated_run().out) {
  arguments.push_back("--json");
  const auto o = evaluate(arguments, from);
  check_success(o);
  const auto object = nlohmann::json::parse(o.out, nullptr, false);
  REQUIRE_MESSAGE(object.is_object(), o.out);
  return object;
}

double eval_loss(const nlohmann::json& object) { return object.at("eval_loss").get<double>(); }

/// The evaluation loss that a command has printed last.
std::string printed_loss(const std::string& out) {
  const std::string words = "evaluation loss ";
  const auto at = out.rfind(words);
  REQUIRE_MESSAGE(at != std::string::npos, out);
  const auto begin = at + words.size();
  return out.substr(begin, out.find_first_not_of("0123456789.", begin) - begin);
}

/// The line that the command prints of an evaluation.
std::string line_of(const nlohmann::json& object) {
  const double loss = eval_loss(object);
  char numbers[500];
  std::snprintf(numbers, sizeof numbers, "step %lld: evaluation loss %.4f nats per token, perplexity %.6g, ",
                static_cast<long long>(object.at("step").get<std::int64_t>()), loss, std::exp(loss));
  const auto tokens = object.at("tokens").get<std::int64_t>();
  return numbers + std::to_string(tokens) + (tokens == 1 ? " token " : " tokens ") +
         (object.at("held_out").get<bool>() ? "held out of '" : "of '") + object.at("data").get<std::string>() + "'\n";
}

/// The part of the text that a run with lm-tiny's configuration holds out.
std::string held_out_part() {
  const auto config = nlohmann::json::parse(read(evaluated_run().out + "/run.json")).at("config");
  const auto text = read(sample_text());
  const double part = static_cast<double>(text.size()) * config.at("eval").at("fraction").get<double>();
  return text.substr(text.size() - static_cast<std::size_t>(part));
}

/// The loss of a text, its tokens together.
double nats_of(const std::string& text, const std::string& from = evaluated_run().out) {
  TempDir dir;
  const auto object = evaluation({"--data", write_text(dir / "text", text)}, from);
  CHECK(object["tokens"] == text.size() - 1);
  return eval_loss(object) * static_cast<double>(text.size() - 1);
}

/// A run of one step without progress lines, saved.
std::string saved_step(const std::string& out, std::vector<std::string> more) {
  more.insert(more.end(), {"--steps", "1", "--checkpoint-every", "1", "--quiet"});
  CHECK(run(train(out, more)).code == exit_ok);
  return out;
}

/// The most memory that was resident of a process that lives, in KiB.
std::int64_t peak_kib(pid_t pid) {
  const auto status = read("/proc/" + std::to_string(pid) + "/status");
  const std::string key = "VmHWM:";
  const auto at = status.find(key);
  REQUIRE_MESSAGE(at != std::string::npos, status);
  return std::stoll(status.substr(at + key.size()));
}

void copy_checkpoints(const std::string& to) {
  std::filesystem::copy(evaluated_run().out + "/checkpoints", to, std::filesystem::copy_options::recursive);
}

/// Sets a weight that every token meets.
void plant(const std::string& safetensors, float weight) {
  std::string bytes = read(safetensors);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto offsets = nlohmann::json::parse(bytes.substr(8, length)).at("model.norm.weight").at("data_offsets");
  std::memcpy(bytes.data() + 8 + length + offsets[0].get<std::size_t>(), &weight, sizeof weight);
  write_text(safetensors, bytes);
}

}  // namespace

TEST_CASE("eval finds the loss that the run found after the same step, to the last bit, on any mesh") {
  const auto& losses = evaluated_run().losses;
  for (const std::vector<std::string>& how : {std::vector<std::string>{},
                                              {"--mesh", "dp=2"},
                                              {"--mesh", "pp=2"},
                                              {"--mesh", "dp=2/1,pp=2"},
                                              {"--threads", "2"}})
    for (const std::int64_t step : {2, 4}) {
      CAPTURE(step);
      auto arguments = how;
      if (step == 2) arguments.insert(arguments.end(), {"--step", "2"});
      const auto object = evaluation(arguments);
      CHECK(object["step"] == step);
      CHECK(eval_loss(object) == losses.at(step));
      CHECK(object["perplexity"].get<double>() == doctest::Approx(std::exp(losses.at(step))));
      CHECK(object["tokens"] == 4 * 32);
      CHECK(object["data"] == sample_text());
      CHECK(object["held_out"] == true);
    }
  // Model axes add in another order.
  CHECK(eval_loss(evaluation({"--mesh", "tp=2"})) == doctest::Approx(losses.at(4)).epsilon(1e-5));
  const auto o = evaluate({});
  check_success(o);
  CHECK(printed_loss(o.out) == printed_loss(evaluated_run().outcome.out));
  CHECK(o.out == line_of(evaluation({})));
}

TEST_CASE("what is held out is the end of the text: each microbatch is another of its windows, until all have been") {
  const auto part = held_out_part();
  const std::size_t seq = 32, windows = (part.size() - 1) / seq;
  REQUIRE(windows > 10);
  const auto first = [&](std::size_t batches) {
    const auto object = evaluation({"--batches", std::to_string(batches)});
    CHECK(object["tokens"] == batches * seq);
    return eval_loss(object) * static_cast<double>(batches * seq);
  };
  const double all = nats_of(part.substr(0, windows * seq + 1));
  CHECK(all > 0);
  CHECK(first(windows) == doctest::Approx(all).epsilon(1e-12));
  std::set<double> nats;  // of each window, rounded: differences of sums have an error
  double before = 0;
  for (const std::size_t batches : {1U, 2U, 3U, 4U}) {
    const double now = first(batches);
    CHECK(now > before);
    nats.insert(std::round((now - before) * 1e9));
    before = now;
  }
  CHECK(nats.size() == 4);
  // and then they come again, which is told
  const auto more = evaluate({"--batches", std::to_string(windows + 1), "--json"});
  check_one_line(more, exit_ok,
                 {"warning: only " + std::to_string(windows) + " windows are held out",
                  "--batches " + std::to_string(windows) + " counts none twice"});
  const double again = eval_loss(nlohmann::json::parse(more.out)) * static_cast<double>((windows + 1) * seq);
  CHECK(again - all == doctest::Approx(first(1)).epsilon(1e-9));
  // Two steps of 129 microbatches, the last of which is one too many.
  const auto many = evaluate({"--batches", "257", "--json"});
  CHECK_MESSAGE(many.code == exit_ok, many.err);
  REQUIRE(257 % windows > 0);
  const double rounds = static_cast<double>(257 / windows);
  CHECK(eval_loss(nlohmann::json::parse(many.out)) * static_cast<double>(257 * seq) ==
        doctest::Approx(rounds * all + first(257 % windows)).epsilon(1e-9));
}

TEST_CASE("a run that evaluates warns where eval.batches asks for more windows than are held out, once") {
  TempDir dir;
  const auto evaluating = [&](const std::string& batches, const std::string& every) {
    return run(train(dir / (batches + "." + every),
                     {"--steps", "2", "--quiet", "--set", "eval.batches=" + batches, "--set", "eval.every=" + every}));
  };
  const auto windows = std::to_string((read(sample_text()).size() / 10 - 1) / 32);
  check_success(evaluating(windows, "1"));
  const auto more = std::to_string(std::stoi(windows) + 1);
  check_one_line(evaluating(more, "1"), exit_ok,
                 {"warning: only " + windows + " windows are held out, and eval.batches=" + more + " asks for " + more,
                  "some count more than once; eval.batches=" + windows + " counts none twice"});
  check_success(evaluating(more, "0"));
}

TEST_CASE("more microbatches than a step of eval has: the bits of the run, which evaluates them in one step") {
  TempDir dir;
  const auto out = saved_step(dir / "out", {"--set", "eval.every=1", "--set", "eval.batches=300"});
  const auto trained = nlohmann::json::parse(read(out + "/run.json")).at("eval_loss").get<double>();
  for (const char* mesh : {"dp=1", "dp=2"}) {
    const auto object = evaluation({"--mesh", mesh}, out);
    CHECK(object["tokens"] == 300 * 32);
    CHECK(eval_loss(object) == trained);
  }
}

TEST_CASE("the memory of an evaluation does not grow with the number of its microbatches") {
  Run command(troupe_command({"eval", "--from", evaluated_run().out, "--batches", "100000000"}));
  for (int tries = 0; tries < 1000 && command.workers().empty(); ++tries) ::usleep(10'000);
  const auto workers = command.workers();
  REQUIRE(workers.size() == 1);
  ::usleep(2'000'000);
  for (const pid_t pid : {command.pid(), workers[0]}) CHECK(peak_kib(pid) < 500'000);
  command.send(SIGINT);
  check_failure(command.wait(10), exit_interrupted, {"warning: only ", "interrupted by "});
}

TEST_CASE("the run's text may be named, wherever it lies; another text holds out something else, and is refused") {
  TempDir dir;
  copy_checkpoints(dir / "checkpoints");
  const auto text = write_text(dir / "moved.txt", read(sample_text()));
  const auto object = evaluation({"--data", text, "--held-out"}, dir.path());
  CHECK(eval_loss(object) == evaluated_run().losses.at(4));
  CHECK(object["data"] == text);
  CHECK(object["held_out"] == true);

  check_one_line(evaluate({}, dir.path()), exit_data, {"is not known", "--data FILE --held-out"});
  write_text(dir / "run.json", "{\"job\": \"00000000000000ff\", \"data\": \"" + text + "\"}");  // of another run
  check_one_line(evaluate({}, dir.path()), exit_data, {"is not known"});
  std::filesystem::remove(dir / "run.json");
  std::filesystem::create_directory(dir / "run.json");
  check_one_line(evaluate({}, dir.path()), exit_data, {"is not known"});
  std::filesystem::remove(dir / "run.json");
  auto record = nlohmann::json::parse(read(evaluated_run().out + "/run.json"));
  record["data"] = text;
  write_text(dir / "run.json", record.dump());
  CHECK(eval_loss(evaluation({}, dir.path())) == evaluated_run().losses.at(4));
  std::filesystem::remove(text);
  check_one_line(evaluate({}, dir.path()), exit_data,
                 {"the text of the checkpoint's run", "moved.txt' does not exist"});
  check_one_line(evaluate({"--held-out", "--data", write_text(dir / "other.txt", std::string(9000, 'x'))}), exit_data,
                 {"other.txt' has fingerprint", "without --held-out"});
}

TEST_CASE("every token of --data but the first counts once, in windows side by side, the same on any mesh") {
  const auto text = read(sample_text());
  const std::size_t seq = 32, half = 141 * seq;
  REQUIRE(text.size() > 257 * seq + 1);  // more microbatches than a step of the job has
  const auto part = [&](std::size_t begin, std::size_t end) { return nats_of(text.substr(begin, end - begin)); };
  CHECK(part(0, 107) > 0);
  CHECK(part(0, 107) == doctest::Approx(part(0, 33) + part(32, 65) + part(64, 97) + part(96, 107)).epsilon(1e-12));
  const auto whole = evaluation({"--data", sample_text()});
  CHECK(whole["held_out"] == false);
  CHECK(whole["tokens"] == text.size() - 1);
  CHECK(eval_loss(whole) * static_cast<double>(text.size() - 1) ==
        doctest::Approx(part(0, half + 1) + part(half, text.size())).epsilon(1e-12));
  for (const char* mesh : {"dp=2", "dp=3", "pp=2"}) {
    CAPTURE(mesh);
    CHECK(eval_loss(evaluation({"--data", sample_text(), "--mesh", mesh})) == eval_loss(whole));
  }
  // Two steps of 129 microbatches, the last of which is one too many.
  const auto first = evaluation({"--data", sample_text(), "--batches", "257"});
  CHECK(first["tokens"] == 257 * seq);
  CHECK(eval_loss(first) * static_cast<double>(257 * seq) == doctest::Approx(part(0, 257 * seq + 1)).epsilon(1e-12));
  const auto o = evaluate({"--data", sample_text(), "--batches", "1"});
  check_success(o);
  CHECK(o.out == line_of(evaluation({"--data", sample_text(), "--batches", "1"})));
}

TEST_CASE("a microbatch that the text does not fill counts the tokens that there are") {
  TempDir dir;
  const auto out = saved_step(dir / "out", {"--set", "schedule.microbatch=2"});
  const auto text = read(sample_text());
  CHECK(nats_of(text.substr(0, 97), out) ==
        doctest::Approx(nats_of(text.substr(0, 65), out) + nats_of(text.substr(64, 33), out)).epsilon(1e-6));
}

TEST_CASE("a packed text has the loss of the plain one; reading leaves no file behind") {
  namespace fs = std::filesystem;
  TempDir dir;
  const auto count = [](const std::string& folder) {
    return std::distance(fs::recursive_directory_iterator(folder), {});
  };
  const auto before = count(evaluated_run().out);
  const auto text = write_text(dir / "text", read(sample_text()).substr(0, 1000));
  REQUIRE(std::system(("gzip -k '" + text + "'").c_str()) == 0);
  CHECK(eval_loss(evaluation({"--data", text + ".gz"})) == eval_loss(evaluation({"--data", text})));
  CHECK(eval_loss(evaluation({"--data", text + ".gz", "--mesh", "pp=2"})) == eval_loss(evaluation({"--data", text})));
  CHECK(dir.entries() == 2);
  CHECK(count(evaluated_run().out) == before);
}

TEST_CASE("a checkpoint is evaluated while its run goes on and saves others: reading takes no lock") {
  TempDir dir;
  const std::string metrics = dir / "out/metrics.jsonl";
  Run saving(train(dir / "out", {"--steps", "1000000", "--checkpoint-every", "20", "--keep", "100000", "--quiet",
                                 "--set", "eval.every=0"}));
  REQUIRE(saving.wait_for_lines(metrics, 20));
  for (int tries = 0; tries < 1000 && read(metrics).find("\"saved\"") == std::string::npos; ++tries) ::usleep(10'000);
  const auto object = evaluation({}, dir / "out");
  CHECK(object["step"].get<std::int64_t>() >= 20);
  CHECK(object["tokens"] == 4 * 32);
  saving.send(SIGTERM);
  check_failure(saving.wait(10), exit_interrupted, {"interrupted by "});
}

TEST_CASE("where its run removes a checkpoint while an evaluation begins, a newer one is evaluated") {
  TempDir dir;
  const std::string metrics = dir / "out/metrics.jsonl";
  // An evaluation takes about as long to begin as the run to save the next checkpoint, and so looks again.
  Run saving(train(dir / "out", {"--steps", "1000000", "--checkpoint-every", "1", "--keep", "1", "--quiet", "--set",
                                 "eval.every=0", "--set", "schedule.batch=1024"}));
  for (int tries = 0; tries < 6000 && read(metrics).find("\"saved\"") == std::string::npos; ++tries) ::usleep(10'000);
  for (int i = 0; i < 5; ++i) CHECK(evaluation({"--batches", "1"}, dir / "out")["tokens"] == 32);
  saving.send(SIGTERM);
  check_failure(saving.wait(60), exit_interrupted, {"interrupted by "});
}

TEST_CASE("the text of a run is found from any working directory, and where a later run has moved its run.json") {
  namespace fs = std::filesystem;
  TempDir dir;
  const auto text = write_text(dir / "text", read(sample_text()));
  check_success(run({"/bin/sh", "-c",
                     "cd '" + dir.path() + "' && exec " TROUPE_COMMAND " train '" + tiny_config +
                         "' --data text --out out --steps 1 --checkpoint-every 1 --quiet"}));
  const auto object = evaluation({}, dir / "out");
  CHECK(fs::path(object["data"].get<std::string>()).is_absolute());
  CHECK(fs::equivalent(object["data"].get<std::string>(), text));
  for (int i = 0; i < 2; ++i) check_success(run(train(dir / "out", {"--steps", "1", "--quiet"})));
  REQUIRE(fs::exists(dir / "out/earlier-2/run.json"));
  CHECK(evaluation({}, dir / "out") == object);
  const auto inside =
      run({"/bin/sh", "-c", "cd '" + (dir / "out/checkpoints") + "' && exec " TROUPE_COMMAND " eval --from . --json"});
  check_success(inside);
  CHECK(nlohmann::json::parse(inside.out, nullptr, false) == object);
}

TEST_CASE("a run that divides the vocabulary over its stages and an evaluation on its mesh find the same bits") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--mesh", "pp=2", "--set", "mesh.shared_vocabulary=true", "--set",
                                        "eval.every=2", "--steps", "2", "--checkpoint-every", "2", "--quiet"})));
  const auto trained = nlohmann::json::parse(read(dir / "out/run.json")).at("eval_loss").get<double>();
  CHECK(eval_loss(evaluation({"--mesh", "pp=2"}, dir / "out")) == trained);
  for (const char* mesh : {"dp=1", "dp=2/1,pp=2"})  // has no stages of one width to divide it over
    CHECK(eval_loss(evaluation({"--mesh", mesh}, dir / "out")) == doctest::Approx(trained).epsilon(1e-5));
}

TEST_CASE("on a terminal a line says how far the evaluation of a text is; stdout has the result alone") {
  TempDir dir;
  const auto o = run({"script", "-qec",
                      TROUPE_COMMAND " eval --from '" + evaluated_run().out + "' --data '" + sample_text() +
                          "' --json >'" + (dir / "result") + "'",
                      "/dev/null"});
  CHECK_MESSAGE(o.code == exit_ok, o.out);
  check_nothing_left(o);
  const auto windows = std::to_string((read(sample_text()).size() - 1 + 31) / 32);
  CHECK_MESSAGE(o.out.find("microbatch " + windows + "/" + windows + "  loss ") != std::string::npos, o.out);
  CHECK(nlohmann::json::parse(read(dir / "result"), nullptr, false) == evaluation({"--data", sample_text()}));
}

TEST_CASE("Ctrl-C ends an evaluation with 130, and its workers") {
  TempDir dir;
  const auto text = write_text(dir / "text", std::string(20'000'000, 'a'));
  Run command(troupe_command({"eval", "--from", evaluated_run().out, "--data", text}));
  for (int tries = 0; tries < 1000 && command.workers().empty(); ++tries) ::usleep(10'000);
  REQUIRE(command.workers().size() == 1);
  command.send(SIGINT);
  const auto o = command.wait(10);
  check_one_line(o, exit_interrupted, {"interrupted by "});
  CHECK(o.out.empty());
}

TEST_CASE("a text whose name or folder is not UTF-8 is found by eval, and run.json is JSON all the same") {
  TempDir dir;
  std::filesystem::create_directory(dir / "folder \xfe");
  const std::string text = dir / "folder \xfe/\xfftext \"\xc3";
  std::filesystem::copy_file(sample_text(), text);
  check_success(run(troupe_command({"train", tiny_config, "--data", text, "--out", dir / "run \xff", "--steps", "1",
                                    "--checkpoint-every", "1", "--quiet"})));
  CHECK_FALSE(nlohmann::json::parse(read(dir / "run \xff/run.json"), nullptr, false).is_discarded());
  const auto o = run(troupe_command({"eval", "--from", dir / "run \xff"}));
  check_success(o);
  CHECK_MESSAGE(o.out.find("held out of '" + text + "'") != std::string::npos, o.out);
}

TEST_CASE("a checkpoint whose loss is not finite has a code of its own") {
  TempDir dir;
  check_success(run(troupe_command({"ckpt", "export", evaluated_run().out, "--format", "hf", "--out", dir / "hf"})));
  check_success(run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "good"})));
  const auto text = read(sample_text()).substr(0, 500);
  CHECK(nats_of(text, dir / "good") == doctest::Approx(nats_of(text)).epsilon(1e-6));
  check_one_line(evaluate({}, dir / "good"), exit_data, {"was imported, so no run has held out a text", "--data FILE"});
  plant(dir / "hf/model.safetensors", std::numeric_limits<float>::quiet_NaN());
  const auto imported = run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "imported"}));
  CHECK(imported.code == exit_ok);
  CHECK_MESSAGE(imported.err.starts_with("troupe: warning: 'model.norm.weight' has NaN or infinite"), imported.err);
  const auto o = evaluate({"--data", sample_text()}, dir / "imported");
  check_one_line(o, exit_diverged, {dir / "imported", "is not finite"});
  CHECK(o.out.empty());
}

TEST_CASE("a perplexity that no double holds is null in JSON and inf in the line; its loss is there in both") {
  TempDir dir;
  check_success(run(troupe_command({"ckpt", "export", evaluated_run().out, "--format", "hf", "--out", dir / "hf"})));
  plant(dir / "hf/model.safetensors", 1e8F);  // logits so far apart that a wrong token costs more than 709 nats
  check_success(run(troupe_command({"ckpt", "import", dir / "hf", "--out", dir / "large"})));
  const auto object = evaluation({"--data", sample_text(), "--batches", "1"}, dir / "large");
  CHECK(eval_loss(object) > 710);
  CHECK(object.at("perplexity").is_null());
  const auto o = evaluate({"--data", sample_text(), "--batches", "1"}, dir / "large");
  check_success(o);
  CHECK_MESSAGE(o.out.find("perplexity inf, ") != std::string::npos, o.out);
}

TEST_CASE(
    "a damaged checkpoint is passed over, and told, for an older one; where its step is asked for it is an error") {
  TempDir dir;
  copy_checkpoints(dir / "checkpoints");
  for (const auto& entry : std::filesystem::directory_iterator(dir / "checkpoints"))
    if (entry.path().filename().string().starts_with("step-00000004")) {
      std::fstream shard(entry.path().string() + "/shard-00000.safetensors",
                         std::ios::in | std::ios::out | std::ios::binary);
      shard.seekp(200'000);
      shard.write("damage", 6);
      REQUIRE(shard.flush());
    }
  const auto o = evaluate({"--data", sample_text(), "--batches", "2", "--json"}, dir.path());
  CHECK(o.code == exit_ok);
  CHECK_MESSAGE(o.err.find("is passed over") != std::string::npos, o.err);
  const auto object = nlohmann::json::parse(o.out);
  CHECK(object["step"] == 2);
  CHECK(eval_loss(object) ==
        eval_loss(evaluation({"--data", sample_text(), "--batches", "2", "--step", "2"})));  // nothing of step 4's
  check_one_line(evaluate({"--data", sample_text(), "--step", "4"}, dir.path()), exit_checkpoint,
                 {"shard-00000.safetensors", "is damaged"});
}

TEST_CASE("bytes that are no tokens of the model are refused; tokens that are no bytes are warned of") {
  TempDir dir;
  const auto small = saved_step(dir / "small", {"--set", "model.vocab=128"});
  const auto text = write_text(dir / "text", "caf\xc3\xa9 and more");
  const std::vector<std::string> says = {"holds byte 195 at offset 3", "'model.vocab' is only 128"};
  check_one_line(evaluate({"--data", text}, small), exit_data, says);
  REQUIRE(std::system(("gzip -k '" + text + "'").c_str()) == 0);
  check_one_line(evaluate({"--data", text + ".gz"}, small), exit_data,
                 {"data file '" + text + ".gz' " + says[0], says[1]});
  const auto large = saved_step(dir / "large", {"--set", "model.vocab=280"});
  check_one_line(evaluate({}, large), exit_ok, {"warning: the model has 280 tokens, and texts are read as bytes"});
}

TEST_CASE("what cannot be evaluated says why") {
  TempDir dir;
  check_one_line(run(troupe_command({"eval"})), exit_usage, {"--from"});
  check_one_line(evaluate({}, dir / "none"), exit_checkpoint, {"--from", "none"});
  check_one_line(evaluate({}, dir.path()), exit_checkpoint, {"--from", "there is no checkpoint in"});
  check_one_line(evaluate({"--step", "3"}), exit_checkpoint,
                 {"--step: there is no checkpoint of step 3 in '" + evaluated_run().out + "/checkpoints'"});
  check_one_line(evaluate({"--batches", "0"}), exit_usage, {"--batches", "at least 1"});
  check_one_line(evaluate({"--batches", "2000000000"}), exit_usage, {"'eval.batches' = 2000000000 is out of range"});
  check_one_line(evaluate({"--mesh", "xp=2"}), exit_usage, {"unknown axis 'xp'"});
  check_one_line(evaluate({"--mesh", "dp=9,pp=99"}), exit_plan, {"the nearest mesh that works is dp=8,pp=9"});

  check_one_line(evaluate({"--data", ""}), exit_usage, {"--data", "the name of a file"});
  check_one_line(evaluate({"--data", dir / "none.txt"}), exit_data, {"none.txt' does not exist"});
  check_one_line(evaluate({"--data", write_text(dir / "empty", "")}), exit_data, {"empty' is empty"});
  check_one_line(evaluate({"--data", write_text(dir / "one", "x")}), exit_data,
                 {"one' is too short: it has one byte", "at least 2 bytes"});
  CHECK(evaluation({"--data", write_text(dir / "two", "xy")})["tokens"] == 1);
  check_one_line(evaluate({"--data", write_text(dir / "bad.gz", "\x1f\x8b rubbish")}), exit_data, {"damaged gzip"});
  REQUIRE(std::system(("gzip -k '" + (dir / "empty") + "'").c_str()) == 0);
  check_one_line(evaluate({"--data", dir / "empty.gz"}), exit_data, {"empty.gz' is empty"});

  const auto out = saved_step(dir / "out", {"--set", "eval.every=0", "--set", "eval.fraction=0"});
  check_one_line(evaluate({}, out), exit_usage, {"'eval.fraction' is 0", "--data FILE"});
  CHECK(evaluation({"--data", sample_text(), "--batches", "2"}, out)["tokens"] == 64);

  check_one_line(
      run({"/bin/sh", "-c",
           "exec " TROUPE_COMMAND " eval --from '" + out + "' --data '" + sample_text() + "' --batches 1 >/dev/full"}),
      exit_output, {"standard output"});
}
