// troupe ckpt import: what it takes, what it refuses by name, what it leaves behind. On a simulated disk.
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "apps/job/resume.h"
#include "devices/parallel.h"
#include "runtime/session/checkpoint_tracker.h"
#include "tests/apps/hf_model.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::ckpt;
using namespace troupe::ckpt::hf_model;

namespace {

/// A checkpoint that was imported, and its tensors' values.
struct Read {
  explicit Read(Storage& storage, const std::string& dir)
      : catalog(storage, dir), reader(must(checkpoint::CheckpointReader::open(storage, catalog.path(folder()),
                                                                              must(catalog.manifest(folder()))))) {}
  std::string folder() const {
    const auto all = must(catalog.entries());
    REQUIRE(all.size() == 1);
    REQUIRE(all[0].committed);
    return all[0].folder;
  }
  std::vector<float> values(const std::string& name) const {
    const auto* t = reader.manifest().find(name, checkpoint::TensorKind::parameter);
    REQUIRE(t);
    std::vector<float> out(static_cast<std::size_t>(elements(t->shape)));
    must(reader.read_part(*t, Extent::whole(t->shape), reinterpret_cast<std::byte*>(out.data())));
    return out;
  }
  lm::LmConfig config() const { return must(lm::parse_config(reader.manifest().config, "manifest")); }

  checkpoint::Catalog catalog;
  checkpoint::CheckpointReader reader;
};

/// IEEE 754's definition, in numbers.
double value_of(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1),
            fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent ? std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits)
                          : std::ldexp(fraction, 1 - bias - fraction_bits));
}

/// A folder, spoiled by `spoil`, is refused with these words, and nothing is written.
void check_spoiled(const std::function<void(HfFolder&)>& spoil, const std::vector<std::string>& says,
                   bool tied = false) {
  Draw draw(9);
  SimStorage storage;
  HfFolder folder = HfFolder::random(draw, small_config(tied), "F32", 4);
  spoil(folder);
  folder.write(storage, "/hf");
  check_refused(import_to(storage, "/hf", "/ckpt").status(), says);
  CHECK(must(storage.list("/")).size() == 1);
}

/// A disk on which another process acts, once, right before a folder is locked.
class Overtaken final : public Storage {
 public:
  Overtaken(Storage& disk, std::function<void()> other) : disk_(disk), other_(std::move(other)) {}
  Expected<std::unique_ptr<File>> create(const std::string& path, Access access) override {
    return disk_.create(path, access);
  }
  Expected<std::unique_ptr<File>> open(const std::string& path, Access access) override {
    return disk_.open(path, access);
  }
  Status make_dir(const std::string& path) override { return disk_.make_dir(path); }
  Status rename(const std::string& from, const std::string& to) override { return disk_.rename(from, to); }
  Status remove(const std::string& path) override { return disk_.remove(path); }
  Status sync_dir(const std::string& path) override { return disk_.sync_dir(path); }
  Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) override {
    if (const auto other = std::exchange(other_, nullptr)) other();
    return disk_.lock_dir(path);
  }
  Expected<std::vector<DirEntry>> list(const std::string& path) override { return disk_.list(path); }

 private:
  Storage& disk_;
  std::function<void()> other_;
};

}  // namespace

