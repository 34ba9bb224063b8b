// `troupe ckpt`: over folders of checkpoints that the library has written.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "devices/files/file_storage.h"
#include "tests/checkpoint/sample.h"
#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;
namespace checkpoint = troupe::checkpoint;

namespace {

/// A folder of checkpoints of two parameters with moments, of steps 10, 20, 30 and 40.
struct Saved {
  TempDir dir;
  troupe::FileStorage storage;
  checkpoint::Catalog catalog{storage, dir / "checkpoints"};
  checkpoint::test::Draw draw{1};
  checkpoint::test::Model model;
  checkpoint::Stamp stamp;

  Saved() {
    using checkpoint::TensorKind;
    for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"})
      for (const auto kind : checkpoint::tensor_kinds)
        model.push_back({name, kind, troupe::DType::f32, {30, 20}, std::vector<std::byte>(2400)});
    stamp = checkpoint::test::must(catalog.claim(0, 0xabc));
    for (const int step : {10, 20, 30, 40}) save(step);
  }
  void save(int step) {
    stamp.step = step;
    const float number = static_cast<float>(step);
    for (std::size_t i = 0; i < 5; ++i) std::memcpy(model[0].bytes.data() + 4 * i, &number, sizeof number);
    checkpoint::test::must(checkpoint::test::save(catalog, storage, stamp, model, draw, 2));
  }
  std::string all() const { return catalog.dir(); }
  std::string of(int step) const { return catalog.path(checkpoint::folder_name(step, 1)); }
  void damage(const std::string& path, std::streamoff at) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
  }
  /// A bit of the first element of the first parameter.
  void damage_data(int step) const {
    const auto m = checkpoint::test::must(catalog.manifest(checkpoint::folder_name(step, 1)));
    const auto& extent = m.tensors[0].extents[0];
    damage(of(step) + "/" + m.files[static_cast<std::size_t>(extent.file)].name, extent.offset);
  }
};

Outcome ckpt(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ckpt");
  return run(troupe_command(arguments));
}

void check_says(const Outcome& o, const std::vector<std::string>& words) {
  check_success(o);
  for (const auto& w : words) CHECK_MESSAGE(o.out.find(w) != std::string::npos, "'", o.out, "' does not say: ", w);
}

}  // namespace

TEST_CASE("ckpt ls lists checkpoints, the newest, what is not committed and what cannot be read") {
  Saved saved;
  std::filesystem::create_directory(saved.all() + "/step-00000050.g1");
  saved.damage(saved.of(20) + "/manifest", 100);
  const auto o = ckpt({"ls", saved.all() + "/"});
  check_says(o, {"step-00000010.g1", "14.1 KiB", "not committed", "cannot be read", "damaged: its checksum"});
  std::istringstream lines(o.out);
  for (std::string line; std::getline(lines, line);)
    CHECK((line.find("newest") != std::string::npos) == (line.find("step-00000040.g1") != std::string::npos));
  check_says(ckpt({"ls", saved.of(10)}), {"step-00000010.g1"});
}

TEST_CASE("ckpt show prints the newest manifest as JSON, or a tensor with its extents") {
  Saved saved;
  const auto whole = ckpt({"show", saved.all()});
  check_success(whole);
  const auto manifest = nlohmann::json::parse(whole.out);
  CHECK(manifest["step"] == 40);
  CHECK(manifest["job"] == "0000000000000abc");
  CHECK(manifest["tensors"].size() == 6);
  const auto one = ckpt({"show", saved.of(10), "model.norm.weight.exp_avg"});
  check_success(one);
  CHECK(nlohmann::json::parse(one.out)["extents"][0]["file"].get<std::string>().starts_with("shard-"));
  check_one_line(ckpt({"show", saved.of(10), "norm.weight"}), exit_usage,
                 {"no tensor 'norm.weight'", "model.norm.weight"});
}

TEST_CASE("ckpt verify reads every block; damage is named on stdout, file, tensor and block, and ends with code 9") {
  Saved saved;
  check_says(ckpt({"verify", saved.all()}),
             {"step-00000040.g1: 6 tensors of 14.1 KiB in 2 files, every block as it was written"});
  saved.damage_data(40);
  const auto o = ckpt({"verify", saved.all()});
  check_one_line(o, exit_checkpoint, {"step-00000040.g1' is damaged in 1 block"});
  CHECK(o.out.find(".safetensors': model.embed_tokens.weight[") != std::string::npos);
  CHECK(o.out.find("damaged in block 0") != std::string::npos);
  check_says(ckpt({"verify", saved.of(30)}), {"every block"});
  saved.damage(saved.of(30) + "/shard-00001.safetensors", 20);
  check_one_line(ckpt({"verify", saved.of(30)}), exit_checkpoint, {"shard-00001.safetensors", "header"});
  std::filesystem::remove(saved.of(20) + "/shard-00000.safetensors");
  check_one_line(ckpt({"verify", saved.of(20)}), exit_checkpoint, {"shard-00000.safetensors", "No such file"});
  saved.damage(saved.of(10) + "/manifest", 8);
  check_one_line(ckpt({"verify", saved.of(10)}), exit_checkpoint, {"step-00000010.g1/manifest", "damaged"});
  saved.damage(saved.of(20) + "/manifest", 9);
  check_one_line(ckpt({"verify", saved.of(20)}), exit_checkpoint, {"version 257", "up to 1"});
}

