// A worker that SIGKILL does not end for its parent: the process of the test traces it.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

/// Forks a process that starts a worker and ends it while this process traces that worker. A process that is traced has
/// not ended for its parent until its tracer has waited for it: this process does so when the forked one has told all.
struct HeldWorker {
  pid_t worker = -1;
  std::string told;     ///< what the forked process has told behind the worker's pid
  std::string why_not;  ///< this process may not trace another; empty: it may

  /// `launching` runs in the forked process, without doctest: it starts a worker, tells the worker's pid_t, waits until
  /// the worker is traced (`asked` can be read), and tells what became of it.
  explicit HeldWorker(void (*launching)(int asked, int tell)) {
    int ask[2], answer[2];
    REQUIRE(::pipe2(ask, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(answer, O_CLOEXEC) == 0);
    const pid_t forked = ::fork();
    REQUIRE(forked >= 0);
    if (forked == 0) {
      ::close(ask[1]);
      launching(ask[0], answer[1]);
      ::_exit(0);
    }
    ::close(ask[0]);
    ::close(answer[1]);
    const bool started = ::read(answer[0], &worker, sizeof worker) == static_cast<ssize_t>(sizeof worker) && worker > 0;
    const bool traced = started && ::ptrace(PTRACE_SEIZE, worker, nullptr, nullptr) == 0;
    if (!traced) why_not = std::string("a process may not trace another here: ") + std::strerror(errno);
    if (traced && ::write(ask[1], "?", 1) == 1) {
      char chunk[512];
      pollfd until{answer[0], POLLIN, 0};
      while (::poll(&until, 1, 20'000) > 0) {
        const ssize_t n = ::read(answer[0], chunk, sizeof chunk);
        if (n <= 0) break;
        told.append(chunk, static_cast<std::size_t>(n));
      }
    }
    ::kill(forked, SIGKILL);
    ::waitpid(forked, nullptr, 0);  // the worker dies with it, if it has not
    if (traced) ::waitpid(worker, nullptr, __WALL);
    ::close(ask[1]);
    ::close(answer[0]);
    REQUIRE(started);
  }

  /// What the launcher says of it.
  std::string left() const {
    return "worker 0 (pid " + std::to_string(worker) + ") has not ended after SIGKILL and is left: " +
           "a system call that cannot be interrupted, or a debugger, holds it";
  }

  // For `launching`.
  static void tell(int fd, const void* bytes, std::size_t size) {
    if (::write(fd, bytes, size) != static_cast<ssize_t>(size)) ::_exit(1);
  }
  static void wait_until(int asked) {
    char word = 0;
    if (::read(asked, &word, 1) != 1) ::_exit(1);
  }
};
