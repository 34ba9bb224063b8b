// The way to the standard streams: a reader that does not read holds no signal up, and one that has gone is noticed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string_view>

namespace troupe::report {

/// Why something that was to be printed on stdout is lost.
enum class Lost : std::uint8_t {
  nothing,
  by_error,     ///< of a write, as to a full disk
  reader_gone,  ///< as of a pipe whose other end is closed
  by_signal,    ///< the reader did not read, and a signal came that ends the process
};

/// Writes `text` to `to`, behind what `to` has buffered. Waits for a reader that does not read; but once a signal has
/// come that an EndSignals keeps (has_come), only half a second, for all that is still to be written: the rest is lost.
/// REQUIRES: SIGPIPE does not end the process.
void put(std::FILE* to, std::string_view text);
/// To stdout.
inline void print(std::string_view text) { put(stdout, text); }
/// What has become of all that was to be printed on stdout: why the first part was lost.
Lost lost_output();
/// Whether what is printed on stdout has no reader any more.
inline bool reader_gone() { return lost_output() == Lost::reader_gone; }
/// The log's lines go to stderr, by put().
void log_to_stderr();

}  // namespace troupe::report