TEST_CASE("ckpt diff tells what differs, by how much, however either was cut; code 1 where something does") {
  Saved saved;
  const auto o = ckpt({"diff", saved.of(10), saved.all()});
  CHECK(o.code == exit_differs);
  CHECK(o.err.empty());
  std::istringstream words(o.out.substr(o.out.find("model.embed_tokens.weight")));
  std::string name, elements, greatest;
  words >> name >> elements >> greatest;
  CHECK(name + " " + elements + " " + greatest == "model.embed_tokens.weight 5 30");
  CHECK(o.out.find("5 tensors the same bit for bit, 1 not") != std::string::npos);
  checkpoint::test::must(saved.storage.rename(saved.of(10), saved.dir / "elsewhere"));
  saved.save(10);
  check_says(ckpt({"diff", saved.dir / "elsewhere", saved.of(10)}), {"6 tensors the same bit for bit, 0 not"});
  saved.model.resize(3);
  saved.save(50);
  const auto fewer = ckpt({"diff", saved.of(40), saved.of(50)});
  CHECK(fewer.code == exit_differs);
  CHECK(fewer.out.find("only in the first") != std::string::npos);
}

TEST_CASE("ckpt prune keeps the newest and those it is told to") {
  Saved saved;
  check_says(ckpt({"prune", saved.all(), "--keep", "1", "--keep-every", "20"}),
             {"removed step-00000010.g1\nremoved step-00000030.g1\n"});
  CHECK_FALSE(std::filesystem::exists(saved.of(10)));
  check_says(ckpt({"verify", saved.of(20)}), {"every block"});
  CHECK(ckpt({"prune", saved.all()}).out.empty());
  check_one_line(ckpt({"prune", saved.of(20)}), exit_usage, {"one checkpoint", "the folder that it is in"});
}

TEST_CASE("ckpt prune removes what no run has committed, too") {
  Saved saved;
  std::filesystem::remove(saved.of(10) + "/manifest");  // as a prune that is killed leaves it
  std::filesystem::remove(saved.of(40) + "/manifest");
  check_says(ckpt({"prune", saved.all(), "--keep", "1"}),
             {"removed step-00000020.g1\nremoved step-00000010.g1, which has no manifest\nremoved step-00000040.g1, "
              "which has no manifest\n"});
  check_says(ckpt({"verify", saved.of(30)}), {"every block"});
  for (const int gone : {10, 20, 40}) CHECK_FALSE(std::filesystem::exists(saved.of(gone)));
}

TEST_CASE("a folder that is there and cannot be read is a failure of the checkpoint, not of the command line") {
  if (::geteuid() == 0) return skip("root reads everything");
  Saved saved;
  std::filesystem::permissions(saved.all(), std::filesystem::perms::none);
  for (const std::string command : {"ls", "show", "verify", "prune"})
    check_one_line(ckpt({command, saved.all()}), exit_checkpoint, {saved.all(), "Permission denied"});
  check_one_line(ckpt({"diff", saved.all(), saved.all()}), exit_checkpoint, {"Permission denied"});
  std::filesystem::permissions(saved.all(), std::filesystem::perms::owner_all);
}

TEST_CASE("ckpt says what is wrong with a folder, and which word of a command line it does not know") {
  Saved saved;
  TempDir empty;
  for (const std::string command : {"ls", "show", "verify", "prune"})
    check_one_line(ckpt({command, saved.dir / "none"}), exit_usage, {"none", "No such file"});
  for (const std::string command : {"ls", "show", "verify"})
    check_one_line(ckpt({command, empty.path()}), exit_checkpoint, {"no checkpoint in", empty.path()});
  check_one_line(ckpt({"diff", saved.all(), saved.dir / "none"}), exit_usage, {"none"});
  check_one_line(ckpt({"verify", saved.of(10) + "/manifest"}), exit_usage, {"Not a directory"});
  check_one_line(ckpt({}), exit_usage, {"subcommand is required"});
  check_one_line(ckpt({"vrify", saved.all()}), exit_usage, {"unknown command 'vrify'", "'verify'"});
  check_one_line(ckpt({"ls"}), exit_usage, {"dir is required"});
  check_one_line(ckpt({"ls", saved.all(), "more"}), exit_usage, {"unexpected argument 'more'"});
  check_one_line(ckpt({"prune", saved.all(), "--kep", "3"}), exit_usage, {"unknown option '--kep'", "'--keep'"});
  check_one_line(ckpt({"prune", saved.all(), "--keep", "0"}), exit_usage, {"--keep", "at least 1"});
}
