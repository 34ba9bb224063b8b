#include "apps/machine_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include "apps/argument_forms.h"

namespace troupe {

namespace {

constexpr const char* token_help =
    "file with the secret that a run and its agents share; its owner alone may read it (no default)";

}  // namespace

void machine_options(CLI::App& train, lm::JobArguments& arguments) {
  auto& machines = arguments.machines;
  auto* nodes = train
                    .add_option("--nodes", machines.count,
                                "machines whose agents (troupe agent) have the workers; the run waits for them "
                                "(default: this machine has the workers, without an agent)")
                    ->check(whole_number(1, 65'536));
  auto* listen = train.add_option("--listen", machines.listen, "HOST:PORT at which agents join (no default)")
                     ->check(not_empty("HOST:PORT"));
  auto* token =
      train.add_option("--token-file", machines.token_file, token_help)->check(not_empty("the name of a file"));
  train
      .add_option("--node-wait", machines.wait_s,
                  fmt::format("seconds that the run waits for its agents, and with --recovery for others in the place "
                              "of lost ones (default: {})",
                              machines.wait_s))
      ->check(whole_number(1, 1'000'000))
      ->needs(nodes);
  train
      .add_option("--min-nodes", machines.count_min,
                  fmt::format("with --replace never: machines with which the run goes on; with fewer it waits for "
                              "others (default: {})",
                              machines.count_min))
      ->check(whole_number(1, 65'536))
      ->needs(nodes);
  nodes->needs(listen)->needs(token);
  listen->needs(nodes);
  token->needs(nodes);
}

void name_paths_for_all(lm::JobArguments& arguments) {
  char folder[4096];
  if (arguments.machines.count == 0 || !::getcwd(folder, sizeof folder)) return;
  for (std::string* path : {&arguments.data, &arguments.out, &arguments.checkpoint_dir, &arguments.resume})
    if (!path->empty() && path->front() != '/' && *path != "latest" && *path != "memory")
      *path = std::string(folder) + "/" + *path;
}

CLI::App* agent_command(CLI::App& cli, lm::AgentArguments& a) {
  auto* agent = cli.add_subcommand("agent", "Give this machine to a run: start and watch workers as it says");
  agent->add_option("--join", a.join, "HOST:PORT of the run (no default)")->required();
  agent->add_option("--token-file", a.token_file, token_help)->required();
  agent->add_option("--places", a.places, fmt::format("workers that this machine takes (default: {})", a.places))
      ->check(whole_number(1, 65'536));
  agent->add_option("--name", a.name, "what the run calls this machine (default: its host name)")
      ->check(one_line("a name"));
  agent
      ->add_option("--net-device", a.net_device,
                   "network device of UCX for the workers of this machine, such as mlx5_0:1 or eth0 (default: what the "
                   "run says, else UCX's choice)")
      ->check(one_line("the name of a device"));
  agent
      ->add_option("--wait", a.wait_s,
                   fmt::format("seconds for which no run may take the machine before the agent gives up (default: {})",
                               a.wait_s))
      ->check(whole_number(1, 1'000'000));
  return agent;
}

}  // namespace troupe