TEST_CASE("every bf16 and f16 value becomes the f32 of the same value") {
  const auto config = small_config(true, {"model.vocab=4096", "model.dim=16"});
  for (const auto& [dtype, exponent_bits] : {std::pair<std::string, int>{"BF16", 8}, {"F16", 5}}) {
    Draw draw(8);
    SimStorage storage;
    HfFolder folder = HfFolder::random(draw, config, dtype, 2);
    auto& table = folder.tensors["model.embed_tokens.weight"].bytes;
    for (std::uint32_t i = 0; i < 65536; ++i) std::memcpy(table.data() + 2 * i, &i, 2);
    folder.write(storage, "/hf", 3);
    CHECK(must(import_to(storage, "/hf", "/ckpt")).widened == dtype);
    const Read read(storage, "/ckpt");
    const auto values = read.values("model.embed_tokens.weight");
    int wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const double is = values[i], expected = value_of(static_cast<std::uint16_t>(i), exponent_bits);
      wrong += !(std::isnan(expected) ? std::isnan(is) : is == expected && std::signbit(is) == std::signbit(expected));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "an import is a checkpoint of step 0 without moments, which verifies, of several pieces where tensors are large") {
  Draw draw(7);
  SimStorage storage;
  const auto config = small_config(false, {"model.vocab=70000", "model.dim=64"});  // 17.9 MB
  const HfFolder folder = HfFolder::random(draw, config, "F32", 4);
  folder.write(storage, "/hf", 2);
  const auto imported = must(import_to(storage, "/hf", "/ckpt"));
  CHECK(imported.folder == "/ckpt/step-00000000.g1");
  CHECK(imported.parameters == lm::parameter_count(config.model));
  CHECK(imported.widened.empty());
  const Read read(storage, "/ckpt");
  CHECK(lm::is_weights_only(read.reader.manifest()));
  SerialParallel serial;
  CHECK(read.reader.verify(serial).empty());
  CHECK(read.reader.manifest().stamp.job == 77);
  CHECK(read.reader.manifest().find("lm_head.weight", checkpoint::TensorKind::parameter)->extents.size() == 2);
  for (const auto& [name, t] : folder.tensors) {
    const auto values = read.values(name);
    CHECK(std::memcmp(values.data(), t.bytes.data(), t.bytes.size()) == 0);
  }
}

TEST_CASE(
    "the configuration: the model is config.json's, the rest --config's or a default; a key that is ignored is told") {
  Draw draw(6);
  SimStorage storage;
  const auto model = small_config(true).model;
  HfFolder::random(draw, small_config(true), "F32", 4).write(storage, "/hf");
  must(import_to(storage, "/hf", "/a"));
  const auto c = Read(storage, "/a").config();
  auto expected = model;
  expected.dropout = 0;
  CHECK(c.model == expected);
  CHECK(must(lm::parse_config(Read(storage, "/a").reader.manifest().config, "manifest", {"schedule.batch=3"}))
            .schedule.microbatches() == 3);

  troupe::test::TempDir dir;
  const auto with = [&](const std::string& text) {
    return import_to(storage, "/hf", "/b", troupe::test::write_text(dir / "c.toml", text));
  };
  check_refused(with("[schedule]\nsteps = 5\nlr = 1e-3\nbatch = 4\nmicrobatch = 3\n").status(),
                {"c.toml", "'schedule.batch' = 4"});
  const auto in =
      must(with("[model]\nlayers = 9\ndropout = 0.25\n[schedule]\nlanes = 2\nsteps = 5\nlr = 1e-3\nbatch = "
                "4\nmicrobatch = 2\n[run]\nseed = 12\n"));
  REQUIRE(in.warnings.size() == 2);  // the other is of the weights, which are any bits
  CHECK(in.warnings[0].find("c.toml:5: schedule.lanes has no meaning any more") != std::string::npos);
  const Read read(storage, "/b");
  expected.dropout = 0.25;
  CHECK(read.config().model == expected);
  CHECK(read.config().schedule.batch == 4);
  CHECK(read.reader.manifest().seed == 12);
  // a run begins with no update and first exponents
  CHECK(runtime::sums_of(read.reader.manifest()) == runtime::SumState{});
}

TEST_CASE("an import warns of tensors with a value that is NaN or infinite, by name, in each dtype, and imports them") {
  const auto warnings = [](const std::string& dtype, std::int64_t item,
                           const std::map<std::string, std::uint32_t>& bad) {
    Draw draw(2);
    SimStorage storage;
    HfFolder folder = HfFolder::random(draw, small_config(true), dtype, item);
    for (auto& [name, t] : folder.tensors) std::fill(t.bytes.begin(), t.bytes.end(), std::byte{});
    for (const auto& [name, bits] : bad)  // as the tensor's last value
      std::memcpy(&*(folder.tensors.at(name).bytes.end() - item), &bits, static_cast<std::size_t>(item));
    folder.write(storage, "/hf");
    const auto imported = must(import_to(storage, "/hf", "/ckpt"));
    Read(storage, "/ckpt");
    return imported.warnings;
  };
  const std::string norm = "model.norm.weight", table = "model.embed_tokens.weight";
  struct Bits {
    std::string dtype;
    std::int64_t item;
    std::uint32_t nan, infinite, greatest;
  };
  for (const Bits& b : {Bits{"F32", 4, 0x7fc00000, 0xff800000, 0x7f7fffff}, Bits{"BF16", 2, 0x7fc0, 0xff80, 0x7f7f},
                        Bits{"F16", 2, 0x7e00, 0xfc00, 0x7bff}}) {
    CAPTURE(b.dtype);
    CHECK(warnings(b.dtype, b.item, {{norm, b.greatest}}).empty());
    CHECK(warnings(b.dtype, b.item, {{norm, b.nan}}) ==
          std::vector<std::string>{"'" + norm + "' has NaN or infinite values: a loss that reads them is not finite"});
    CHECK(warnings(b.dtype, b.item, {{norm, b.nan}, {table, b.infinite}}) ==
          std::vector<std::string>{"'" + table +
                                   "', and 1 more, have NaN or infinite values: a loss that reads them is not finite"});
  }
}

TEST_CASE("config.json as other versions of transformers write it") {
  const auto read = [](const std::string& more) {
    return read_llama_config(
        R"({"model_type": "llama", "vocab_size": 99, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
                                 "num_attention_heads": 4, "max_position_embeddings": 16)" +
            more + "}",
        "c.json");
  };
  const auto oldest = must(read(""));
  CHECK(oldest.kv_heads == 4);
  CHECK(oldest.head_dim == 6);
  CHECK(oldest.norm_eps == 1e-6);
  CHECK(oldest.rope_theta == 10000);
  CHECK_FALSE(oldest.tied);
  CHECK(must(read(R"(, "rope_theta": 500000, "rope_scaling": null, "head_dim": null)")).rope_theta == 500000);
  CHECK(must(read(R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 7.5})")).rope_theta == 7.5);
  const auto model = small_config(true).model;
  auto again = must(read_llama_config(write_llama_config(model), "c.json"));
  again.dropout = model.dropout;
  CHECK(again == model);
}

TEST_CASE("what this program does not compute is refused by its key") {
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [=](HfFolder& f) { f.config[key] = value; };
  };
  check_spoiled(set("model_type", "mistral"),
                {"/hf/config.json", "'model_type' must be \"llama\", but is \"mistral\""});
  check_spoiled([](HfFolder& f) { f.config.erase("model_type"); }, {"'model_type' is missing"});
  check_spoiled(set("architectures", {"LlamaForSequenceClassification"}),
                {"'architectures'", "LlamaForCausalLM", "LlamaForSequenceClassification"});
  check_spoiled(set("attention_bias", true), {"'attention_bias' must be false, but is true"});
  check_spoiled(set("mlp_bias", true), {"'mlp_bias' must be false"});
  check_spoiled(set("hidden_act", "gelu"), {"'hidden_act' must be \"silu\", but is \"gelu\""});
  check_spoiled(set("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
                {"'rope_scaling'", "'rope_type' must be \"default\"", "llama3"});
  check_spoiled(set("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}), {"'type' must be \"default\"", "linear"});
  check_spoiled(set("rope_parameters", {{"rope_type", "yarn"}}), {"'rope_parameters'", "yarn"});
  check_spoiled(set("partial_rotary_factor", 0.5), {"'partial_rotary_factor' must be 1.0, but is 0.5"});
  check_spoiled(set("quantization_config", {{"bits", 4}}), {"'quantization_config' must be left out"});
  check_spoiled(set("hidden_size", "wide"), {"'hidden_size' is no whole number above 0, but is \"wide\""});
  check_spoiled(set("num_attention_heads", 0), {"'num_attention_heads' is no whole number above 0"});
  check_spoiled(set("rms_norm_eps", "small"), {"'rms_norm_eps' is no number"});
  check_spoiled(set("tie_word_embeddings", 1), {"'tie_word_embeddings' is neither true nor false"});
  check_spoiled([](HfFolder& f) { f.config.erase("vocab_size"); }, {"'vocab_size' is missing"});
  check_spoiled(set("vocab_size", 5'000'000), {"/hf/config.json", "'model.vocab' = 5000000 is out of range"});
  check_spoiled(set("num_key_value_heads", 4), {"'model.heads' = 6 must be a multiple of 'model.kv_heads' = 4"});
  check_spoiled([](HfFolder& f) { f.config = "text"; }, {"/hf/config.json", "is no JSON object"});
}

TEST_CASE("tensors that are missing, too many, or of another shape or dtype are named") {
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  check_spoiled([&](HfFolder& f) { f.tensors.erase(up); }, {"'/hf': lacks '" + up + "' of shape [27, 20]"});
  check_spoiled([&](HfFolder& f) { f.tensors.erase(up), f.tensors.erase("lm_head.weight"); },
                {"lacks 'lm_head.weight' of shape [51, 20], and 1 more"});
  check_spoiled(
      [&](HfFolder& f) {
        f.tensors["model.layers.1.mlp.up_proj.bias"] = {"F32", {27}, std::vector<std::byte>(108)};
      },
      {"has 'model.layers.1.mlp.up_proj.bias', which"});
  check_spoiled([&](HfFolder& f) { f.tensors["lm_head.weight"] = f.tensors["model.embed_tokens.weight"]; },
                {"has 'lm_head.weight', which"}, true);
  check_spoiled(
      [&](HfFolder& f) {
        f.tensors[up].shape = {20, 27};
      },
      {"'" + up + "' has shape [20, 27], and [27, 20] in the model of config.json"});
  check_spoiled(
      [&](HfFolder& f) {
        f.tensors[up] = {"I32", {27, 20}, f.tensors[up].bytes};
      },
      {"'" + up + "' is I32: only F32, BF16 and F16"});
  Draw draw(5);
  SimStorage storage;
  HfFolder old = HfFolder::random(draw, small_config(false), "F32", 4);
  // what early versions saved
  old.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {2}, std::vector<std::byte>(8)};
  old.write(storage, "/hf");
  must(import_to(storage, "/hf", "/ckpt"));
}

