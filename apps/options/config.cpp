// TOML -> LmConfig.
#include "apps/options/config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/options/config_fields.h"
#include "apps/options/suggest.h"
#include "apps/options/toml_text.h"

namespace troupe::lm {
namespace {

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> names;
    LmConfig any;
    each_field(any, [&](const Key& key, auto&) { names.push_back(key.name); });
    return names;
  }();
  return keys;
}

/// "apps/configs/x.toml:12"
std::string at(const std::string& file, const toml::source_region& where) {
  return where.begin.line ? fmt::format("{}:{}", file, where.begin.line) : file;
}

std::string describe(const toml::node& node) {
  if (auto s = node.as_string()) return fmt::format("the string \"{}\"", s->get());
  if (auto i = node.as_integer()) return fmt::format("the integer {}", i->get());
  if (auto f = node.as_floating_point()) return fmt::format("the number {}", f->get());
  if (auto b = node.as_boolean()) return b->get() ? "true" : "false";
  if (node.is_table()) return "a table";
  if (node.is_array()) return "an array";
  return "a date or time";
}

template <class T>
bool convert(const toml::node& node, const Key& key, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (auto b = node.as_boolean()) return value = b->get(), true;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    if (auto i = node.as_integer()) return value = i->get(), true;
  } else if constexpr (std::is_same_v<T, double>) {
    if (auto f = node.as_floating_point()) return value = f->get(), true;
    if (auto i = node.as_integer()) return value = static_cast<double>(i->get()), true;
  } else {
    if (auto s = node.as_string()) return value = s->get(), true;
    if (auto i = node.as_integer(); i && (key.flags & k_number_too)) return value = fmt::to_string(i->get()), true;
  }
  return false;
}

Status unknown(const std::string& where, const char* what, const std::string& name,
               const std::vector<std::string>& known) {
  return invalid(fmt::format("{}: unknown {} '{}'{}", where, what, name, did_you_mean(name, known)));
}

/// The warning for a key that old configurations have and that means nothing any more; null for any other key.
const char* why_ignored(const std::string& name) {
  if (name == "schedule.lanes")
    return "schedule.lanes has no meaning any more and is ignored, gradients are exact sums: remove it";
  return nullptr;
}

/// The key of "section.key=value".
std::string key_of(const std::string& override) {
  std::string name = override.substr(0, override.find('='));
  name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
  return name;
}

/// A config that is being read, and the keys that have been set: other keys get defaults or are missing.
struct Builder {
  LmConfig config;
  std::vector<std::string> seen, warnings;

  bool has(const char* name) const { return std::find(seen.begin(), seen.end(), name) != seen.end(); }

  Status set(const std::string& where, const std::string& name, const toml::node& node) {
    if (const char* why = why_ignored(name)) {
      warnings.push_back(fmt::format("{}: {}", where, why));
      return {};
    }
    Status status;
    bool known = false;
    each_field(config, [&](const Key& key, auto& value) {
      using T = std::decay_t<decltype(value)>;
      if (name != key.name) return;
      known = true;
      seen.push_back(name);
      if (!convert(node, key, value))
        status = invalid(fmt::format("{}: '{}' must be {} ({}), but is {}", where, name, expectation<T>(key),
                                     key.meaning, describe(node)));
      else status = check_range(key, value).in(where);
    });
    return known ? status : unknown(where, "key", name, known_keys());
  }

  Status set_all(const std::string& file, const toml::table& root) {
    std::vector<std::string> sections;
    for (const auto& key : known_keys()) {
      auto section = key.substr(0, key.find('.'));
      if (sections.empty() || sections.back() != section) sections.push_back(std::move(section));
    }
    for (const auto& [section_key, node] : root) {
      const std::string section(section_key.str());
      const auto where = at(file, section_key.source());
      const bool known = std::find(sections.begin(), sections.end(), section) != sections.end();
      const toml::table* table = node.as_table();
      if (!table && known)
        return invalid(fmt::format("{}: '{}' must be a section, written [{}]", where, section, section));
      if (!table) return unknown(where, "key", section, known_keys());
      if (!known) return unknown(where, "section", section, sections);
      for (const auto& [key, value] : *table)
        TROUPE_TRY(set(at(file, key.source()), section + "." + std::string(key.str()), value));
    }
    return {};
  }

  /// "section.key=value"
  Status set_override(const std::string& text) {
    const std::string where = "--set " + text;
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      return invalid(fmt::format("{}: expected section.key=value", where));
    const std::string name = key_of(text);
    const std::string value = text.substr(equals + 1);
    if (!is_utf8(value))  // a checkpoint and run.json, which keep it, are UTF-8
      return invalid(fmt::format("--set {}: the value is not UTF-8 text: write it in UTF-8", name));
    TROUPE_TRY(check_keys(value, "--set " + name));
    try {
      const toml::table table = toml::parse("v = " + value);
      if (table.size() == 1) return set(where, name, *table.get("v"));
    } catch (const toml::parse_error&) {
      // Not TOML: taken as bare text below, which only keys that hold a string accept.
    }
    return set(where, name, toml::value<std::string>(value));
  }

