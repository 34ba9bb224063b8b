#include "apps/recovery_options.h"

#include <fmt/format.h>

#include "apps/argument_forms.h"

namespace troupe {

void recovery_options(CLI::App& command, lm::JobArguments& arguments) {
  command
      .add_option("--recovery", arguments.recovery,
                  "slots: go on when a worker is lost; off: end (default: run.recovery of the configuration)")
      ->check(CLI::IsMember({"slots", "off"}));
  command
      .add_option("--detect-budget", arguments.detect_budget_ms,
                  fmt::format("with --recovery slots: ms for which a worker may say nothing before it is taken for "
                              "hung, killed and started again (default: {})",
                              arguments.detect_budget_ms))
      ->check(whole_number(100, 600'000));
  command
      .add_option(
          "--replace", arguments.replace,
          "with --recovery slots: always: a new worker takes the place of one that is lost; never: the run goes "
          "on without it, in another shape (default: always)")
      ->check(CLI::IsMember({"always", "never"}));
  command
      .add_option(
          "--inject", arguments.inject,
          "a drill: ACTION@ACT[:before|:mid|:after][#N]/workerR does ACTION (SIGKILL, SIGSTOP, SIGSEGV, EXIT, HANG, "
          "DROP) at the N-th ACT (forward, backward, weights, exchange, norm, commit, update, gather, snapshot, "
          "write, digest, actor, enter, or an actor's name) of worker R (repeatable; default: none)")
      ->allow_extra_args(false);
}

}  // namespace troupe
