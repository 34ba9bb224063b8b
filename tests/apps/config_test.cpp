#include "apps/options/config.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "apps/options/suggest.h"
#include "apps/options/toml_text.h"
#include "tests/apps/contains.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;
using troupe::test::contains;

namespace {

const std::string k_small = R"([model]
layers = 2
heads = 4
dim = 32
ffn = 64
seq = 16
[schedule]
steps = 100
lr = 1e-3
batch = 24
microbatch = 2
)";

Expected<LmConfig> with(const std::vector<std::string>& overrides) {
  return parse_config(k_small, "x.toml", overrides);
}

std::string error_of(const std::vector<std::string>& overrides) { return with(overrides).status().message(); }
std::string error_of_text(const std::string& text) { return parse_config(text, "x.toml").status().message(); }

}  // namespace

TEST_CASE("what is left out gets its default, also where it follows from other keys") {
  const auto config = with({});
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  CHECK(config->model.vocab == 256);
  CHECK(config->model.kv_heads == 4);
  CHECK(config->model.head_dim == 8);
  CHECK(config->schedule.min_lr == doctest::Approx(1e-4));
  CHECK(config->schedule.microbatches() == 12);
  CHECK(config->run.threads == 1);
  CHECK(tokens_per_step(*config) == 24 * 16);
}

TEST_CASE("an unknown key names file, line and the nearest known key") {
  CHECK(error_of_text(k_small + "stpes = 3\n") ==
        "x.toml:12: unknown key 'schedule.stpes'; did you mean 'schedule.steps'?");
  CHECK(error_of_text("[model]\nsteps = 3\n") == "x.toml:2: unknown key 'model.steps'; did you mean 'schedule.steps'?");
  CHECK(error_of_text("layers = 3\n") == "x.toml:1: unknown key 'layers'; did you mean 'model.layers'?");
  CHECK(error_of_text("\n[modle]\nlayers = 3\n") == "x.toml:2: unknown section 'modle'; did you mean 'model'?");
  CHECK(error_of_text("model = 3\n") == "x.toml:1: 'model' must be a section, written [model]");
  CHECK(error_of({"schedule.stpes=3"}) ==
        "--set schedule.stpes=3: unknown key 'schedule.stpes'; did you mean 'schedule.steps'?");
}

TEST_CASE("a wrong type names line, key, what was expected and what was found") {
  CHECK(error_of_text("[model]\n\nlayers = \"four\"\n") ==
        "x.toml:3: 'model.layers' must be an integer in 1..1024 (transformer layers), but is the string \"four\"");
  CHECK(error_of_text("[model]\nlayers = 2.5\n") ==
        "x.toml:2: 'model.layers' must be an integer in 1..1024 (transformer layers), but is the number 2.5");
  CHECK(contains(error_of_text("[model]\ntied = 1\n"), "must be true or false"));
  CHECK(contains(error_of_text("[model]\nlayers = [1]\n"), "but is an array"));
  CHECK(contains(error_of_text("[model.layers]\nx = 1\n"), "but is a table"));
}

TEST_CASE("schedule.ahead is a number, as an integer or a text, or auto; beside an order of passes it is 0 or auto") {
  const auto ahead = [](const std::vector<std::string>& overrides) {
    const auto config = with(overrides);
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    return config->schedule.microbatches_ahead();
  };
  CHECK(ahead({}) == 0);
  CHECK(ahead({"schedule.ahead=3"}) == 3);
  CHECK(ahead({"schedule.ahead=\"3\""}) == 3);
  CHECK(ahead({"schedule.ahead=auto"}) == -1);
  CHECK(ahead({"schedule.ahead=auto", "schedule.pipeline=zero-bubble"}) == -1);
  CHECK(
      contains(error_of({"schedule.ahead=-1"}), "'schedule.ahead' = \"-1\" is neither \"auto\" nor an integer in 0.."));
  CHECK(contains(error_of({"schedule.ahead=1.5"}), "'schedule.ahead' must be a string or an integer"));
  CHECK(contains(error_of({"schedule.ahead=2x"}), "'schedule.ahead' = \"2x\" is neither"));
  CHECK(contains(error_of({"schedule.ahead=1", "schedule.pipeline=zero-bubble"}),
                 "zero-bubble has an order of passes that leaves no choice"));
}

