#include "apps/machines/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace troupe::lm {

namespace {

std::optional<std::int64_t> whole_number_of(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

Expected<std::int64_t> number_in(const Environment& environment, const char* name) {
  const auto text = environment(name);
  if (!text)
    return invalid(
        fmt::format("the environment has no {}, which the launcher of this process should have set "
                    "(--launcher none: this process is a run of its own)",
                    name));
  if (const auto number = whole_number_of(*text)) return *number;
  return invalid(
      fmt::format("{} is '{}' in the environment: expected a whole number, as a launcher sets it "
                  "(--launcher none: this process is a run of its own)",
                  name, *text));
}

/// Letters that the name of a file may have; others become '_'.
std::string for_file(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  return text;
}

Status check_rank(const LaunchedTask& task) {
  if (task.size >= 1 && task.rank < task.size) return {};
  return invalid(fmt::format("{} says that this process is number {} of {}", task.launcher, task.rank, task.size));
}

/// The largest number of "2(x3),1".
Expected<std::int64_t> most_tasks(const std::string& per_node) {
  std::int64_t most = 0;
  for (std::size_t at = 0; at <= per_node.size();) {
    const std::size_t end = std::min(per_node.find(',', at), per_node.size());
    const std::string_view part = std::string_view(per_node).substr(at, end - at);
    const auto number = whole_number_of(part.substr(0, part.find('(')));
    if (!number) return invalid("SLURM_STEP_TASKS_PER_NODE is '" + per_node + "': expected such as 1(x4)");
    most = std::max(most, *number);
    at = end + 1;
  }
  return most;
}

Expected<std::optional<LaunchedTask>> slurm_task(const Environment& environment, const std::string& host) {
  LaunchedTask t;
  t.launcher = "Slurm";
  TROUPE_ASSIGN(t.rank, number_in(environment, "SLURM_PROCID"));
  TROUPE_ASSIGN(t.size, number_in(environment, "SLURM_STEP_NUM_TASKS"));
  TROUPE_TRY(check_rank(t));
  TROUPE_ASSIGN(const std::int64_t job, number_in(environment, "SLURM_JOB_ID"));
  TROUPE_ASSIGN(const std::int64_t step, number_in(environment, "SLURM_STEP_ID"));
  std::int64_t restart = 0;  // not set before a job is requeued
  if (environment("SLURM_RESTART_COUNT")) {
    TROUPE_ASSIGN(restart, number_in(environment, "SLURM_RESTART_COUNT"));
  }
  const auto cluster = environment("SLURM_CLUSTER_NAME");  // clusters may share a folder
  t.start = for_file(fmt::format("slurm-{}{}{}.{}.{}", cluster.value_or(""), cluster ? "-" : "", job, step, restart));
  t.machine = environment("SLURMD_NODENAME").value_or(host);
  if (const auto per_node = environment("SLURM_STEP_TASKS_PER_NODE")) {
    TROUPE_ASSIGN(t.on_node, most_tasks(*per_node));
  }
  t.speaks = t.rank == 0;
  auto nodes = environment("SLURM_STEP_NODELIST");
  if (!nodes) nodes = environment("SLURM_JOB_NODELIST");
  if (nodes) t.nodes = node_names(*nodes);
  return std::optional(std::move(t));
}

Expected<std::optional<LaunchedTask>> mpi_task(const Environment& environment, const std::string& host) {
  LaunchedTask t;
  t.launcher = "Open MPI";
  TROUPE_ASSIGN(t.rank, number_in(environment, "OMPI_COMM_WORLD_RANK"));
  TROUPE_ASSIGN(t.size, number_in(environment, "OMPI_COMM_WORLD_SIZE"));
  TROUPE_TRY(check_rank(t));
  TROUPE_ASSIGN(t.on_node, number_in(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  if (const auto local = environment("OMPI_COMM_WORLD_LOCAL_RANK")) t.speaks = *local == "0";
  const auto space = environment("PMIX_NAMESPACE");
  // Open MPI 4 makes its name space of the number of a process, and a key of each start that no other has.
  const auto key = environment("OMPI_MCA_orte_precondition_transports");
  if (!space && !key)
    return invalid(
        "the environment has neither PMIX_NAMESPACE nor OMPI_MCA_orte_precondition_transports: nothing tells "
        "this start of mpirun from another one");
  t.start = for_file("mpi-" + space.value_or("") + (space && key ? "-" : "") + key.value_or(""));
  t.machine = host;
  return std::optional(std::move(t));
}

}  // namespace

Expected<std::optional<LaunchedTask>> find_task(const Environment& environment, const std::string& host) {
  // mpirun may have started its daemons by srun, whose variables are then there, too; the reverse does not happen.
  if (environment("OMPI_COMM_WORLD_RANK")) return mpi_task(environment, host);
  // The script of a job, too, has a SLURM_PROCID, and no step.
  if (environment("SLURM_STEP_ID") && environment("SLURM_STEP_NUM_TASKS")) return slurm_task(environment, host);
  for (const char* name : {"PMIX_RANK", "PMI_RANK"})
    if (environment(name))
      return invalid(
          fmt::format("{} is set: a launcher has started this process, and says neither as Slurm nor as Open "
                      "MPI of how many it is one: start runs by srun, mpirun or --hosts (--launcher none: "
                      "this process is a run of its own)",
                      name));
  return std::optional<LaunchedTask>();
}

Status check_one_on_node(const LaunchedTask& task) {
  if (task.on_node <= 1) return {};
  return invalid(
      fmt::format("{} has started {} tasks on one node: a run has one task on each machine ({}), which starts "
                  "--places workers",
                  task.launcher, task.on_node,
                  task.launcher == "Slurm" ? "srun --ntasks-per-node=1" : "mpirun --map-by ppr:1:node"));
}

namespace {

/// Appends all names of one word of a list, such as "r[0-1]n[01-16]". False: it has another form.
bool expand(const std::string& word, std::size_t most, std::vector<std::string>& names) {
  const std::size_t open = word.find('['), close = word.find(']');
  if (open == std::string::npos) {
    if (word.empty() || close != std::string::npos) return false;
    if (names.size() < most) names.push_back(word);
    return true;
  }
  if (close == std::string::npos || close < open) return false;
  const std::string inside = word.substr(open + 1, close - open - 1);
  for (std::size_t at = 0; at <= inside.size();) {
    const std::size_t end = std::min(inside.find(',', at), inside.size());
    const std::string range = inside.substr(at, end - at), first = range.substr(0, range.find('-'));
    const std::string last = range.find('-') == std::string::npos ? first : range.substr(range.find('-') + 1);
    const auto from = whole_number_of(first), to = whole_number_of(last);
    if (!from || !to || *to < *from) return false;
    for (std::int64_t n = *from; n <= *to && names.size() < most; ++n)
      if (!expand(word.substr(0, open) + fmt::format("{:0{}}", n, first.size()) + word.substr(close + 1), most, names))
        return false;
    at = end + 1;
  }
  return true;
}

}  // namespace

std::vector<std::string> node_names(const std::string& list, std::size_t most) {
  std::vector<std::string> names;
  std::string word;
  int depth = 0;
  for (const char c : list + ",") {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c != ',' || depth > 0) word += c;
    else if (!expand(std::exchange(word, {}), most, names)) return {};
  }
  return names;
}

Environment own_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

}  // namespace troupe::lm
