// Launcher: worker processes on this machine. Each runs this very executable again, with a socket to the
// coordinator. No worker outlives the launching process, however that ends: a worker dies with its parent (PDEATHSIG)
// and when its control link closes. The one exception is a worker that SIGKILL does not end (Launcher::finish).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "placement/mesh.h"
#include "runtime/agents/control_link.h"

namespace troupe::runtime {

/// argv[1] of a worker process; argv[2] is the file descriptor of its control link, argv[3], where there is one, that
/// of the memory of its place.
inline constexpr const char* worker_flag = "--troupe-worker";

/// A worker process as its parent sees it.
struct WorkerProcess {
  pid_t pid = -1;
  int pidfd = -1, log_fd = -1;
  int memory_fd = -1;  ///< of its place, which outlives the process (map_kept); -1: there is none
  int home_fd = -1;    ///< the memory that the place had before Launcher::renew_memory; -1: it has had one only
  std::unique_ptr<ControlLink> link;
  std::string partial_line;
  bool exited = false;
  bool held = false;               ///< it has ended, and its parent cannot reap it: a debugger has not let it go
  bool left = false;               ///< SIGKILL has not ended it in the time that Launcher::finish gave it
  std::optional<int> wait_status;  ///< once it has exited, unless Launcher::reap has found no status to take
  /// Sends the process a signal, unless it has exited.
  void signal(int number) const;
};
/// File descriptors that each process of a job of so many workers may need: the job's process has a control link, a log
/// and a pidfd of each, and of one that recovers for a while two memories; a worker has texts, checkpoints, and UCX's
/// sockets, over TCP one for each other worker.
constexpr std::int64_t descriptors_of(std::int64_t workers, bool recovers) { return 32 + (recovers ? 5 : 3) * workers; }
/// The most that one call reads of a worker's log: more than its pipe holds. A worker that writes without end must not
/// keep its parent from the other workers, from signals and from its end.
inline constexpr std::size_t log_bytes_at_once = 256 << 10;
/// A longer line is told in pieces: a progress bar may never end its line.
inline constexpr std::size_t log_line_bytes_max = 16 << 10;
/// How long a worker may take to end after SIGKILL: the kernel gives back the memory of a large one for seconds.
inline constexpr int killed_ms_max = 30'000;

/// With this code a worker process ends that has left many generations: its place gets another one.
inline constexpr int exit_worn = 75;

/// The worker processes of one job. Not thread-safe.
class Launcher {
 public:
  Launcher() = default;
  ~Launcher();  ///< ends the workers that still run
  /// Starts a worker. `prefix` (may be empty) is put before the command: {"ip", "netns", "exec", "b"}. `keeps_memory`:
  /// it finds memory that outlives it.
  Status start(const std::vector<std::string>& prefix, bool keeps_memory = false);
  /// Starts another process in the place of one that has exited, with the memory that it has left; `afresh`: with new
  /// memory. What the old one's log still has goes to `line`. REQUIRES: exited, and its memory was kept.
  Status restart(WorkerProcess& worker, const std::vector<std::string>& prefix, bool afresh,
                 const std::function<void(const std::string&)>& line);
  /// The place of a worker gets new memory, which its process opens by name, and keeps the memory that it had, until
  /// forget_memory. Error: there is none to be had.
  static Status renew_memory(WorkerProcess& worker);
  /// Lets go of what the place had before renew_memory; `used`: false: and of what it has.
  static void forget_memory(WorkerProcess& worker, bool used);
  std::vector<WorkerProcess>& workers() { return workers_; }
  /// Reads what a worker's log has, up to log_bytes_at_once; complete lines go to `line`, and pieces of
  /// log_line_bytes_max. False at its end.
  bool read_log(WorkerProcess& worker, const std::function<void(const std::string&)>& line);
  /// Reaps a worker whose pidfd is readable. Returns whether it counts as exited: one that a debugger holds does not,
  /// and its pidfd stays readable. No status is left to take where another part of this process has waited
  /// for the worker, or this process ignores SIGCHLD: the worker counts as exited then, too.
  bool reap(WorkerProcess& worker);
  /// Closes all control links, waits up to `grace_ms` for the workers to exit by themselves, then kills the rest and
  /// waits up to `killed_ms` for their end. What their logs still have goes to `line`, with the worker's rank; null: it
  /// is lost. Their memory is kept. Error (`unavailable`): workers have not ended even so, by rank and pid. They are
  /// left, and no later call waits for them.
  Status end_processes(int grace_ms, const std::function<void(Rank, const std::string&)>& line = {},
                       int killed_ms = killed_ms_max);
  /// The same, and lets go of their memory.
  Status finish(int grace_ms, const std::function<void(Rank, const std::string&)>& line = {},
                int killed_ms = killed_ms_max);

 private:
  /// Forks and executes; `w` gets link, log, pid and pidfd, even where an error is returned after the fork.
  static Status spawn(WorkerProcess& w, const std::vector<std::string>& prefix);
  /// Reaps the workers that end, and reads the logs of the others, until all but those that are left have ended, or
  /// for `ms`.
  void await_ends(int ms, const std::function<void(WorkerProcess&)>& read_rest);

  std::vector<WorkerProcess> workers_;
};

/// The descriptor of the control link, where a Launcher has started this process as a worker; nullopt elsewhere. The
/// kernel says it (/proc/self/cmdline), whatever main does with its argv. A process that a worker has forked passes for
/// it until it executes a program.
std::optional<int> link_of_this_worker();

/// "was killed by signal 9 (Killed)", "exited with code 3"; without a status, that there is none, and why.
std::string describe_exit(std::optional<int> wait_status);

}  // namespace troupe::runtime
