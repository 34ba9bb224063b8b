#include "apps/job/started.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "apps/job/agent.h"
#include "apps/machines/agent_commands.h"
#include "apps/machines/own_address.h"
#include "devices/base/log.h"

namespace troupe::lm {

using namespace runtime;

namespace {

std::vector<std::string> agent_words(const JobArguments& a, const std::string& program, const std::string& machine) {
  return {program,
          "agent",
          "--invited",
          "--name",
          machine,
          "--places",
          std::to_string(std::max(1, a.places)),
          "--wait",
          std::to_string(a.machines.wait_s),
          "--log-level",
          std::string(log_level_name(log_level()))};
}

/// Has the run listen where the user says, or at an address of this machine at which `others` reach it, and a port that
/// the system chooses.
Status find_place_to_listen(JobArguments& a, const std::vector<std::string>& others) {
  if (!a.machines.listen.empty()) return {};
  TROUPE_ASSIGN(const std::string own, own_address(others));
  a.machines.listen = own + ":0";
  return {};
}

/// Where agents find a run that listens at `address`: at one of its machine's where that is any ("0.0.0.0:7070").
Expected<std::string> joined_at(const std::string& address, const std::vector<std::string>& others) {
  const std::size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return address;
  TROUPE_ASSIGN(const std::string own, own_address(others));
  return own + address.substr(colon);
}

/// Does `run` with agents that `agents` has started, or that read the file `meets` (may be empty). REQUIRES: it is
/// known where the run listens.
int run_with(JobArguments a, AgentCommands& agents, const std::vector<std::string>& others, const std::string& meets,
             const std::function<int(const JobArguments&)>& run) {
  const auto token = fresh_token();
  if (!token.ok()) return say(token.status(), exit_worker);
  a.machines.token = *token;
  a.machines.on_listen = [&](const std::string& address) -> Status {
    TROUPE_ASSIGN(const std::string joined, joined_at(address, others));
    const Invitation invitation{joined, *token};
    if (!meets.empty()) TROUPE_TRY(write_invitation(meets, invitation));
    agents.invite(invitation);
    return {};
  };
  a.machines.give_up = [&] { return agents.ended(); };
  const int code = run(a);
  if (!meets.empty()) ::unlink(meets.c_str());
  return code;
}

int lead(const App& app, JobArguments a, const LaunchedTask& task, const std::string& meets) {
  a.machines.count = static_cast<int>(task.size);
  a.machines.joins_by = task.launcher == "Slurm" ? "the tasks of srun" : "the tasks of mpirun";
  std::vector<std::string> others = task.nodes;
  std::erase(others, task.machine);
  if (const Status s = find_place_to_listen(a, others); !s.ok()) return say(s, exit_usage);
  AgentCommands agents;
  auto words = agent_words(a, "/proc/self/exe", task.machine);
  words.push_back("--stay");
  if (const Status s = agents.start(task.machine, std::move(words)); !s.ok()) return say(s, exit_worker);
  return run_with(std::move(a), agents, others, meets,
                  [&](const JobArguments& found) { return train_command(app, found); });
}

int follow(const JobArguments& a, const LaunchedTask& task, const std::string& meets) {
  const auto invitation = await_invitation(meets, a.machines.wait_s);
  if (!invitation.ok()) {
    return say(invitation.status(), invitation.status().code() == Code::interrupted ? exit_interrupted : exit_worker);
  }
  AgentArguments g;
  g.stays = true;
  g.name = task.machine;
  g.places = std::max(1, a.places);
  g.wait_s = a.machines.wait_s;
  return serve_run(g, *invitation);
}

/// Names that reach a host's shell as they are, and have no other meaning for the command that reaches the host.
Status check_word(const std::string& word, const std::string& what) {
  static const std::string plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+@%:,=-";
  if (!word.empty() && word[0] != '-' && word.find_first_not_of(plain) == std::string::npos) return {};
  return invalid(fmt::format("{} '{}': the shell of a host may read it otherwise; letters, digits and {} may be in it",
                             what, word, "._/+@%:,=-"));
}

}  // namespace

int train_as_task(const App& app, const JobArguments& a, const LaunchedTask& task) {
  if (const Status s = check_one_on_node(task); !s.ok()) {
    if (task.speaks) return say(s, exit_usage);
    return exit_usage;
  }
  if (a.out.empty()) {
    const Status s =
        invalid("name the output folder with --out: the processes that " + task.launcher + " has started meet there");
    return task.rank == 0 ? say(s, exit_usage) : exit_usage;
  }
  const std::string meets = invitation_path(a.out, task.start);
  return task.rank == 0 ? lead(app, a, task, meets) : follow(a, task, meets);
}

int run_on_hosts(const JobArguments& arguments, const std::function<int(const JobArguments&)>& run) {
  JobArguments a = arguments;
  std::istringstream text(a.ssh);
  const std::vector<std::string> reach{std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
  if (reach.empty()) return say(invalid("--ssh is empty: expected a command, such as ssh"), exit_usage);
  char program[4096];
  const ssize_t size = ::readlink("/proc/self/exe", program, sizeof program);
  const std::string own(program, size > 0 ? static_cast<std::size_t>(size) : 0);
  if (const Status s = check_word(own, "this program's path"); !s.ok()) return say(s, exit_usage);
  std::set<std::string> seen;
  for (const std::string& host : a.hosts) {
    if (const Status s = check_word(host, "--hosts"); !s.ok()) return say(s, exit_usage);
    if (!seen.insert(host).second)
      return say(invalid("--hosts has " + host + " twice: a run has one agent on each machine (--places)"), exit_usage);
  }
  a.machines.count = static_cast<int>(a.hosts.size());
  a.machines.joins_by = "--hosts, by " + reach.front();
  if (const Status s = find_place_to_listen(a, a.hosts); !s.ok()) return say(s, exit_usage);
  AgentCommands agents;
  for (const std::string& host : a.hosts) {
    std::vector<std::string> words = reach;
    words.push_back(host);
    const auto agent = agent_words(a, own, host);
    words.insert(words.end(), agent.begin(), agent.end());
    if (const Status s = agents.start(host, std::move(words)); !s.ok()) return say(s, exit_worker);
  }
  return run_with(a, agents, a.hosts, "", run);
}

}  // namespace troupe::lm
