// docs/command.md tells every key of the configuration: the table is exactly what config_fields.h says.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/options/config_fields.h"

using namespace troupe::lm;

namespace {

/// Defaults that follow from other keys (config_test.cpp checks that they do).
const std::map<std::string, std::string> derived = {{"model.kv_heads", "`model.heads`"},
                                                    {"model.head_dim", "`model.dim` / `model.heads`"},
                                                    {"schedule.min_lr", "`schedule.lr` / 10"}};

template <class T>
std::string row(const Key& key, const T& value) {
  const auto known = derived.find(key.name);
  const std::string usual = key.flags & k_required   ? "required"
                            : known != derived.end() ? known->second
                                                     : "`" + nlohmann::json(value).dump() + "`";
  return "| `" + std::string(key.name) + "` | " + key.meaning + " | " + usual + " |";
}

/// The rows of the table below a heading.
std::vector<std::string> rows(const std::string& heading) {
  std::vector<std::string> found;
  std::ifstream in(TROUPE_SOURCE_DIR "/docs/command.md");
  bool below = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) below = line == "## " + heading;
    if (below && line.starts_with("| `")) found.push_back(line);
  }
  return found;
}

}  // namespace

TEST_CASE("docs/command.md has every configuration key, with its meaning and its default, and no other") {
  std::vector<std::string> expected;
  const LmConfig defaults;
  each_field(defaults, [&](const Key& key, const auto& value) { expected.push_back(row(key, value)); });
  const auto told = rows("Configuration keys");
  for (const auto& line : expected)
    CHECK_MESSAGE(std::count(told.begin(), told.end(), line) == 1, "is not there: ", line);
  for (const auto& line : told)
    CHECK_MESSAGE(std::count(expected.begin(), expected.end(), line) == 1, "is not so: ", line);
}
