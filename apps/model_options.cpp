#include "apps/model_options.h"

#include <cstdint>
#include <string>

#include "apps/argument_forms.h"

namespace troupe {

namespace {

/// What both commands take.
void model_options(CLI::App& command, std::string& from, std::int64_t& threads, std::string& mesh, std::string& costs,
                   const std::string& axes) {
  command
      .add_option("--from", from,
                  "the checkpoint: its folder, or a folder of checkpoints or a run's output folder, of which the "
                  "newest is taken")
      ->required();
  command.add_option("--threads", threads, "threads of each worker's compute stream (default: run.threads)")
      ->check(whole_number(1));
  command.add_option("--mesh", mesh, axes + " (default: one worker)")->check(not_empty("a mesh, such as " + axes));
  command
      .add_option("--costs", costs,
                  "costs that decide layouts along tp, as of train (default: those of this machine, if there are)")
      ->check(troupe::not_empty("the name of a file"));
}

}  // namespace

void sample_options(CLI::App& command, lm::SampleArguments& a) {
  model_options(command, a.from, a.threads, a.mesh, a.costs, "pp=2,tp=2");
  command.add_option("text", a.text, "text to go on from (default: sample.prompt of the checkpoint's configuration)");
  command
      .add_option("--tokens", a.tokens,
                  "how many tokens to generate (default: sample.tokens of the checkpoint's configuration)")
      ->check(whole_number(1));
  command
      .add_option("--temperature", a.temperature,
                  "randomness, 0: always the most likely token (default: sample.temperature)")
      ->check(not_negative("a number"));
  command.add_option("--seed", a.seed, "another seed draws other tokens (default: run.seed)")->check(whole_number(0));
}

void eval_options(CLI::App& command, lm::EvalArguments& a) {
  model_options(command, a.from, a.threads, a.mesh, a.costs, "dp=2,pp=2,tp=2");
  command.add_option("--step", a.step, "of the checkpoint to take (default: the newest)")->check(whole_number(0));
  command
      .add_option("--data", a.data,
                  "a text, plain, .gz or .dz: all of it is evaluated (default: what the run that saved the checkpoint "
                  "evaluates of its own)")
      ->check(not_empty("the name of a file"));
  command.add_flag("--held-out", a.held_out,
                   "--data is the text of that run: evaluate what the run evaluates of it, not all");
  command
      .add_option("--batches", a.batches,
                  "evaluate the first so many microbatches (default: all of --data; of what is held out eval.batches)")
      ->check(whole_number(1));
  command.add_flag("--json", a.json, "print a JSON object, its numbers with all digits");
}

}  // namespace troupe
