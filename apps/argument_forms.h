// What the command accepts as arguments, and what it says of any other.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "apps/job/job.h"

namespace troupe {

/// A whole number, at least `at_least` and at most `at_most`.
CLI::Validator whole_number(std::int64_t at_least, std::int64_t at_most = std::numeric_limits<std::int64_t>::max());
/// A number above 0 and below 1e9.
CLI::Validator positive_number();
/// A number from 0 to below 1e9. `what` it is, with its unit: "milliseconds".
CLI::Validator not_negative(const std::string& what);
/// Any text but an empty one. `what` it is: "the name of a file".
CLI::Validator not_empty(const std::string& what);
/// Any text of one line, without control characters, but an empty one. `what` it is: "a name".
CLI::Validator one_line(const std::string& what);
/// "FIRST:COUNT", read into `window`, which outlives the validator.
CLI::Validator window_of_steps(TraceWindow& window);
/// Whether the command line has `--sample ""`, which the parser takes for `--sample` alone.
bool has_empty_sample(int argc, char** argv);
/// How many words of the command line the parser may see: up to the first option that ends with '=' ("--out="), to
/// which it would give the next word as its value.
int words_to_parse(int argc, char** argv);
/// Whether a word is an option that ends with '=', but for --sample=, of which has_empty_sample tells.
bool lacks_value(std::string_view word);
/// The argument that the parser takes for -h and more, such as "-hello"; null: there is none.
const char* text_taken_for_help(int argc, char** argv);
/// The words before the arguments of the command that the command line has named: "troupe ckpt ls". REQUIRES: `cli` has
/// parsed it, with or without an error.
std::string command_words(const CLI::App& cli);
/// What is wrong with a command line; of an unknown option or command also the known one that is near, if one is; of an
/// option without a value what it takes.
std::string describe(const CLI::App& cli, const CLI::ParseError& error);

}  // namespace troupe