TEST_CASE("a value out of range names key, value and the legal range") {
  CHECK(
      error_of({"model.layers=0"}) ==
      "--set model.layers=0: 'model.layers' = 0 is out of range: expected an integer in 1..1024 (transformer layers)");
  CHECK(contains(error_of({"model.dropout=1.0"}), "expected a number in [0, 1)"));
  CHECK(contains(error_of({"model.norm_eps=0"}), "expected a number in (0, 1]"));
  CHECK(contains(error_of({"optimizer.clip=nan"}), "'optimizer.clip' = nan is out of range"));
  CHECK(contains(error_of({"schedule.pipeline=\"gpipe\""}), "expected \"1f1b\", \"interleaved:V\""));
  CHECK(contains(error_of({"run.seed=-1"}), "'run.seed' = -1 is out of range"));
}

TEST_CASE(
    "schedule.lanes of old configurations is ignored, whatever its value, with a warning that says where it stands") {
  const std::string why = "schedule.lanes has no meaning any more and is ignored, gradients are exact sums: remove it";
  std::vector<std::string> warnings;
  const auto config = parse_config(k_small + "lanes = 99\n", "x.toml", {"schedule.lanes=few"}, &warnings);
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  CHECK(*config == *with({}));
  CHECK(warnings == std::vector<std::string>{"x.toml:12: " + why, "--set schedule.lanes=few: " + why});
  CHECK(parse_config(k_small + "lanes = 99\n", "x.toml").ok());  // the caller need not hear it
  CHECK_FALSE(contains(to_toml(*config), "lanes"));
  test::TempDir dir;
  warnings.clear();
  CHECK(load_config(test::write_text(dir / "x.toml", k_small + "lanes = 2\n"), {}, &warnings).ok());
  CHECK(warnings == std::vector<std::string>{dir / "x.toml" + ":12: " + why});
  warnings.clear();
  CHECK(parse_config(k_small, "x.toml", {}, &warnings).ok());
  CHECK(warnings.empty());
  CHECK_FALSE(contains(error_of({"schedule.lane=2"}), "lanes"));  // and is not suggested
}

TEST_CASE("missing keys are named all at once, with what they mean") {
  const auto text =
      error_of_text("[model]\nlayers = 2\nheads = 2\ndim = 8\nffn = 8\nseq = 8\n[schedule]\nlr = 1\nbatch = 1\n");
  CHECK(contains(text, "x.toml: missing 'schedule.steps' (horizon of the learning rate"));
  CHECK(contains(text, "'schedule.microbatch'"));
  CHECK_FALSE(contains(text, "schedule.lr"));
}

TEST_CASE("text that is not TOML names line and column; a file that is no file says so") {
  CHECK(contains(error_of_text("[model]\nlayers = = 2\n"), "x.toml:2:10: not valid TOML"));
  test::TempDir dir;
  CHECK(load_config(dir / "no.toml").status().code() == Code::not_found);
  CHECK(contains(load_config(dir / "no.toml").status().message(), "does not exist"));
  CHECK(contains(load_config(dir.path()).status().message(), "is a directory"));
  CHECK(contains(load_config(test::write_text(dir / "empty.toml", "")).status().message(), "missing 'model.layers'"));
  const auto loaded = load_config(test::write_text(dir / "x.toml", k_small));
  REQUIRE(loaded.ok());
  CHECK(*loaded == *with({}));
}

TEST_CASE("overrides are typed, later ones win, and bare text will do for strings") {
  const auto config = with({"schedule.lr=2", "model.tied=true", "schedule.lr = 0.5", "sample.prompt=ROMEO: go",
                            "mesh.dp=2", "schedule.steps=1_000"});
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  CHECK(config->schedule.lr == 0.5);
  CHECK(config->model.tied);
  CHECK(config->sample.prompt == "ROMEO: go");
  CHECK(config->mesh.dp == "2");
  CHECK(config->schedule.steps == 1000);
  CHECK(contains(error_of({"schedule.lr"}), "expected section.key=value"));
  CHECK(contains(error_of({"=3"}), "expected section.key=value"));
  CHECK(contains(error_of({"schedule.steps="}), "but is the string \"\""));
  CHECK(contains(error_of({"schedule.steps=many"}), "but is the string \"many\""));
  CHECK(contains(error_of({"schedule.steps=1\n[evil]"}), "--set schedule.steps=1"));
}

