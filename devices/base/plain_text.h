// Text of other processes and other machines, as it may go to a terminal or into a log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

/// The longest line that plain_line() leaves whole.
inline constexpr std::size_t plain_line_bytes_max = 16 << 10;

/// `text` with each control character but tab and newline as an escape, "\x1b": what a terminal would obey is seen
/// instead. Control characters of two bytes (U+0080 to U+009F) are escaped too; all other bytes stay as they are.
std::string plain_text(std::string_view text);

/// The same of what is to be one line: newlines are escaped as well, and what is behind the first `bytes_max` bytes of
/// `line` is counted instead: "... (70 bytes more)".
std::string plain_line(std::string_view line, std::size_t bytes_max = plain_line_bytes_max);

}  // namespace troupe
