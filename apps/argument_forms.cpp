#include "apps/argument_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "apps/options/suggest.h"

namespace troupe {

CLI::Validator whole_number(std::int64_t at_least, std::int64_t at_most) {
  return CLI::Validator(
      [at_least, at_most](std::string& text) {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = (error == std::errc() || error == std::errc::result_out_of_range) &&
                            end == text.data() + text.size();
        if (number && error == std::errc() && value >= at_least && value <= at_most) return std::string();
        if (number && text[0] != '-' && (error != std::errc() || value > at_most))
          return fmt::format("expected a whole number of at most {}, not {}", at_most, text);
        return fmt::format("expected a whole number of at least {}, not '{}'", at_least, text);
      },
      "");
}

CLI::Validator positive_number() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool ok = CLI::detail::lexical_cast(text, value) && value > 0 && value < 1e9;
        return ok ? std::string() : "expected a number above 0 and below 1e9, not '" + text + "'";
      },
      "");
}

CLI::Validator not_negative(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) {
        double value = 0;
        const bool ok = CLI::detail::lexical_cast(text, value) && value >= 0 && value < 1e9;
        return ok ? std::string() : "expected " + what + ", at least 0 and below 1e9, not '" + text + "'";
      },
      "");
}

CLI::Validator not_empty(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) { return text.empty() ? "expected " + what + ", not an empty text" : std::string(); },
      "");
}

CLI::Validator one_line(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) {
        const auto control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
        if (text.empty()) return "expected " + what + ", not an empty text";
        return std::any_of(text.begin(), text.end(), control) ? "expected " + what + " without control characters"
                                                              : std::string();
      },
      "");
}

CLI::Validator window_of_steps(TraceWindow& window) {
  return CLI::Validator(
      [&window](std::string& text) {
        const auto colon = std::min(text.find(':'), text.size());
        const bool ok = CLI::detail::lexical_cast(text.substr(0, colon), window.first) && window.first >= 0 &&
                        colon < text.size() && CLI::detail::lexical_cast(text.substr(colon + 1), window.steps) &&
                        window.steps > 0;
        return ok ? std::string() : "expected steps as FIRST:COUNT, such as 0:5, not '" + text + "'";
      },
      "");
}

bool has_empty_sample(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--sample=" ||
        (std::string_view(argv[i]) == "--sample" && i + 1 < argc && *argv[i + 1] == 0))
      return true;
  return false;
}

bool lacks_value(std::string_view word) { return word.starts_with("--") && word.ends_with('=') && word != "--sample="; }

int words_to_parse(int argc, char** argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i)
    if (const std::string_view word = argv[i]; word.starts_with("--") && word.find('=') == word.size() - 1)
      return i + 1;
  return argc;
}

const char* text_taken_for_help(int argc, char** argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i)
    if (std::string_view(argv[i]).starts_with("-h") && argv[i][2] != 0) return argv[i];
  return nullptr;
}

namespace {

/// The innermost command that the command line has named.
const CLI::App& named(const CLI::App& cli) {
  const CLI::App* at = &cli;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

/// What is wrong with an option that is given too often, or has no value; empty: another error.
std::string describe_count(const CLI::App& at, const CLI::ParseError& error) {
  if (!dynamic_cast<const CLI::ArgumentMismatch*>(&error)) return {};
  const std::string words = error.what(), name = words.substr(0, words.find(':'));
  const CLI::Option* option = at.get_option_no_throw(name);
  if (!option) return {};
  if (std::ssize(option->results()) > option->get_items_expected_max())
    return fmt::format("{} is given {} times: expected it once", name, option->results().size());
  return fmt::format("{} has no value; it takes {}: {}", name, option->get_type_name(), option->get_description());
}

}  // namespace

std::string command_words(const CLI::App& cli) {
  std::string words;
  for (const CLI::App* at = &named(cli); at; at = at->get_parent())
    words = at->get_name() + (words.empty() ? "" : " ") + words;
  return words;
}

std::string describe(const CLI::App& cli, const CLI::ParseError& error) {
  const CLI::App& at = named(cli);
  for (const auto& word : at.remaining()) {
    std::vector<std::string> known;
    if (word[0] == '-') {
      for (const auto* option : at.get_options())
        for (const auto& name : option->get_lnames()) known.push_back(name);
      const auto typed = word.substr(0, word.find('='));
      const auto best = lm::nearest(typed.substr(std::min(typed.find_first_not_of('-'), typed.size())), known);
      return "unknown option '" + word + "'" + (best.empty() ? "" : "; did you mean '--" + best + "'?");
    }
    const auto commands = at.get_subcommands(nullptr);
    if (commands.empty()) return "unexpected argument '" + word + "'";
    for (const auto* sub : commands) known.push_back(sub->get_name());
    return "unknown command '" + word + "'" + lm::did_you_mean(word, known);
  }
  const std::string count = describe_count(at, error);
  return count.empty() ? error.what() : count;
}

}  // namespace troupe
