#include "runtime/launch/last_words.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace troupe::runtime {

namespace {

constexpr const char* refused = "troupe: the system refused what the %s needs: %s (look at ulimit -a)";
constexpr const char* uncaught = "troupe: the %s is ended by an exception that no code catches: %s";

const char* ending = "process";
int ending_code = EXIT_FAILURE;

/// There may be no memory left: takes none.
[[noreturn]] void end_process(const char* format, const char* why) {
  char text[400];
  const int n = std::snprintf(text, sizeof text - 1, format, ending, why);
  std::size_t size = std::min(sizeof text - 2, static_cast<std::size_t>(std::max(0, n)));
  text[size++] = '\n';
  (void)!::write(STDERR_FILENO, text, size);
  ::_exit(ending_code);
}

}  // namespace

void end_by_exception() {
  if (!std::current_exception()) end_process(uncaught, "none is known");
  try {
    throw;
  } catch (const std::bad_alloc& e) {
    end_process(refused, e.what());
  } catch (const std::system_error& e) {
    end_process(refused, e.what());
  } catch (const std::exception& e) {
    end_process(uncaught, e.what());
  } catch (...) {
    end_process(uncaught, "its type is unknown");
  }
}

void end_with_words(const char* who, int code) {
  ending = who;
  ending_code = code;
  std::set_terminate(end_by_exception);
}

}  // namespace troupe::runtime
