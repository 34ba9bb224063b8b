// Invitation: what an agent needs to know of a run that it has not been told on its command line: where the run
// listens, and the token. Two lines of text, in a file of the shared folder or on the agent's standard input.
#pragma once

#include <optional>
#include <string>

#include "devices/base/status.h"

namespace troupe::lm {

struct Invitation {
  std::string address;  ///< HOST:PORT
  std::string token;    ///< its text (runtime/agents/token.h)
};

/// A token that no other run has, of 64 characters. Error (`io`): the system gives no random bytes.
Expected<std::string> fresh_token();

std::string to_text(const Invitation& invitation);
/// Error (`invalid`): it is none; `from` is where the text comes from, for the message.
Expected<Invitation> parse_invitation(const std::string& text, const std::string& from);

/// The file in the output folder by which the tasks of one start meet (LaunchedTask::start).
std::string invitation_path(const std::string& out, const std::string& start);

/// Writes a file that its owner alone may read, whole or not at all, and removes those of earlier starts of the same
/// job of Slurm, which was queued again. REQUIRES: no other process writes this one. Error (`io`): of the disk.
Status write_invitation(const std::string& path, const Invitation& invitation);
/// Waits up to `wait_s` seconds for the file. Error (`unavailable`): it has not come; (`invalid`) it is another user's,
/// or others may read it, or it has another form; `interrupted`, "interrupted by Terminated", where a signal has come.
Expected<Invitation> await_invitation(const std::string& path, int wait_s);
/// Reads it from a descriptor, and nothing behind it. Error (`unavailable`): that has ended before.
Expected<Invitation> read_invitation(int fd);

}  // namespace troupe::lm
