#include "runtime/launch/last_words.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "actors/running_act.h"

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

/// One line, in memory that is there.
struct Line {
  char text[600];
  std::size_t size = 0;
  template <class... T>
  void add(const char* format, T... values) {
    const int n = std::snprintf(text + size, sizeof text - 1 - size, format, values...);
    size = std::min(sizeof text - 2, size + static_cast<std::size_t>(std::max(0, n)));
  }
  void add(const actors::RunningAct& act) {
    add("actor '%s'", act.actor);
    if (act.op) add(", op '%s'", act.op);
    add(", step %lld", static_cast<long long>(act.step));
    if (act.microbatch >= 0) add(", microbatch %d", static_cast<int>(act.microbatch));
  }
};

void on_crash(int signal) {
  Line line;
  line.add("troupe: %s", ::sigdescr_np(signal));
  if (const auto* own = actors::RunningAct::own) {
    line.add(" in an act of ");
    line.add(*own);
  } else {
    const char* before = " while these act: ";
    for (const auto& place : actors::RunningAct::all)
      if (const auto* act = place.load()) line.add("%s", std::exchange(before, "; ")), line.add(*act);
  }
  line.text[line.size++] = '\n';
  (void)!::write(STDERR_FILENO, line.text, line.size);
  ::raise(signal);  // SA_RESETHAND: with its usual effect
}

}  // namespace

void name_act_of_crash() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    struct sigaction before {
    }, now{};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    now.sa_handler = on_crash;
    now.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    ::sigaction(signal, &now, nullptr);
  }
}

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
