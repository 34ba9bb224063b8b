// troupe: the command. Reads its arguments, hands over to apps/job/job.h.
#include <CLI/CLI.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "apps/argument_forms.h"
#include "apps/calibrate/calibrate.h"
#include "apps/calibrate/link_times.h"
#include "apps/ckpt/ckpt.h"
#include "apps/ckpt/hf_commands.h"
#include "apps/job/guards.h"
#include "apps/job/job.h"
#include "apps/lm/model.h"
#include "apps/machine_options.h"
#include "apps/model_options.h"
#include "apps/recovery_options.h"
#include "apps/report/output.h"
#include "devices/base/log.h"
#include "devices/base/storage.h"
#include "runtime/launch/last_words.h"
#if defined(TROUPE_ON_GPUS)
#include "runtime/accelerators/cuda.h"
#elif defined(TROUPE_ON_FIBERS)
#include "runtime/accelerators/fibers.h"
#endif

using troupe::lm::JobArguments;

namespace {

/// Gives every command `--log-level`; sets the log's level as it is read.
void add_log_level(CLI::App& cli, bool& given) {
  const auto commands = cli.get_subcommands(nullptr);
  for (auto* command : commands) add_log_level(*command, given);
  if (!commands.empty()) return;
  cli.add_option_function<std::string>(
         "--log-level",
         [&given](const std::string& text) {
           const auto level = troupe::parse_log_level(text);
           if (!level.ok()) throw CLI::ValidationError("--log-level", level.status().message());
           troupe::set_log_level(*level);
           given = true;
         },
         "lines on stderr, the workers' too: trace, debug, info, warn, error, or off (default: info; with "
         "train --quiet warn)")
      ->type_name("LEVEL");
}

/// Adds the arguments that train, plan and sim share; returns the option of the configuration's path.
CLI::Option* common(CLI::App& command, JobArguments& a) {
  auto* config =
      command.add_option("config", a.config_path, "configuration, such as apps/configs/quickstart.toml")->required();
  command
      .add_option("--mesh", a.mesh, "dp=2,tp=2,pp=2; a dp width per stage: dp=2/1,pp=2 (default: the configuration's)")
      ->check(troupe::not_empty("a mesh, such as dp=2,pp=2"));
  command
      .add_option("--zero", a.zero,
                  "ZeRO stage over dp: 1 divides the optimizer's state, 2 reduced gradients too, 3 parameters too "
                  "(default: the configuration's)")
      ->check(troupe::whole_number(0));
  command
      .add_option(
          "--costs", a.costs,
          "costs of kernels and links, as troupe calibrate wrote them (default: those of this machine, if there are)")
      ->check(troupe::not_empty("the name of a file"));
  command
      .add_option("--throttle", a.throttle,
                  "slower links: latency=50us,bandwidth=100MB/s; of one link: 0-1:bandwidth=... (repeatable; default: "
                  "as they are)")
      ->allow_extra_args(false);
  command
      .add_option("--paced", a.paced,
                  "kernels sleep their predicted time, times SCALE, and compute nothing: for experiments with "
                  "schedules (default: kernels compute)")
      ->check(troupe::positive_number())
      ->type_name("SCALE");
  command.add_option("--set", a.overrides, "section.key=value, instead of what the configuration says (repeatable)")
      ->allow_extra_args(false);
  return config;
}

/// Adds the options of `train` that are about checkpoints; returns the option --resume.
CLI::Option* checkpoint_options(CLI::App& train, JobArguments& a) {
  train
      .add_option("--checkpoint-every", a.checkpoint_every,
                  "save a checkpoint every so many steps, and at the end (0: none; default: the configuration's, or "
                  "what the run did that goes on)")
      ->check(troupe::whole_number(0));
  train
      .add_option("--checkpoint-dir", a.checkpoint_dir,
                  "folder of checkpoints (default: checkpoints in the output folder)")
      ->check(troupe::not_empty("the name of a folder"));
  train.add_option("--keep", a.keep, "how many checkpoints stay (default: the configuration's)")
      ->check(troupe::whole_number(1));
  return train
      .add_option("--resume", a.resume,
                  "go on from a checkpoint: its folder, a folder of checkpoints, or a run's output folder (default: "
                  "latest, in --checkpoint-dir); auto: latest, or from the beginning where there is none; memory: with "
                  "--nodes, go on with the run in --out whose process is "
                  "lost, from what its agents have kept, else from its newest checkpoint")
      ->expected(0, 1)
      ->type_name("[DIR|latest|auto|memory]");
}

/// Adds `troupe ckpt ...` and returns it; parsing the command line sets `run` to the command that was named.
CLI::App& add_ckpt(CLI::App& cli, troupe::ckpt::Arguments& a, int (*&run)(const troupe::ckpt::Arguments&)) {
  using namespace troupe::ckpt;
  auto* ckpt = cli.add_subcommand("ckpt", "Look at checkpoints, verify, compare and remove them; export and import");
  ckpt->require_subcommand(1);
  const char* const one =
      "a checkpoint's folder, or a folder of checkpoints or a run's output folder (the newest is meant)";
  const auto add = [&](const char* name, const char* what, int (*command)(const Arguments&), const char* dir) {
    auto* sub = ckpt->add_subcommand(name, what);
    sub->add_option("dir", a.dir, dir)->required();
    sub->callback([&run, command] { run = command; });
    return sub;
  };
  add("ls", "List the checkpoints of a folder", ls_command,
      "a folder of checkpoints or a run's output folder, or one checkpoint's folder");
  add("show", "Print a manifest as JSON, or one tensor of it with its extents", show_command, one)
      ->add_option("tensor", a.tensor, "a tensor's name");
  add("verify", "Read everything and check every block", verify_command, one);
  add("diff", "Compare two checkpoints: tensors, updates, exponents", diff_command, one)
      ->add_option("other", a.other, "the second one, named in the same way")
      ->required();
  auto* prune = add("prune", "Remove old checkpoints of a folder", prune_command,
                    "a folder of checkpoints or a run's output folder");
  prune->add_option("--keep", a.retention.keep, "the newest so many stay (default: 2)")->check(troupe::whole_number(1));
  prune->add_option("--keep-every", a.retention.every, "and those of steps that are multiples of K (default: none)")
      ->check(troupe::whole_number(1))
      ->type_name("K");
  return *ckpt;
}

struct HfCommands {
  troupe::ckpt::ExportArguments to;
  troupe::ckpt::ImportArguments from;
  CLI::App *exports = nullptr, *imports = nullptr;
};

/// `troupe ckpt export` and `import`.
void add_hf(CLI::App& ckpt, HfCommands& h) {
  h.exports = ckpt.add_subcommand("export", "Write a checkpoint's parameters as another program reads them");
  h.exports
      ->add_option("dir", h.to.from,
                   "a checkpoint's folder, or a folder of checkpoints or a run's output folder (the newest is meant)")
      ->required();
  h.exports->add_option("--format", "hf: config.json and safetensors, for Hugging Face's LlamaForCausalLM")
      ->required()
      ->check(CLI::IsMember({"hf"}));
  h.exports->add_option("--out", h.to.out, "folder to write; must not exist")
      ->required()
      ->check(troupe::not_empty("the name of a folder"));
  h.exports
      ->add_option("--file-bytes", h.to.file_bytes,
                   "largest file of tensors, where no tensor is larger (default: 5 GB)")
      ->check(troupe::whole_number(1));
  h.imports = ckpt.add_subcommand("import", "Make a checkpoint of what Hugging Face's transformers saved of a Llama");
  h.imports
      ->add_option("dir", h.from.from,
                   "folder with config.json and model.safetensors, or with several of these and their index")
      ->required();
  h.imports->add_option("--out", h.from.out, "folder of checkpoints to write; may have none yet")
      ->required()
      ->check(troupe::not_empty("the name of a folder"));
  h.imports->add_option("--config", h.from.config,
                        "configuration of everything but the model (default: a short run at a low rate)");
}

/// A standard stream that the caller has closed: else the first file that is opened would get its number, and what is
/// printed.
void keep_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open(fd == 0 ? "/dev/null" : "/dev/full", O_RDWR) != fd)
      std::abort();
}

