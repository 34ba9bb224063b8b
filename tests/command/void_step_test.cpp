// Void steps as a user meets them: on real processes, begun from a checkpoint whose exponents are too fine.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "tests/checkpoint/sample.h"
#include "tests/command/checks.h"

using namespace troupe::test;
namespace checkpoint = troupe::checkpoint;
using nlohmann::json;

namespace {

constexpr int saved = 2, steps = 6;

/// The checkpoint of a run of two steps, with the exponents of these parameters.
void save(const std::string& out, const std::vector<checkpoint::SumExponent>& exponents) {
  check_success(
      run(train(out, {"--steps", std::to_string(saved), "--checkpoint-every", std::to_string(saved), "--quiet"})));
  troupe::FileStorage storage;
  const checkpoint::Catalog catalog{storage, out + "/checkpoints"};
  const std::string folder = checkpoint::folder_name(saved, 1);
  auto manifest = checkpoint::test::must(catalog.manifest(folder));
  for (const auto& wanted : exponents) {
    bool found = false;
    for (auto& e : manifest.exponents)
      if (e.parameter == wanted.parameter) e = wanted, found = true;
    REQUIRE_MESSAGE(found, wanted.parameter);
  }
  std::filesystem::copy(catalog.path(folder), out + "/before", std::filesystem::copy_options::recursive);
  const auto bytes = checkpoint::encode(manifest);
  std::ofstream file(catalog.path(folder) + "/manifest", std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  // no tensor differs
  const auto diff = run(troupe_command({"ckpt", "diff", catalog.path(folder), out + "/before"}));
  CHECK(diff.code == troupe::runtime::exit_differs);
  CHECK(diff.out.find(" 0 not\nexponents or peaks of gradient sums: " + std::to_string(exponents.size()) + " differ") !=
        std::string::npos);
}

struct Resumed {
  std::string hash;
  std::vector<json> lines;  ///< of steps; without times
};

Resumed go_on(const std::string& from, const std::vector<std::string>& mesh) {
  TempDir dir;
  auto arguments = mesh;
  arguments.insert(arguments.end(), {"--steps", std::to_string(steps), "--resume", from + "/checkpoints"});
  const auto o = run(train(dir / "out", arguments));
  CHECK(o.code == troupe::runtime::exit_ok);
  check_nothing_left(o);
  CHECK(o.err.find("troupe: warning: step 2 is void") != std::string::npos);
  CHECK(o.out.find("\n1 step was void: see metrics.jsonl") != std::string::npos);
  const json summary = json::parse(read(dir / "out/run.json"));
  CHECK(summary["void_steps"] == 1);
  Resumed n{summary["params_hash"], {}};
  std::istringstream lines(read(dir / "out/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (auto object = json::parse(line); object.contains("loss")) {
      for (const char* changes : {"tokens_per_s", "step_ms", "exposed_comm_ms", "generation"}) object.erase(changes);
      n.lines.push_back(std::move(object));
    }
  return n;
}

}  // namespace

TEST_CASE(
    "a step whose terms exceed an exact sum's range is void on real processes, is said to be, and leaves the same bits "
    "on any mesh") {
  TempDir dir;
  // Both overflow in step 2, with pp on different stages.
  save(dir / "run", {{"model.norm.weight", 70, 0}, {"model.layers.2.mlp.up_proj.weight", 75, 0}});
  const Resumed alone = go_on(dir / "run", {});
  REQUIRE(alone.lines.size() == steps - saved);
  const json& first = alone.lines[0];
  // both in microbatch 0; the graph has this one first
  CHECK(first["void"] == "model.layers.2.mlp.up_proj.weight");
  CHECK(first["void_microbatch"] == 0);
  CHECK(first["grad_norm"].is_null());
  for (std::size_t i = 1; i < alone.lines.size(); ++i) {
    CHECK_FALSE(alone.lines[i].contains("void"));
    CHECK(alone.lines[i]["grad_norm"] > 0);
  }
  for (const std::vector<std::string>& mesh : {std::vector<std::string>{"--mesh", "dp=3"},
                                               {"--mesh", "dp=2,pp=2", "--threads", "2"},
                                               {"--mesh", "dp=3", "--zero", "2"},
                                               {"--mesh", "dp=2,pp=2", "--zero", "1"},
                                               {"--mesh", "dp=2", "--zero", "3"},
                                               {"--mesh", "pp=3", "--ucx-tls", "tcp"}}) {
    CAPTURE(mesh[1]);
    const Resumed n = go_on(dir / "run", mesh);
    CHECK(n.hash == alone.hash);
    CHECK(n.lines == alone.lines);
  }
  // terms of tp are others
  const Resumed divided = go_on(dir / "run", {"--mesh", "tp=2"}), both = go_on(dir / "run", {"--mesh", "dp=2,tp=2"});
  CHECK(divided.lines[0]["void"] == first["void"]);
  CHECK(divided.hash == both.hash);
  CHECK(divided.lines == both.lines);
}

TEST_CASE(
    "a void step leaves every tensor as it was and counts no update; a run that is resumed just after it has the bits "
    "of one that was not stopped") {
  TempDir dir;
  save(dir / "run", {{"model.norm.weight", 70, 0}});
  const Resumed alone = go_on(dir / "run", {});
  const auto o = run(train(dir / "stopped", {"--mesh", "dp=2", "--zero", "2", "--steps", "3", "--resume",
                                             dir / "run/checkpoints", "--checkpoint-every", "3"}));
  CHECK(o.code == troupe::runtime::exit_ok);
  CHECK(o.err.find("step 2 is void") != std::string::npos);
  const auto diff = run(troupe_command({"ckpt", "diff", dir / "run/checkpoints", dir / "stopped/checkpoints"}));
  // and no line of updates
  CHECK_MESSAGE(
      diff.out.find(" 0 not\nvoid steps in a row: 0 and 1\nexponents or peaks of gradient sums: ") != std::string::npos,
      diff.out);
  const auto resumed =
      run(train(dir / "stopped", {"--mesh", "pp=2", "--steps", std::to_string(steps), "--resume", "--quiet"}));
  CHECK(resumed.code == troupe::runtime::exit_ok);
  CHECK(json::parse(read(dir / "stopped/run.json"))["params_hash"] == alone.hash);
}
