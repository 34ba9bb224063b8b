#include "apps/machine_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <string_view>
#include <utility>

#include "apps/argument_forms.h"
#include "apps/job/lead.h"
#include "apps/job/started.h"
#include "apps/machines/task.h"
#include "runtime/agents/agent_messages.h"
#include "runtime/agents/connection.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe {

namespace {

/// Where it is kept who leads the run; returns --store.
CLI::Option* store_options(CLI::App& command, runtime::StoreOptions& store) {
  auto* url = command
                  .add_option("--store", store.url,
                              "where it is kept who leads the run, so that another machine can take its lead over: "
                              "etcd://HOST:PORT[,HOST:PORT...][/PREFIX], etcds:// with TLS, or files:DIR (default: "
                              "nowhere)")
                  ->check(not_empty("a store, such as etcd://10.0.0.1:2379"));
  const auto add = [&](const char* name, std::string& value, const char* what) {
    command.add_option(name, value, what)->needs(url)->check(not_empty("a value"));
  };
  add("--store-run", store.job,
      "what the run is called there (default: the name of its output folder; of an agent: none)");
  add("--store-ca", store.ca_file,
      "file with the authorities that sign the store's certificate (default: the system's)");
  add("--store-cert", store.cert_file, "this process's certificate for the store (default: none)");
  add("--store-key", store.key_file, "the key of that certificate (default: none)");
  add("--store-user", store.user, "user of the store (default: none)");
  add("--store-password-file", store.password_file,
      "file with the user's password; its owner alone may read it (default: none)");
  return url;
}

/// HOST:PORT.
CLI::Validator an_address() {
  return CLI::Validator([](std::string& text) { return runtime::check_address(text).message(); }, "");
}

constexpr const char* token_help =
    "file with the secret that a run and its agents share; its owner alone may read it (no default)";

}  // namespace

