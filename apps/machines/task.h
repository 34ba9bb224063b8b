// LaunchedTask: which process of a run this one is, where a launcher (srun, mpirun) has started several.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "devices/base/status.h"

namespace troupe::lm {

/// One of the processes that a launcher has started together.
struct LaunchedTask {
  std::string launcher;            ///< "Slurm", "Open MPI": for people
  std::int64_t rank = 0;           ///< 0 to size - 1
  std::int64_t size = 1;           ///< how many there are
  std::string start;               ///< tells this start from every other one; fit for the name of a file
  std::string machine;             ///< of this task; no two tasks have the same where each node has one task
  std::int64_t on_node = 1;        ///< the most tasks of a node, as far as the launcher tells
  bool speaks = true;              ///< says what is wrong with the start, so that not all tasks say it
  std::vector<std::string> nodes;  ///< the names of all nodes; empty: the launcher does not tell them
};

/// The value of an environment variable; nullopt: it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// What a launcher says in the environment of this process; nullopt: none has started it. `host`: the name of this
/// machine where the launcher gives it none. Error (`invalid`): a variable is not what a launcher sets, or the launcher
/// does not tell what a task needs to know.
Expected<std::optional<LaunchedTask>> find_task(const Environment& environment, const std::string& host);

/// Ok where each node has one task. Error (`invalid`): names the launcher and what to do.
Status check_one_on_node(const LaunchedTask& task);

/// The names of Slurm's form "n[1-3,07],gpu": the first `most` of them. Empty: it is not of that form.
std::vector<std::string> node_names(const std::string& list, std::size_t most = 4096);

/// The environment of this process.
Environment own_environment();

}  // namespace troupe::lm