TEST_CASE("files that are missing, short, or not those of the index are named") {
  Draw draw(4);
  SimStorage storage;
  const HfFolder good = HfFolder::random(draw, small_config(false), "F32", 4);
  const auto refused = [&](const std::string& dir, const std::vector<std::string>& says, Code code = Code::invalid) {
    check_refused(import_to(storage, dir, "/ckpt").status(), says, code);
    CHECK(storage.list("/ckpt").status().code() == Code::not_found);
  };
  refused("/none", {"/none/config.json"}, Code::not_found);
  good.write(storage, "/bin");
  must(storage.remove("/bin/model.safetensors"));
  refused("/bin", {"'/bin' has neither model.safetensors nor model.safetensors.index.json", "save_pretrained"},
          Code::not_found);
  good.write(storage, "/short");
  storage.truncate("/short/model.safetensors", 5000);
  refused("/short", {"/short/model.safetensors"});
  good.write(storage, "/two", 2);
  must(storage.remove("/two/part-1.safetensors"));
  refused("/two", {"/two/part-1.safetensors"}, Code::not_found);
  const auto index = [&](const std::string& dir, const std::string& text) {
    good.write(storage, dir, 2);
    must(storage.remove(dir + "/model.safetensors.index.json"));
    HfFolder::write_text(storage, dir + "/model.safetensors.index.json", text);
  };
  index("/no-map", "[]");
  refused("/no-map", {"/no-map/model.safetensors.index.json", "weight_map"});
  index("/out", R"({"weight_map": {"lm_head.weight": "../etc/part-0.safetensors"}})");
  refused("/out", {"no file of this folder for 'lm_head.weight'"});
  index("/else", R"({"weight_map": {"lm_head.weight": "part-1.safetensors"}})");
  refused("/else", {"lists 'lm_head.weight' in part-1.safetensors, where it is not"});
  index("/few", R"({"weight_map": {"lm_head.weight": "part-0.safetensors"}})");
  refused("/few", {"does not list 'model.", "in part-0.safetensors"});
}

