// The log of a process: lines on stderr, all of one form, of one level and those above it.
//
//   troupe: warning: checkpoint of step 40 failed (1 in a row): ...
//   worker 3: debug: connects to 3 peers
//
// Control characters but tab and newline are escaped (plain_text.h). Errors that end a command are no log lines: they
// are told once, with the exit code. A line that is below the level costs a comparison; a text that takes work to make
// is made behind logs(). Thread-safe, except where said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"

namespace troupe {

enum class LogLevel : std::uint8_t { trace, debug, info, warn, error, off };

/// "trace", "debug", "info", "warn", "error" or "off". Error: names them.
Expected<LogLevel> parse_log_level(std::string_view text);

/// The name that parse_log_level reads.
std::string_view log_level_name(LogLevel level);

/// Lines below `level` are not written; `off`: none is. At the start: info.
void set_log_level(LogLevel level);
LogLevel log_level();
inline bool logs(LogLevel level) { return level >= log_level(); }
/// Who writes; at the start: "troupe". Not thread-safe.
void set_log_name(std::string name);
/// Lines go to `sink`, whole, with their newline, one after the other, instead of to stderr; null: to stderr again.
/// REQUIRES: `sink` does not log.
void set_log_sink(std::function<void(std::string_view line)> sink);

void log_trace(std::string_view text);
void log_debug(std::string_view text);
void log_info(std::string_view text);
void log_warn(std::string_view text);
void log_error(std::string_view text);

/// Keeps the last lines that were written, each cut at plain_line_bytes_max, of `bytes_most` bytes in all, for
/// kept_log(). At the start: none.
void keep_log(std::size_t bytes_most);
struct KeptLog {
  std::int64_t first = 0;          ///< the number of the first of `lines`, of all that were written since keep_log()
  std::int64_t end = 0;            ///< how many those are
  std::vector<std::string> lines;  ///< without their newlines
};
/// The lines that are kept from number `from` on (below 0: the last -from), of `bytes_most` bytes at most, newlines
/// counted: the first ones.
KeptLog kept_log(std::int64_t from, std::size_t bytes_most);

/// Writes what the process `who` ("worker 3") has put out: a line of its log at the line's own level, any other (of a
/// library, say) at level info. It stays one line, of plain_line_bytes_max bytes at most.
void pass_log_line(std::string_view who, std::string_view line);

}  // namespace troupe
