#include "apps/options/toml_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace troupe::lm {

namespace {

constexpr int parts_max = 16;

/// The size of the string in quotes that `text` begins with, quotes included; of all of `text` where it does not end.
std::size_t quoted_size(std::string_view text) {
  const char quote = text[0];
  const bool lines = text.size() > 2 && text[1] == quote && text[2] == quote;
  for (std::size_t i = lines ? 3 : 1; i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') ++i;
    else if (!lines && (text[i] == quote || text[i] == '\n')) return i + 1;
    else if (lines && text.substr(i).starts_with(std::string(3, quote))) return i + 3;
  }
  return text.size();
}

/// The size of the character of UTF-8 that `text` begins with; 0: it begins with none.
std::size_t character_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t n = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (n == 0 || n > text.size()) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // an overlong form, half of a pair of UTF-16, a number beyond the last
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
  return (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f) ? 0 : n;
}

}  // namespace

Status check_keys(std::string_view text, const std::string& name) {
  int parts = 1;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i += quoted_size(text.substr(i));
      continue;
    }
    if (c == '#') i = std::min(text.find('\n', i), text.size() - 1);
    else if (c == '.') ++parts;
    else if (c == '\n' || c == '=' || c == ',' || c == '{' || c == '[') parts = 1;
    if (parts > parts_max)
      return invalid(fmt::format("{}:{}: a key of more than {} parts: keys are written section.key", name,
                                 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), '\n'),
                                 parts_max));
    ++i;
  }
  return {};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t n = character_size(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

}  // namespace troupe::lm
