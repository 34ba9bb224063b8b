#include "apps/options/recovery.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace troupe::lm {

Expected<Recovery> parse_recovery(const std::string& text) {
  constexpr std::string_view copies = "copies:";
  constexpr std::int64_t steps_max = 1'000'000'000;
  if (text == "off") return Recovery{};
  if (text == "slots") return Recovery{true, 0};
  std::int64_t steps = 0;
  const char* const end = text.data() + text.size();
  if (text.starts_with(copies)) {
    const auto [at, error] = std::from_chars(text.data() + copies.size(), end, steps);
    const bool plain = text.size() > copies.size() && text[copies.size()] != '0';  // one number, one way to write it
    if (plain && error == std::errc() && at == end && steps >= 1 && steps <= steps_max) return Recovery{false, steps};
  }
  return invalid(fmt::format("\"{}\" is no recovery: expected \"off\", \"slots\", or \"copies:K\" with K from 1 to {}",
                             text, steps_max));
}

}  // namespace troupe::lm
