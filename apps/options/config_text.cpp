// LmConfig -> JSON and TOML, both from the one list of keys.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/options/config_fields.h"

namespace troupe::lm {
namespace {

template <class Config>
nlohmann::ordered_json json_of(const Config& config) {
  nlohmann::ordered_json out;
  each_field(config, [&](const Key& key, const auto& value) {
    const std::string name = key.name;
    const auto dot = name.find('.');
    out[name.substr(0, dot)][name.substr(dot + 1)] = value;
  });
  return out;
}

/// JSON escapes are TOML escapes; TOML also forbids a raw DEL.
std::string value_text(const nlohmann::ordered_json& value) {
  std::string out;
  for (char c : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
    if (c == '\x7f') out += "\\u007f";
    else out += c;
  return out;
}

}  // namespace

std::string to_json(const LmConfig& config) {
  return json_of(config).dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_toml(const LmConfig& config) {
  const auto sections = json_of(config);
  std::string out;
  for (const auto& [section, keys] : sections.items()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const auto& [key, value] : keys.items()) out += fmt::format("{} = {}\n", key, value_text(value));
  }
  return out;
}

}  // namespace troupe::lm
