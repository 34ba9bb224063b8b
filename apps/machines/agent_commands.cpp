#include "apps/machines/agent_commands.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "apps/machines/spawn.h"
#include "runtime/agents/launcher.h"

namespace troupe::lm {

Status AgentCommands::start(const std::string& machine, std::vector<std::string> command) {
  const std::string what = "machine " + machine;
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return Status(Code::io, std::strerror(errno)).in(what + ": no pipe for its agent");
  const auto pid = spawn(std::move(command), {.stdin_fd = pipe[0], .logs = true});
  ::close(pipe[0]);
  if (!pid.ok()) {
    ::close(pipe[1]);
    return pid.status().in(what);
  }
  commands_.push_back({machine, *pid, pipe[1]});
  return {};
}

void AgentCommands::invite(const Invitation& invitation) {
  const std::string text = to_text(invitation);                                          // a pipe takes it at once
  for (const Command& c : commands_) (void)!::write(c.in_fd, text.data(), text.size());  // ended() tells who has gone
}

Status AgentCommands::ended() {
  for (Command& c : commands_) {
    int status = 0;
    if (c.pid < 0 || ::waitpid(c.pid, &status, WNOHANG) != c.pid) continue;
    c.pid = -1;
    return Status(Code::unavailable,
                  "the agent of machine " + c.machine + " has ended: its command " + runtime::describe_exit(status));
  }
  return {};
}

bool AgentCommands::await_ends(int ms) {
  for (int waited_ms = 0;; waited_ms += 10) {
    bool all = true;
    for (Command& c : commands_) {
      if (c.pid > 0 && ::waitpid(c.pid, nullptr, WNOHANG) != 0) c.pid = -1;
      all = all && c.pid < 0;
    }
    if (all || waited_ms >= ms) return all;
    ::poll(nullptr, 0, 10);
  }
}

void AgentCommands::finish(int ms) {
  for (Command& c : commands_)
    if (const int fd = std::exchange(c.in_fd, -1); fd >= 0) ::close(fd);
  for (const int signal : {0, SIGTERM, SIGKILL}) {
    if (signal != 0)
      for (const Command& c : commands_)
        if (c.pid > 0) ::kill(-c.pid, signal);
    if (await_ends(ms)) break;
  }
  commands_.clear();
}

}  // namespace troupe::lm
