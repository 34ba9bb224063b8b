// The application under test: the MLP of tests/runtime/mlp.h with its actors, and some that take their time or fail.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "kernels/rules.h"
#include "runtime/agents/control_link.h"
#include "runtime/agents/launcher.h"
#include "runtime/launch/app.h"
#include "tests/runtime/mlp.h"

/// Never comes back from its act of step 1.
struct Stuck final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    while (call.step == 1) ::pause();
    return {};
  }
};

/// Fills its output with ones, and ends its worker in its act of the step of the attribute "step", whenever it comes.
struct Dying final : troupe::actors::UserActor {
  explicit Dying(const troupe::actors::UserActorInfo& info) : step(info.attrs.integer("step")) {}
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step == step) ::raise(SIGKILL);
    std::fill_n(call.out[0].as<float>(), call.out[0].size(), 1.0f);
    return {};
  }
  std::int64_t step;
};

/// Takes 0.3 s for each act.
struct Slow final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall&) override {
    ::usleep(300'000);
    return {};
  }
};

/// How many acts of Knocking this process has begun.
inline std::atomic<int> knocks{0};
struct Knocking final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall&) override {
    ++knocks;
    return {};
  }
};

/// Waits in its act of the step of the attribute "step" for two acts of Knocking in its process, and then for so many
/// seconds, unless its worker leaves the run.
struct Awaiting final : troupe::actors::UserActor {
  explicit Awaiting(const troupe::actors::UserActorInfo& info)
      : step(info.attrs.integer("step")), seconds(info.attrs.integer("seconds")) {}
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step != step) return {};
    while (knocks < 2 && !call.par->stopping()) ::usleep(10'000);
    for (std::int64_t i = 0; i < 100 * seconds && !call.par->stopping(); ++i) ::usleep(10'000);
    return {};
  }
  std::int64_t step, seconds;
};

/// Fills its output with the attribute "value" in the first step, with zeros later.
struct Outlier final : troupe::actors::UserActor {
  explicit Outlier(const troupe::actors::UserActorInfo& info) : value(static_cast<float>(info.attrs.real("value"))) {}
  troupe::Status act(troupe::actors::UserCall& call) override {
    std::fill_n(call.out[0].as<float>(), call.out[0].size(), call.step == 0 ? value : 0);
    return {};
  }
  float value;
};

/// Fills its output with ones before the step of the attribute "step", and with what is no number from then on.
struct Diverging final : troupe::actors::UserActor {
  explicit Diverging(const troupe::actors::UserActorInfo& info) : step(info.attrs.integer("step")) {}
  troupe::Status act(troupe::actors::UserCall& call) override {
    std::fill_n(call.out[0].as<float>(), call.out[0].size(), call.step < step ? 1.0f : std::nanf(""));
    return {};
  }
  std::int64_t step;
};

/// Does nothing but fail in its act of step 3, with what is said of a lost peer.
struct Torn final : troupe::actors::UserActor {
  explicit Torn(const troupe::actors::UserActorInfo& info) : damaged(info.attrs.real("damaged") > 0) {}
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step < 3) return {};
    return {damaged ? troupe::Code::damaged : troupe::Code::unavailable, "nothing more comes"};
  }
  bool damaged;
};

/// Starts a process in its act of step 1 and ends its worker, which that process outlives by seconds.
struct Orphaning final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step == 1 && std::system("sleep 8 >/dev/null 2>&1 &") == 0) ::raise(SIGKILL);
    return {};
  }
};

/// Sends, in its act of step 1, a message of another generation and one of none on its worker's control link. Their
/// bytes are no message.
struct Late final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step != 1) return {};
    const std::vector<std::byte> garbage(100, std::byte{0xff});
    troupe::runtime::ControlLink link(::dup(troupe::runtime::link_of_this_worker().value_or(-1)));
    TROUPE_TRY(link.send({1, 1}, garbage));
    return link.send({}, garbage);
  }
};

/// Forks a process in its act of step 1, which executes no program, and ends its worker; that process outlives it by
/// seconds.
struct Forking final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step != 1) return {};
    const pid_t child = ::fork();
    if (child > 0) ::raise(SIGKILL);
    if (child == 0) {
      ::close(STDOUT_FILENO);  // the worker's log
      ::close(STDERR_FILENO);
      ::sleep(30);
      ::_exit(0);
    }
    return {};
  }
};

inline const troupe::runtime::App& test_app();

