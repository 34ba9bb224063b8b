// EndSignals within one another, and what they say. Their effects on a process: tests/process/job_test.cpp.
#include "devices/process/end_signals.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "devices/process/ignored_signals.h"

using namespace troupe;

TEST_CASE("the first signal is what has interrupted, however often it is asked") {
  EndSignals signals;
  CHECK(signals.interrupted().ok());
  ::raise(SIGTERM);
  for (int i = 0; i < 2; ++i) CHECK(signals.interrupted().message() == "interrupted by Terminated");
  CHECK(signals.interrupted().code() == Code::interrupted);
  ::raise(SIGINT);
  CHECK(signals.interrupted().message() == "interrupted by Terminated");
  CHECK_FALSE(signals.take().has_value());
}

TEST_CASE("a signal that an inner EndSignals has not taken is there for the outer one") {
  EndSignals outer;
  {
    const EndSignals inner;
    ::raise(SIGTERM);
  }
  CHECK(outer.take().value_or(0) == SIGTERM);
  {
    const EndSignals inner;
    ::raise(SIGTERM);
    CHECK(inner.take().value_or(0) == SIGTERM);
  }
  CHECK_FALSE(outer.take().has_value());
}

TEST_CASE("where no descriptor is left for them, signals keep the effect that they had") {
  if (ignored_at_start(SIGTERM)) return;  // then it is none that ends a process
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGTERM, SIG_DFL);
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    const EndSignals signals;
    if (signals.fd() < 0) ::raise(SIGTERM);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
}
