#include "apps/recovery_options.h"

#include <fmt/format.h>

#include "apps/argument_forms.h"
#include "apps/job/guards.h"
#include "apps/options/recovery.h"
#include "runtime/place/guard_rule.h"

namespace troupe {

void recovery_options(CLI::App& command, lm::JobArguments& arguments) {
  command
      .add_option("--recovery", arguments.recovery,
                  "go on when a worker is lost: slots: from parameters and moments that lie in memory twice; copies:K: "
                  "from copies in host memory, taken every K steps; off: end (default: run.recovery of the "
                  "configuration)")
      ->check([](const std::string& text) {
        const auto recovery = lm::parse_recovery(text);
        return recovery.ok() ? std::string() : recovery.status().message();
      });
  command
      .add_option("--detect-budget", arguments.detect_budget_ms,
                  fmt::format("with --recovery: ms for which a worker may say nothing before it is taken for "
                              "hung, killed and started again (default: {})",
                              arguments.detect_budget_ms))
      ->check(whole_number(100, 600'000));
  command
      .add_option("--replace", arguments.replace,
                  "with --recovery: always: a new worker takes the place of one that is lost; never: the run goes "
                  "on without it, in another shape (default: always)")
      ->check(CLI::IsMember({"always", "never"}));
  command
      .add_option(
          "--guard-every", arguments.guard_every,
          fmt::format("with --recovery slots on several machines: K: state that one machine alone has is sent "
                      "to the next one so often that its loss repeats K steps at most ({} or more); auto: the "
                      "fewest that take 2 % of the time at most, by the plan; off: nothing is sent (default: {})",
                      runtime::guard_within_least, arguments.guard_every))
      ->check([](const std::string& text) { return lm::check_guard_every(text).message(); });
  command
      .add_option("--grace", arguments.grace_s,
                  fmt::format("with --recovery and checkpoints: seconds that the steps which have begun may take "
                              "after a signal; then the newest whole step is saved (default: {})",
                              arguments.grace_s))
      ->check(whole_number(0, 86'400));
  command
      .add_option("--spares", arguments.spares,
                  "with --replace never: workers that are started beside those of the mesh, and of which one takes the "
                  "place of a worker that is lost (default: 0)")
      ->check(whole_number(0, 1024));
  command
      .add_option(
          "--inject", arguments.inject,
          "a drill: ACTION@ACT[:before|:mid|:after][#N]/workerR does ACTION (SIGKILL, SIGSTOP, SIGSEGV, EXIT, HANG, "
          "DROP, SLOW, or CUT, whose /workerR-workerP names two) at the N-th ACT (forward, backward, weights, "
          "exchange, norm, commit, update, gather, snapshot, "
          "write, copy, digest, actor, enter, or an actor's name) of worker R (repeatable; default: none)")
      ->allow_extra_args(false);
}

void running_commands(CLI::App& cli, lm::RunningArguments& arguments, int (*&run)(const lm::RunningArguments&)) {
  const auto add = [&](const char* name, const char* what, int (*command)(const lm::RunningArguments&)) {
    auto* sub = cli.add_subcommand(name, what);
    sub->add_option("run", arguments.out, "its output folder, or with --token-file HOST:PORT, at which its agents join")
        ->required();
    sub->add_option("--token-file", arguments.token_file,
                    "file with the secret of a run on several machines (default: it runs on this machine)")
        ->check(not_empty("the name of a file"));
    sub->callback([&run, command] { run = command; });
    return sub;
  };
  add("ps", "Show what a run with --recovery does: its workers, its step, its incidents", lm::ps_command);
  add("scale", "Ask a run with --recovery to go on with another mesh, from its next step on", lm::scale_command)
      ->add_option("--mesh", arguments.mesh, "such as dp=2,pp=2; tp is the run's")
      ->required();
  auto* logs = add("logs", "Show the log of a run with --recovery, of its workers on all machines, too",
                   lm::logs_command);
  logs->add_option("--lines", arguments.lines, "the last so many lines (default: all that the run keeps, 256 KiB)")
      ->check(whole_number(1, 1'000'000));
  logs->add_flag("--follow", arguments.follows, "go on with what it logs until it ends (default: end)");
}

}  // namespace troupe
