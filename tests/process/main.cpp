// The test's own binary is the application: workers re-execute it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "devices/process/ignored_signals.h"
#include "tests/process/apps.h"

namespace {

/// Begins this program again where the process has begun with a signal ignored that ends a job (under nohup, or in the
/// background of a shell): tests send these signals. What ignored ones do is tested with processes that begin so.
void begin_without_ignored_signals(char** argv) {
  bool again = false;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (troupe::ignored_at_start(signal)) again = ::signal(signal, SIG_DFL) != SIG_ERR || again;
  if (again) ::execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* path = std::getenv(unserved_variable)) return unserved_main(path);
  test_app().serve_if_worker(argc, argv);
  while (std::getenv(waiting_variable)) ::pause();
  begin_without_ignored_signals(argv);
  return doctest::Context(argc, argv).run();
}