void agents_options(CLI::App& command, lm::JobArguments& arguments) {
  auto& machines = arguments.machines;
  auto* nodes = command
                    .add_option(
                        "--nodes", machines.count,
                        "machines whose agents (troupe agent) have the workers; the command waits for them "
                        "(default: those of --hosts, or on which a launcher has started troupe train; else this "
                        "machine, without an agent)")
                    ->check(whole_number(1, 65'536));
  auto* listen = command
                     .add_option("--listen", machines.listen,
                                 "HOST:PORT at which agents join (default: with --hosts or a launcher an address of "
                                 "this machine, and a port that is free)")
                     ->check(an_address());
  auto* token =
      command.add_option("--token-file", machines.token_file, token_help)->check(not_empty("the name of a file"));
  command
      .add_option("--node-wait", machines.wait_s,
                  fmt::format("seconds that the command waits for agents, and with --recovery for others in the place "
                              "of lost ones (default: {})",
                              machines.wait_s))
      ->check(whole_number(1, 1'000'000));
  command.add_flag("--mixed-hardware", machines.mixed_hardware,
                   "take machines, too, whose processors make other bits of the same values (default: "
                   "they are refused)");
  auto* hosts = command
                    .add_option("--hosts", arguments.hosts,
                                "A,B,...: hosts on which the command starts agents, by ssh (default: none)")
                    ->delimiter(',')
                    ->allow_extra_args(false)
                    ->check(not_empty("the name of a host"));
  command
      .add_option("--ssh", arguments.ssh,
                  fmt::format("command that reaches a host of --hosts, which is put behind it with the agent's command "
                              "(default: {})",
                              arguments.ssh))
      ->needs(hosts);
  nodes->needs(listen)->needs(token)->excludes(hosts);
  token->needs(nodes);
}

void machine_options(CLI::App& train, lm::JobArguments& arguments) {
  agents_options(train, arguments);
  train
      .add_option("--min-nodes", arguments.machines.count_min,
                  fmt::format("with --replace never: machines with which the run goes on; with fewer it waits for "
                              "others (default: {})",
                              arguments.machines.count_min))
      ->check(whole_number(1, 65'536));
  train
      .add_option("--places", arguments.places,
                  "workers that each machine takes, with --hosts or a launcher (default: 1)")
      ->check(whole_number(1, 65'536))
      ->excludes(train.get_option("--nodes"));
  train
      .add_option("--launcher", arguments.launcher,
                  "auto: a run is on the machines on which Slurm's srun or Open MPI's mpirun has started this command; "
                  "none: this process is a run of its own (default: auto)")
      ->check(CLI::IsMember({"auto", "none"}));
  auto* store = store_options(train, arguments.store)->needs(train.get_option("--nodes"));
  train
      .add_option(
          "--store-lease", arguments.store_lease_s,
          fmt::format("seconds for which a leader may not be heard of before another machine leads (default: {})",
                      arguments.store_lease_s))
      ->needs(store)
      ->check(whole_number(1, 3600));
  train.add_option("--take-over", arguments.take_over)->group("");  // of troupe agent
}

void known_machine_options(CLI::App& command, lm::JobArguments& arguments) {
  auto* nodes = command
                    .add_option("--nodes", arguments.machines.count,
                                "machines that have the places of the mesh (default: as many as it takes, of 8 places)")
                    ->check(whole_number(1, 65'536));
  command.add_option("--places", arguments.places, "places of each machine of --nodes (default: 1)")
      ->check(whole_number(1, 65'536))
      ->needs(nodes);
}

namespace {

/// The same paths on all machines, whatever the folder in which each agent runs: relative ones become absolute.
void name_paths_for_all(lm::JobArguments& a) {
  char folder[4096];
  if (!::getcwd(folder, sizeof folder)) return;
  for (std::string* path : {&a.data, &a.out, &a.checkpoint_dir, &a.resume})
    if (!path->empty() && path->front() != '/' && *path != "latest" && *path != "auto" && *path != "memory")
      *path = std::string(folder) + "/" + *path;
  constexpr std::size_t scheme = std::string_view("files:").size();
  if (a.store.url.rfind("files:", 0) == 0 && a.store.url.size() > scheme && a.store.url[scheme] != '/')
    a.store.url.insert(scheme, std::string(folder) + "/");
}

}  // namespace

int train_where_asked(const runtime::App& app, lm::JobArguments a) {
  const auto refuse = [](const Status& why) { return lm::say(why, runtime::exit_usage); };
  std::optional<lm::LaunchedTask> task;
  if (a.machines.count == 0 && a.launcher == "auto") {
    auto found = lm::find_task(lm::own_environment(), lm::host_name());
    if (!found.ok()) return refuse(found.status());
    // One task is a run on its machine, as without a launcher.
    if (found->has_value() && ((*found)->size > 1 || a.places > 0)) task = *std::move(found);
  }
  if (a.machines.count > 0 || task || !a.hosts.empty()) name_paths_for_all(a);
  if (!a.take_over.empty()) {
    const auto taken = lm::parse_taken_over(a.take_over);
    if (!taken.ok()) return refuse(taken.status());
    if (const Status s = lm::take_over(a, *taken); !s.ok()) return refuse(s);
  }
  if (task && !a.hosts.empty())
    return refuse(invalid("--hosts starts agents, and so has " + task->launcher +
                          " done: leave --hosts out, or say --launcher none"));
  if (task) return train_as_task(app, a, *task);
  if (!a.hosts.empty())
    return lm::run_on_hosts(a, [&](const lm::JobArguments& found) { return lm::train_command(app, found); });
  for (const auto& [option, given] :
       {std::pair("--listen", a.machines.count == 0 && !a.machines.listen.empty()), {"--places", a.places > 0}})
    if (given)
      return refuse(invalid(std::string(option) +
                            " is for a run on several machines: --nodes, --hosts, or a launcher " + "(srun, mpirun)"));
  return lm::train_command(app, a);
}

CLI::App* agent_command(CLI::App& cli, lm::AgentArguments& a) {
  auto* agent = cli.add_subcommand("agent", "Give this machine to a run: start and watch workers as it says");
  auto* join = agent->add_option("--join", a.join, "HOST:PORT of the run (no default)")->check(an_address());
  auto* token = agent->add_option("--token-file", a.token_file, token_help)->check(not_empty("the name of a file"));
  auto* store = store_options(*agent, a.store);
  store->needs(token)->excludes(join);
  agent
      ->add_option("--lead-at", a.lead_at,
                   "HOST:PORT at which agents reach this machine, where it leads the run after its leader was lost "
                   "(default: it never leads)")
      ->needs(store)
      ->check(not_empty("HOST:PORT"));
  auto* invited = agent->add_flag("--invited", a.invited,
                                  "the standard input has two lines, HOST:PORT and the token; the agent ends with it");
  agent->add_flag(
      "--stay", a.stays,
      "go on at the first signal until the run has ended, as where a launcher has started all its processes");
  join->needs(token)->excludes(invited);
  token->excludes(invited);
  agent->add_option("--places", a.places, fmt::format("workers that this machine takes (default: {})", a.places))
      ->check(whole_number(1, 65'536));
  agent->add_option("--name", a.name, "what the run calls this machine (default: its host name)")
      ->check(one_line("a name"))
      ->check(CLI::Validator(
          [](std::string& name) {
            return name.size() > runtime::name_bytes_max
                       ? fmt::format("expected a name of {} bytes at most, this one has {}", runtime::name_bytes_max,
                                     name.size())
                       : std::string();
          },
          ""));
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