TEST_CASE("keys that do not fit together are refused with their numbers") {
  CHECK(error_of({"schedule.microbatch=5"}) ==
        "--set schedule.microbatch=5: 'schedule.batch' = 24 must be a multiple of 'schedule.microbatch' = 5");
  CHECK(contains(error_of({"model.kv_heads=3"}), "'model.heads' = 4 must be a multiple of 'model.kv_heads' = 3"));
  CHECK(contains(error_of({"model.heads=5"}), "'model.dim' = 32 must be a multiple of 'model.heads' = 5"));
  CHECK(contains(error_of({"model.heads=32"}), "expected an integer in 2..1024 (width of one head)"));
  CHECK(contains(error_of({"model.head_dim=9"}), "must be even"));
  CHECK(contains(error_of({"schedule.warmup=101"}), "'schedule.warmup' = 101 exceeds 'schedule.steps' = 100"));
  CHECK(contains(error_of({"schedule.min_lr=1"}), "exceeds 'schedule.lr'"));
  CHECK(contains(error_of({"eval.every=5", "eval.fraction=0"}), "leaves no text"));
  CHECK(contains(error_of({"sample.prompt=\"\""}), "'sample.prompt' is empty"));
  CHECK(contains(error_of({"mesh.dp=x"}), "'mesh.dp'"));
  CHECK(contains(error_of({"mesh.dp=2/1"}), "[mesh]: dp=2/1 names 2 stages, but pp=1"));
}

TEST_CASE("a number that has another meaning as a float32 is refused, with the bound; one at the bound is taken") {
  const auto refused = [](const std::string& key, const std::string& value, const std::string& expected) {
    const auto text = error_of({key + "=" + value});
    CHECK_MESSAGE(contains(text, "'" + key + "' = " + value + " is "), text);
    CHECK_MESSAGE(contains(text, "expected " + expected), text);
  };
  for (const std::string key : {"optimizer.beta1", "optimizer.beta2", "model.dropout"}) {
    refused(key, "0.99999999999", "at most 0.9999999");
    CHECK(error_of({key + "=0.9999999"}) == "");
  }
  refused("model.dropout", "0.99999995", "at most 0.9999999");  // no random number of 24 bits is as large
  for (const std::string key : {"model.norm_eps", "optimizer.eps"}) {
    refused(key, "1e-300", "at least 1.2e-38");
    refused(key, "1e-38", "at least 1.2e-38");
    CHECK(error_of({key + "=1.2e-38"}) == "");
  }
  for (const std::string key : {"schedule.min_lr", "optimizer.weight_decay", "optimizer.clip"}) {
    refused(key, "1e-300", "0, or at least 1.2e-38");
    refused(key, "1e-38", "0, or at least 1.2e-38");
    CHECK(error_of({key + "=1.2e-38"}) == "");
    CHECK(error_of({key + "=0"}) == "");
  }
  const auto lr = error_of({"schedule.lr=1e-300", "schedule.min_lr=0"});
  CHECK_MESSAGE(contains(lr, "'schedule.lr' = 1e-300 is below the least normal float32: expected 0, or"), lr);
  CHECK(error_of({"schedule.lr=1.2e-38", "schedule.min_lr=0"}) == "");
  CHECK(error_of({"schedule.lr=0"}) == "");
  // Divided by 2 for two layers: the least one of the two bounds is not enough.
  refused("model.init_std", "2e-38", "at least 2.4e-38");
  CHECK(error_of({"model.init_std=2.4e-38"}) == "");
}

TEST_CASE("the effective config survives TOML and is complete in JSON") {
  auto config = with({"optimizer.beta2=0.987654321", "sample.prompt=\"a \\\"b\\\"\\n\\u007f\\u00fc\"", "mesh.dp=2/1",
                      "mesh.pp=2", "run.seed=9007199254740991"});
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  const auto again = parse_config(to_toml(*config), "again.toml");
  REQUIRE_MESSAGE(again.ok(), again.status().message());
  CHECK(*again == *config);

  const auto json = nlohmann::json::parse(to_json(*config));
  CHECK(json["model"]["kv_heads"] == 4);
  CHECK(json["optimizer"]["beta2"] == 0.987654321);
  CHECK(json["mesh"]["dp"] == "2/1");
  CHECK(json["run"]["seed"] == 9007199254740991);
  CHECK(json["sample"]["prompt"] == "a \"b\"\n\x7f\u00fc");
}