TEST_CASE(
    "an import does not touch a folder that has checkpoints; wherever the machine stops, it is there whole or can be "
    "made again") {
  Draw draw(3);
  const auto config = small_config(true, {"model.layers=1"});
  const HfFolder folder = HfFolder::random(draw, config, "F32", 4);
  bool done = false;
  std::int64_t stop = 0;
  for (; !done; ++stop) {
    SimStorage storage;
    folder.write(storage, "/hf");
    storage.stop_at(storage.operations() + stop);
    done = import_to(storage, "/hf", "/ckpt").ok();
    storage.crash(static_cast<std::uint64_t>(stop));
    const auto entries = must(checkpoint::Catalog(storage, "/ckpt").entries());
    const bool there = std::any_of(entries.begin(), entries.end(), [](const auto& e) { return e.committed; });
    CHECK((!done || there));
    const auto again = import_to(storage, "/hf", "/ckpt");
    if (there) check_refused(again.status(), {"'/ckpt' has checkpoints already"});
    else must(again.status());
    SerialParallel serial;
    CHECK(Read(storage, "/ckpt").reader.verify(serial).empty());
  }
  CHECK(stop > 20);  // operations of an import
}

TEST_CASE("an import that is interrupted, wherever, leaves nothing, or what was in its folder, and says that it was") {
  Draw draw(4);
  for (const bool there : {false, true}) {
    CAPTURE(there);
    SimStorage storage;
    HfFolder::random(draw, small_config(true, {"model.layers=1"}), "F32", 4).write(storage, "/hf");
    if (there) must(storage.make_dir("/ckpt"));
    int asked = 0;
    for (bool done = false; !done; ++asked) {
      int code = 0, left = asked;
      const GiveUp give_up = [&] { return left-- > 0 ? Status() : Status(Code::unavailable, "enough"); };
      const auto in = import_hf(storage, app().ops(), {.from = "/hf", .out = "/ckpt", .job = 77}, code, give_up);
      if (done = in.ok(); done) break;
      check_refused(in.status(), {"enough"}, Code::unavailable);
      CHECK(code == runtime::exit_interrupted);
      CHECK(must(storage.list("/")).size() == (there ? 2 : 1));
      if (there) CHECK(must(checkpoint::Catalog(storage, "/ckpt").entries()).empty());
    }
    CHECK(asked == 12);  // before each piece, and before the commit
    Read(storage, "/ckpt");
  }
}