/// A reader that has gone (`| head -1`) is an error of the call that writes. A handler that does nothing, because a
/// process that executes another program passes on what it ignores: what a worker starts has the usual effect.
void outlive_readers() {
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) ::signal(SIGPIPE, [](int) {});
}

/// A command whose output is lost has failed.
int end_output(int code) {
  using troupe::report::Lost;
  const Lost lost = troupe::report::lost_output();
  if (code != troupe::runtime::exit_ok || lost == Lost::nothing) return code;
  const auto say = [](const std::string& why, int ends_with) {
    return troupe::lm::say(troupe::invalid(why + ": what was to be printed is lost"), ends_with);
  };
  if (lost == Lost::reader_gone)
    return say(troupe::runtime::reader_gone_error().message(), troupe::runtime::exit_reader_gone);
  if (lost == Lost::by_signal) return say("interrupted by a signal", troupe::runtime::exit_interrupted);
  return say("cannot write to the standard output", troupe::runtime::exit_output);
}

/// Reads the command line and does what it says; returns the exit code.
int run(const troupe::runtime::App& app, int argc, char** argv) {
  JobArguments a;
  CLI::App cli("Troupe trains language models as graphs of actors.", "troupe");
  cli.require_subcommand(1);
  cli.set_version_flag("--version", TROUPE_VERSION);
  auto* train = cli.add_subcommand(
      "train", "Train a language model, one worker process per place, on this machine or on several");
  common(*train, a)->required(false);
  auto* resume = checkpoint_options(*train, a);
  train->add_option("--data", a.data, "training text: plain, .gz or .dz (no default)");
  train->add_option("--threads", a.threads, "threads of each worker's compute stream (default: the configuration's)")
      ->check(troupe::whole_number(1));
  train
      ->add_option("--steps", a.steps,
                   "stop after so many steps (default: schedule.steps, the learning rate's horizon in any case)")
      ->check(troupe::whole_number(0));
  train->add_option("--out", a.out, "output folder (default: runs/ and the configuration's name)")
      ->check(troupe::not_empty("the name of a folder"));
  bool traced = false;
  train->add_flag("--trace", traced, "write trace.json for ui.perfetto.dev, of the first five steps");
  std::string trace_text;
  train->add_option("--trace-steps", trace_text, "the same, of COUNT steps from FIRST on (default: 0:5)")
      ->check(troupe::window_of_steps(a.trace))
      ->type_name("FIRST:COUNT");
  train->add_flag("--pin", a.pin, "pin each compute thread to a core of its own");
  train
      ->add_option(
          "--device", a.device,
          "where workers compute: cpu, cuda (all GPUs of the machine, in turn), or cuda:0,2 (these) (default: cpu)")
      ->type_name("DEVICE");
  train->add_flag("--quiet", a.quiet, "no progress line, no summary");
  auto* sample =
      train->add_option("--sample", a.sample_text, "at the end, go on from this text (default: sample.prompt)")
          ->expected(0, 1);
  train->add_option("--ucx-tls", a.tls, "UCX transports, such as tcp (default: its choice)");
  train->add_option("--net-device", a.net_devices, "UCX network device of rank 0, 1, ... (repeatable; default: all)")
      ->allow_extra_args(false);
  train
      ->add_option("--worker-prefix", a.worker_prefixes,
                   "command put before worker 0, 1, ...: \"ip netns exec NAME\" (repeatable; default: none)")
      ->allow_extra_args(false);
  train
      ->add_option("--stall-limit", a.stall_s,
                   fmt::format("seconds without progress of any worker before the job gives up and says who waits for "
                               "whom (default: {})",
                               a.stall_s))
      ->check(troupe::whole_number(1, std::numeric_limits<int>::max()));
  troupe::recovery_options(*train, a);
  troupe::machine_options(*train, a);
  auto* plan = cli.add_subcommand("plan", "Show the plan: actors, channels, boxings, memory, predicted times");
  common(*plan, a);
  troupe::known_machine_options(*plan, a);
  plan->add_option("--guard-every", a.guard_every,
                   "as for train with --recovery slots, on the machines of --nodes (default: auto)")
      ->check([](const std::string& text) { return troupe::lm::check_guard_every(text).message(); });
  plan->add_option("--dot", a.dot, "also write the plan as a Graphviz file (default: none)")
      ->check(troupe::not_empty("the name of a file"));
  auto* sim = cli.add_subcommand("sim", "Simulate a step: order, makespan, bubble");
  common(*sim, a);
  troupe::known_machine_options(*sim, a);
  sim->add_option("--tf", a.tf_ms, "forward time of a stage per microbatch, ms (default: the cost model's)")
      ->check(troupe::not_negative("milliseconds"));
  sim->add_option("--tb", a.tb_ms, "backward time, ms; only with --tf (default: twice --tf)")
      ->check(troupe::not_negative("milliseconds"));
  sim->add_option(
         "--tw", a.tw_ms,
         "the part of --tb that makes weight gradients, ms; only with --tf, at most --tb (default: as the cost "
         "model divides it)")
      ->check(troupe::not_negative("milliseconds"));
  sim->add_flag("--ideal", a.ideal, "the step without waits for slots and streams; a plan may take less");
  sim->add_option("--hop", a.hop_ms, "time of each message between places, ms (default: 0)")
      ->check(troupe::not_negative("milliseconds"));
  troupe::lm::SampleArguments s;
  auto* generate = cli.add_subcommand("sample", "Go on from a text with a model from a checkpoint");
  troupe::sample_options(*generate, s);
  troupe::lm::EvalArguments e;
  auto* evaluate = cli.add_subcommand("eval", "Evaluate a model from a checkpoint on a text: loss and perplexity");
  troupe::eval_options(*evaluate, e);
  troupe::calibrate::Arguments c;
  auto* calibrate = cli.add_subcommand("calibrate",
                                       "Measure kernels, links and the disk of this machine, for plan, sim and train");
  calibrate
      ->add_option("--costs", c.costs, "the file to write (default: in the user's cache folder, where the others look)")
      ->check(troupe::not_empty("the name of a file"));
  calibrate->add_option("--threads", c.threads, fmt::format("threads of each worker (default: {})", c.threads))
      ->check(troupe::whole_number(1));
  calibrate
      ->add_option("--widest", c.widest,
                   fmt::format("measure the ops of models up to this width (default: {})", c.widest))
      ->check(troupe::whole_number(1));
  calibrate->add_option("--checkpoint-dir", c.checkpoint_dir,
                        "folder on the disk that checkpoints are to be written to (default: the current folder)");
  troupe::agents_options(*calibrate, c.between);
  calibrate
      ->add_option("--throttle", c.between.throttle,
                   "links between machines are measured as slowed down: latency=50us,bandwidth=100MB/s (repeatable; "
                   "default: as they are)")
      ->allow_extra_args(false);
  troupe::ckpt::Arguments k;
  int (*ckpt)(const troupe::ckpt::Arguments&) = nullptr;
  HfCommands hf;
  add_hf(add_ckpt(cli, k, ckpt), hf);
  troupe::lm::RunningArguments r;
  int (*running)(const troupe::lm::RunningArguments&) = nullptr;
  troupe::running_commands(cli, r, running);
  troupe::lm::AgentArguments g;
  const auto* agent = troupe::agent_command(cli, g);
  bool log_level_given = false;
  add_log_level(cli, log_level_given);
  const int words = troupe::words_to_parse(argc, argv);
  try {
    cli.parse(words, argv);
  } catch (const CLI::ParseError& e) {
    if (const char* text = troupe::text_taken_for_help(argc, argv); text && e.get_exit_code() == 0) {
      std::fprintf(stderr, "troupe: unknown option '%s': a text that begins with '-' is written behind '--'\n", text);
      return troupe::runtime::exit_usage;
    }
    if (e.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      const int code = cli.exit(e, text, text);
      troupe::report::print(text.str());
      return code;
    }
    std::fprintf(stderr, "troupe: %s (see %s --help)\n", troupe::describe(cli, e).c_str(),
                 troupe::command_words(cli).c_str());
    return troupe::runtime::exit_usage;
  }
  if (troupe::lacks_value(argv[words - 1])) {
    std::fprintf(stderr, "troupe: '%s' has no value behind its '=' (see %s --help)\n", argv[words - 1],
                 troupe::command_words(cli).c_str());
    return troupe::runtime::exit_usage;
  }
  if (a.quiet && !log_level_given) troupe::set_log_level(troupe::LogLevel::warn);
  if (ckpt) return ckpt(k);
  if (running) return running(r);
  if (agent->parsed()) return troupe::lm::serve_run(g);
  a.resumes = resume->count() > 0;
  a.words.assign(argv + 1, argv + argc);
  const bool planned = plan->parsed() || sim->parsed();
  if (a.config_path.empty() && (planned || (train->parsed() && !a.resumes))) {
    std::fprintf(stderr, "troupe: name a configuration, such as apps/configs/quickstart.toml%s (see %s --help)\n",
                 planned ? "" : ", or a checkpoint with --resume", troupe::command_words(cli).c_str());
    return troupe::runtime::exit_usage;
  }
  if (a.out.empty() && !a.config_path.empty()) {
    const auto name = troupe::base_of(a.config_path);
    a.out = "runs/" + name.substr(0, name.rfind(".toml"));
  }
  a.sample = sample->count() > 0;
  if ((a.sample && troupe::has_empty_sample(argc, argv)) ||
      (generate->parsed() && s.text.empty() && (*generate)["text"]->count() > 0)) {
    std::fprintf(stderr, "troupe: the text to go on from is empty: leave it out, and it is sample.prompt\n");
    return troupe::runtime::exit_usage;
  }
  if (traced && trace_text.empty()) a.trace = {.first = 0, .steps = 5};
  if (train->parsed()) return troupe::train_where_asked(app, a);
  if (generate->parsed()) return troupe::lm::sample_command(app, s);
  if (evaluate->parsed()) return troupe::lm::eval_command(app, e);
  if (hf.exports->parsed()) return troupe::ckpt::export_command(app, hf.to);
  if (hf.imports->parsed()) return troupe::ckpt::import_command(app, hf.from);
  if (calibrate->parsed()) return troupe::calibrate::calibrate_command(app, c);
  if (plan->parsed()) return troupe::lm::plan_command(app, a);
  return troupe::lm::sim_command(app, a);
}

}  // namespace

int main(int argc, char** argv) {
  troupe::runtime::App app;
  troupe::lm::register_actors(app);
  troupe::calibrate::register_actors(app);
#if defined(TROUPE_ON_GPUS)
  app.accelerator(troupe::runtime::cuda_accelerator());
#elif defined(TROUPE_ON_FIBERS)
  app.accelerator(troupe::runtime::fiber_accelerator());
#endif
  app.serve_if_worker(argc, argv);
  keep_standard_streams();
  outlive_readers();
  troupe::report::log_to_stderr();
  troupe::runtime::end_with_words("command", troupe::runtime::exit_worker);
  try {
    return end_output(run(app, argc, argv));
    // memory or threads that the system does not give: no worker is left, they end with their links
  } catch (...) {
    troupe::runtime::end_by_exception();
  }
}