TEST_CASE("edit distance counts swaps of neighbours as one") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "abc") == 0);
  CHECK(edit_distance("stpes", "steps") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("a known name is suggested where few edits lead to it, and none where the typed name is another word") {
  const std::vector<std::string> keys = {"model.layers", "schedule.steps", "schedule.lr", "optimizer.weight_decay"};
  CHECK(nearest("schedule.stpes", keys) == "schedule.steps");
  CHECK(nearest("model.layer", keys) == "model.layers");
  CHECK(nearest("steps", keys) == "schedule.steps");
  CHECK(nearest("schedule.rl", keys) == "schedule.lr");
  CHECK(nearest("optimizer.wait_decays", keys) == "optimizer.weight_decay");  // 4 edits of 12 letters
  CHECK(nearest("optimizer.decay", keys) == "");
  CHECK(nearest("schedule.warmth", keys) == "");  // the section is no part of the likeness
  CHECK(nearest("schedule.xy", keys) == "");      // 2 edits, which replace the whole of it
  CHECK(nearest("x", {}) == "");
  CHECK(nearest("frobnicate", {"train", "plan", "sim"}) == "");
  CHECK(did_you_mean("trian", {"train", "plan"}) == "; did you mean 'train'?");
  CHECK(did_you_mean("frobnicate", {"train", "plan"}) == "");
  CHECK(error_of({"model.frobnicate=3"}) == "--set model.frobnicate=3: unknown key 'model.frobnicate'");
}

TEST_CASE("parameter_count is the sum over the tensors of a Llama") {
  auto config = with({"model.kv_heads=2"});
  REQUIRE(config.ok());
  // q 32x32, o 32x32, k and v 16x32, gate, up, down 64x32, two norms; final norm; embedding and head 256x32.
  const std::int64_t layer = 2 * 1024 + 2 * 512 + 3 * 2048 + 64;
  CHECK(parameter_count(config->model) == 2 * layer + 32 + 2 * 8192);
  config->model.tied = true;
  CHECK(parameter_count(config->model) == 2 * layer + 32 + 8192);
}

TEST_CASE(
    "a key or a section of very many parts is refused by its line, and dots in texts and comments are not parts") {
  std::string parts = "a";
  for (int i = 0; i < 60'000; ++i) parts += ".a";
  for (const auto& text : {parts + " = 1", "[" + parts + "]\n", "[[" + parts + "]]\n",
                           "[model]\nx = {" + parts + " = 1}", "[model]\nx = '''\n'''\n" + parts + " = 1"}) {
    const auto status = parse_config(text, "a.toml").status();
    CHECK_MESSAGE(contains(status.message(), "a key of more than 16 parts"), status.message());
    CHECK(status.message().starts_with("a.toml:"));
  }
  const std::string dots(1000, '.');
  for (const auto& text : {"# " + dots + "\n", "[sample]\nprompt = \"\\\"" + dots + "\"\n",
                           "[sample]\nprompt = '''a\n" + dots + "'''\n"}) {
    const auto status = parse_config(text, "a.toml").status();
    CHECK_MESSAGE(contains(status.message(), "missing"), status.message());  // it was read
  }
  const auto set = parse_config("", "a.toml", {"model.dim={" + parts + "=1}"}).status();
  CHECK_MESSAGE(contains(set.message(), "--set model.dim:1: a key of more than 16 parts"), set.message());
}

TEST_CASE("a value that is not UTF-8 is refused: a checkpoint would keep another one") {
  for (const char* text : {"caf\xe9", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    const auto status = parse_config("", "a.toml", {std::string("sample.prompt=") + text}).status();
    CHECK_MESSAGE(contains(status.message(), "--set sample.prompt: the value is not UTF-8"), status.message());
  }
  for (const char* text : {"caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x90\xb4", "\xf4\x8f\xbf\xbf", ""})
    CHECK(is_utf8(text));
}
