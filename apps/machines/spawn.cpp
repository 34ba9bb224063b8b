#include "apps/machines/spawn.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cstring>

extern char** environ;

namespace troupe::lm {

Expected<pid_t> spawn(std::vector<std::string> command, const SpawnOptions& options) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&how);
  if (!options.folder.empty()) ::posix_spawn_file_actions_addchdir_np(&files, options.folder.c_str());
  if (options.stdin_fd >= 0) ::posix_spawn_file_actions_adddup2(&files, options.stdin_fd, STDIN_FILENO);
  if (options.logs) ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, words[0], &files, &how, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  if (error == 0) return pid;
  return Status(Code::io, "cannot start '" + command[0] + "': " + std::strerror(error));
}

}  // namespace troupe::lm