TEST_CASE(
    "an import that fails at any operation of the disk, or is interrupted, leaves what was there: no folder, parents "
    "included; an empty parent; an empty folder; a claim as it was") {
  Draw draw(4);
  const std::vector<std::string> lasting = {"none", "parent", "folder", "claim"};
  for (const auto& there : lasting) {
    CAPTURE(there);
    SimStorage storage;
    HfFolder::random(draw, small_config(true, {"model.layers=1"}), "F32", 4).write(storage, "/hf");
    checkpoint::Catalog catalog(storage, "/a/b/ckpt");
    if (there == "parent") must(storage.make_dir("/a"));
    if (there == "folder") must(storage.make_dir(catalog.dir()));
    if (there == "claim") must(catalog.claim(5, 0));
    const std::string claim = catalog.path(checkpoint::claim_name);
    const auto before = there == "claim" ? must(read_file(storage, claim)) : std::vector<std::byte>();
    const auto check_as_before = [&] {
      CHECK(storage.list("/a").ok() == (there != "none"));
      CHECK(must(storage.list("/")).size() == (there == "none" ? 1 : 2));
      if (there == "none") return;
      CHECK(must(storage.list("/a")).size() == (there == "parent" ? 0 : 1));
      if (there == "parent") return;
      CHECK(must(storage.list(catalog.dir())).size() == (there == "claim" ? 1 : 0));
      if (there == "claim") CHECK(must(read_file(storage, claim)) == before);
    };
    bool done = false;
    const auto import = [&](const GiveUp& give_up) {
      int code = 0;
      done = import_hf(storage, app().ops(), {.from = "/hf", .out = catalog.dir(), .job = 77}, code, give_up).ok();
      storage.fail(0);  // is past: no later operation fails
      if (!done) check_as_before();
    };
    for (int asked = 0; asked < 12; ++asked) {
      CAPTURE(asked);
      int left = asked;
      import([&] { return left-- > 0 ? Status() : Status(Code::unavailable, "enough");
    });
    REQUIRE_FALSE(done);
  }
  std::int64_t operation = 0;
  for (; !done; ++operation) {
    CAPTURE(operation);
    storage.fail(storage.operations() + operation);
    import(never_give_up);
  }
  CHECK(operation > 40);  // operations of an import
  Read(storage, catalog.dir());
}
}

