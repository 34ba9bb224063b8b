// Death tests: what a function says before a failed check ends its process (see devices/base/check.h).
#pragma once

#include <csignal>
#include <functional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

namespace troupe {

/// Runs `victim` in a child process. What it wrote to stderr before it died of SIGABRT; "survived" if it did not.
inline std::string last_words(const std::function<void()>& victim) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child < 0) return "no child";
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // doctest's handler would report
    ::dup2(ends[1], 2);
    victim();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string words;
  char chunk[256];
  for (ssize_t n; (n = ::read(ends[0], chunk, sizeof chunk)) > 0;) words.append(chunk, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? words : "survived";
}

}  // namespace troupe