/// Runs a job in its act, or in a process that it forks there (attribute "forks"), and fails with that job's error.
struct Nesting final : troupe::actors::UserActor {
  explicit Nesting(const troupe::actors::UserActorInfo& info) : forks(info.attrs.integer("forks") != 0) {}
  troupe::Status act(troupe::actors::UserCall&) override {
    if (!forks) return test_app().run(troupe::runtime::Plan{}, {}).status;
    int ends[2];
    if (::pipe(ends) != 0) return troupe::invalid("there is no pipe");
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string why = test_app().run(troupe::runtime::Plan{}, {}).status.message();
      const auto told = ::write(ends[1], why.data(), why.size());
      ::_exit(told == static_cast<ssize_t>(why.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    std::string why;
    char chunk[512];
    for (ssize_t n = 0; (n = ::read(ends[0], chunk, sizeof chunk)) > 0;) why.append(chunk, static_cast<std::size_t>(n));
    ::close(ends[0]);
    ::waitpid(child, nullptr, 0);
    return troupe::invalid(why);
  }
  bool forks;
};

/// The signals of this process that UCX's library handles, and those of a crash that have not their usual effect behind
/// a line of this program's own (name_act_of_crash; in a sanitized build that is a report); empty: none. `crashes`:
/// look at the latter, too.
inline std::string strange_signals(bool crashes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  crashes = false;
#endif
  std::string text;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_DFL) continue;
    Dl_info found{};
    const bool known = ::dladdr(reinterpret_cast<void*>(action.sa_handler), &found) != 0 && found.dli_fname;
    const std::string library = known ? found.dli_fname : "";  // SIG_IGN is in none
    const bool crash = signal == SIGILL || signal == SIGBUS || signal == SIGFPE || signal == SIGSEGV;
    std::error_code no_link;
    const bool own = (action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 &&
                     library == std::filesystem::read_symlink("/proc/self/exe", no_link);
    if (library.find("libucs") != std::string::npos || (crash && crashes && !own))
      text += "signal " + std::to_string(signal) + " is handled by '" + library + "'; ";
  }
  return text;
}

/// Those that UCX's library has taken before main.
inline const std::string taken_at_load = strange_signals(false);

/// Fails where its worker has strange signals; reports that it has looked.
struct SignalLooker final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    call.report("looked", {1.0});
    const std::string strange = strange_signals(true);
    return strange.empty() ? troupe::Status{} : troupe::invalid(strange);
  }
};

/// y = x, 0.8 s later.
inline troupe::kernels::OpDef nap() {
  troupe::kernels::OpDef op{.name = "nap", .inputs = 1, .outputs = 1, .infer = troupe::kernels::one_shape("nap", 1)};
  op.cpu = [](const troupe::kernels::Call& call) {
    ::usleep(800'000);
    std::copy_n(call.in[0].as<float>(), call.in[0].size(), call.out[0].as<float>());
  };
  return op;
}

inline const troupe::runtime::App& test_app() {
  static const troupe::runtime::App app = [] {
    troupe::runtime::App a;
    for (const auto& [kind, make] : mlp::actor_set()) a.actor(kind, make);
    a.actor<Stuck>("stuck");
    a.actor<Slow>("slow");
    a.actor<Knocking>("knocking");
    a.actor<Awaiting>("awaiting");
    a.actor<Dying>("dying");
    a.actor<Outlier>("outlier");
    a.actor<Diverging>("diverging");
    a.actor<Torn>("torn");
    a.actor<Orphaning>("orphaning");
    a.actor<Late>("late");
    a.actor<Forking>("forking");
    a.actor<Nesting>("nesting");
    a.actor<SignalLooker>("signals");
    (void)a.op(nap()).ok();
    return a;
  }();
  return app;
}

/// In the environment of a process: its main does not call serve_if_worker, it is unserved_main(value).
inline constexpr const char* unserved_variable = "TROUPE_TEST_UNSERVED";
/// With it: that main does not print the job's error, either, and returns 0.
inline constexpr const char* silent_variable = "TROUPE_TEST_SILENT";

/// In the environment of a process: its main calls serve_if_worker and then waits for a signal that ends it.
inline constexpr const char* waiting_variable = "TROUPE_TEST_WAITING";

/// A main that forgets serve_if_worker: adds its process id to the file `path` as a line, then runs a job of one
/// worker. The fifth of these processes waits for its end instead.
inline int unserved_main(const std::string& path) {
  std::ofstream(path, std::ios::app) << std::to_string(::getpid()) + "\n";
  std::ifstream in(path);
  int processes = 0;
  for (std::string line; std::getline(in, line);) ++processes;
  while (processes > 4) ::pause();
  const auto plan = mlp::plan(test_app().ops(), {}, {1});
  troupe::runtime::JobOptions job;
  if (!std::getenv(silent_variable)) return test_app().run_main(plan, job);
  if (plan.ok()) (void)test_app().run(*plan, job).status.ok();
  return 0;
}