  /// Sets the defaults that follow from other keys. Error: keys that are missing.
  Status complete() {
    std::string missing;
    each_field(config, [&](const Key& key, auto& value) {
      using T = std::decay_t<decltype(value)>;
      if ((key.flags & k_required) && !has(key.name))
        missing += fmt::format("{}'{}' ({}: {})", missing.empty() ? "" : ", ", key.name, key.meaning,
                               expectation<T>(key));
    });
    if (!missing.empty()) return invalid("missing " + missing);

    auto& m = config.model;
    if (!has("model.kv_heads")) m.kv_heads = m.heads;
    if (!has("model.head_dim")) {
      if (m.dim % m.heads != 0)
        return invalid(fmt::format(
            "'model.dim' = {} must be a multiple of 'model.heads' = {} (or set 'model.head_dim')", m.dim, m.heads));
      m.head_dim = m.dim / m.heads;
    }
    auto& s = config.schedule;
    if (!has("schedule.min_lr")) s.min_lr = s.lr / 10;
    return {};
  }
};

/// Who is to blame for a configuration that is not legal because of `wrong`: the arguments "--set KEY=VALUE" whose keys
/// it names, or, where the file alone is legal, all of them; else the file, `name`.
std::string blamed(const Status& wrong, const Builder& file, const std::string& name,
                   const std::vector<std::string>& overrides) {
  std::string named, all;
  for (const auto& text : overrides) {
    const std::string set = (all.empty() ? "--set " : ", --set ") + text;
    all += set;
    if (wrong.message().find("'" + key_of(text) + "'") != std::string::npos)
      named += named.empty() ? "--set " + text : ", --set " + text;
  }
  if (!named.empty()) return named;
  Builder alone = file;
  return !all.empty() && alone.complete().ok() && validate(alone.config).ok() ? all : name;
}

constexpr std::size_t config_bytes_max = 1 << 20;

Expected<std::string> read_file(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found)
    return Status(Code::not_found, fmt::format("config '{}' does not exist", path));
  if (kind == std::filesystem::file_type::directory)
    return invalid(fmt::format("config '{}' is a directory, not a TOML file", path));
  // A pipe, as of <(...), has a writer by now; a named one without a writer must not be waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return Status(Code::io, fmt::format("cannot read config '{}': {}", path, std::strerror(errno)));
  ::fcntl(fd, F_SETFL, 0);
  std::string text(config_bytes_max + 1, '\0');
  std::size_t size = 0;
  ssize_t n = 1;
  while (size < text.size() && n != 0) {
    n = ::read(fd, text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    size += static_cast<std::size_t>(n);
  }
  const int why = errno;
  ::close(fd);
  if (n < 0) return Status(Code::io, fmt::format("cannot read config '{}': {}", path, std::strerror(why)));
  if (size > config_bytes_max)
    return invalid(fmt::format("config '{}' has more than {} bytes: name a TOML file", path, config_bytes_max));
  if (size == 0 && kind == std::filesystem::file_type::fifo)
    return invalid(fmt::format("config '{}' is a pipe that no process writes to: name a TOML file", path));
  text.resize(size);
  return text;
}

}  // namespace

Expected<LmConfig> parse_config(std::string_view text, const std::string& name,
                                const std::vector<std::string>& overrides, std::vector<std::string>* warnings) {
  Builder builder;
  TROUPE_TRY(check_keys(text, name));
  try {
    TROUPE_TRY(builder.set_all(name, toml::parse(text)));
  } catch (const toml::parse_error& error) {
    return invalid(fmt::format("{}:{}:{}: not valid TOML: {}", name, error.source().begin.line,
                               error.source().begin.column, error.description()));
  }
  const Builder file = builder;
  for (const auto& override : overrides) TROUPE_TRY(builder.set_override(override));
  Status legal = builder.complete();
  if (legal.ok()) legal = validate(builder.config);
  if (!legal.ok()) return legal.in(blamed(legal, file, name, overrides));
  if (warnings) warnings->insert(warnings->end(), builder.warnings.begin(), builder.warnings.end());
  return builder.config;
}

Expected<LmConfig> parse_saved_config(std::string_view text, const std::string& name,
                                      const std::vector<std::string>& overrides, std::vector<std::string>* warnings) {
  if (text.empty())
    return invalid(name + " is empty: an application of its own has saved the checkpoint, not troupe train");
  return parse_config(text, name, overrides, warnings);
}

Expected<LmConfig> load_config(const std::string& path, const std::vector<std::string>& overrides,
                               std::vector<std::string>* warnings) {
  TROUPE_ASSIGN(const std::string text, read_file(path));
  return parse_config(text, path, overrides, warnings);
}

}  // namespace troupe::lm
