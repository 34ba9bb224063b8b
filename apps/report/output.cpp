#include "apps/report/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "devices/base/log.h"
#include "devices/process/end_signals.h"

namespace troupe::report {

namespace {

constexpr int look_ms = 20;  ///< between looks for a signal, while a reader does not read
std::atomic<int> patience_ms = 500;
std::atomic<Lost> lost = Lost::nothing;

/// Waits until `fd` takes something, or can take nothing any more. Returns false where a signal has ended the wait.
bool wait_until_writable(int fd) {
  for (;;) {
    pollfd out{fd, POLLOUT, 0};
    const int n = ::poll(&out, 1, look_ms);
    if (n > 0) return true;
    if (EndSignals::has_come() && (patience_ms -= look_ms) < 0) return false;
  }
}

/// Writes to a descriptor; returns why not all was written.
Lost write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    if (!wait_until_writable(fd)) return Lost::by_signal;
    // A pipe that takes anything takes so much without waiting; a terminal may wait.
    const ssize_t n = ::write(fd, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return errno == EPIPE ? Lost::reader_gone : Lost::by_error;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return Lost::nothing;
}

}  // namespace

void put(std::FILE* to, std::string_view text) {
  std::fflush(to);
  const Lost now = write_all(fileno(to), text);
  Lost before = Lost::nothing;
  if (to == stdout) lost.compare_exchange_strong(before, now);
}

Lost lost_output() { return lost; }

void log_to_stderr() {
  set_log_sink([](std::string_view line) { put(stderr, line); });
}

}  // namespace troupe::report
