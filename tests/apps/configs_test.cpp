#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "apps/options/config.h"
#include "apps/options/mesh_spec.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

const std::filesystem::path k_configs = TROUPE_SOURCE_DIR "/apps/configs";

LmConfig load(const std::string& name) {
  const auto config = load_config((k_configs / (name + ".toml")).string());
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return *config;
}

}  // namespace

TEST_CASE("every config in apps/configs loads, fits its own mesh and says its size truly") {
  const std::map<std::string, double> millions = {{"quickstart", 0.87}, {"shakespeare-char", 0.87}, {"lm-tiny", 0.18},
                                                  {"lm-10m", 10.8},     {"lm-100m", 99.5},          {"gpt-1b", 1420},
                                                  {"gpt-175b", 175200}};
  for (const auto& file : std::filesystem::directory_iterator(k_configs)) {
    const auto name = file.path().stem().string();
    CAPTURE(name);
    const auto config = load(name);
    const auto mesh = mesh_of(config.mesh);
    REQUIRE(mesh.ok());
    CHECK(check_mesh(*mesh, config).message() == "");
    CHECK(mesh_warning(*mesh, config) == "");
    REQUIRE(millions.count(name) == 1);
    CHECK(static_cast<double>(parameter_count(config.model)) / 1e6 == doctest::Approx(millions.at(name)).epsilon(0.01));
  }
}

TEST_CASE("shakespeare-char is nanoGPT's size: 4 layers, 4 heads, 128 wide, 64 x 12, 2000 steps, at most 0.9M") {
  const auto config = load("shakespeare-char");
  CHECK(config.model.layers == 4);
  CHECK(config.model.heads == 4);
  CHECK(config.model.dim == 128);
  CHECK(config.model.seq == 64);
  CHECK(config.schedule.batch == 12);
  CHECK(config.schedule.steps == 2000);
  CHECK(parameter_count(config.model) <= 900'000);
}

TEST_CASE("lm-tiny runs on every mesh of the numeric tests") {
  const auto config = load("lm-tiny");
  for (const char* text :
       {"dp=1", "dp=2", "dp=3", "dp=4", "pp=2", "pp=3", "pp=4", "dp=2,pp=2", "dp=2/1,pp=2", "tp=3"}) {
    CAPTURE(text);
    const auto mesh = parse_mesh(text);
    REQUIRE(mesh.ok());
    CHECK(check_mesh(*mesh, config).ok());
  }
}