TEST_CASE("an import that another import of the same folder overtakes is refused, and what the other has made stays") {
  Draw draw(3);
  SimStorage disk;
  HfFolder::random(draw, small_config(true, {"model.layers=1"}), "F32", 4).write(disk, "/hf");
  Overtaken storage(disk, [&] { must(import_to(disk, "/hf", "/ckpt").status()); });
  check_refused(import_to(storage, "/hf", "/ckpt").status(), {"'/ckpt' has checkpoints already"});
  CHECK(Read(disk, "/ckpt").folder() == checkpoint::folder_name(0, 1));
}

TEST_CASE("an import that fails leaves the claim that another process wrote right before the import had the lock") {
  Draw draw(3);
  SimStorage disk;
  HfFolder::random(draw, small_config(true, {"model.layers=1"}), "F32", 4).write(disk, "/hf");
  checkpoint::Catalog catalog(disk, "/ckpt");
  const auto claim = [&] { return must(read_file(disk, catalog.path(checkpoint::claim_name))); };
  std::vector<std::byte> others;
  Overtaken storage(disk, [&] { must(catalog.claim(5, 0)), others = claim(); });
  int code = 0;
  const GiveUp give_up = [] { return Status(Code::unavailable, "enough"); };
  check_refused(import_hf(storage, app().ops(), {.from = "/hf", .out = "/ckpt", .job = 77}, code, give_up).status(),
                {"enough"}, Code::unavailable);
  CHECK(claim() == others);
}

TEST_CASE(
    "weights alone fix the model, but for dropout and a shorter sequence; a run's checkpoint fixes the order of its "
    "data too") {
  const auto saved = small_config(false);
  std::vector<std::string> notes;
  for (const auto* fine : {"schedule.batch=12", "schedule.lr=2", "run.seed=9", "eval.fraction=0.2", "model.seq=7",
                           "model.dropout=0", "data.fingerprint=\"x\""})
    CHECK_MESSAGE(lm::check_model(saved, small_config(false, {fine})).ok(), fine);
  check_refused(lm::check_model(saved, small_config(false, {"model.seq=14"})),
                {"'model.seq' was 13 and is 14", "no position beyond"});
  for (const auto* other : {"model.ffn=28", "model.rope_theta=299", "model.norm_eps=3e-6", "model.tied=true"})
    check_refused(lm::check_model(saved, small_config(false, {other})),
                  {std::string("'") + std::string(other).substr(0, 9), "another model"});
  for (const auto* data : {"schedule.batch=12", "run.seed=9", "eval.fraction=0.2", "model.seq=7"})
    check_refused(lm::check_resumable(saved, small_config(false, {data}), notes), {"other samples"});
  CHECK(notes.empty());
}
