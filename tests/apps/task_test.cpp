// What launchers say in the environment of the processes that they start.
#include "apps/machines/task.h"

#include <doctest/doctest.h>

#include <map>

using namespace troupe;
using namespace troupe::lm;

namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

LaunchedTask task_of(const Variables& variables) {
  const auto found = find_task(of(variables), "host");
  REQUIRE(found.ok());
  REQUIRE(found->has_value());
  return **found;
}

std::string error_of(const Variables& variables) {
  const auto found = find_task(of(variables), "host");
  return found.ok() ? "" : found.status().message();
}

Variables changed(Variables variables, const Variables& by) {
  for (const auto& [name, value] : by) variables[name] = value;
  return variables;
}

// What srun of Slurm 22.05 has set in a job of two nodes, and mpirun of Open MPI 4.1.4 on four.
const Variables slurm = {
    {"SLURM_PROCID", "1"},     {"SLURM_STEP_NUM_TASKS", "2"},    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
    {"SLURM_JOB_ID", "41"},    {"SLURM_STEP_ID", "3"},           {"SLURM_CLUSTER_NAME", "big"},
    {"SLURMD_NODENAME", "n2"}, {"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_STEP_NODELIST", "n[1-2]"}};
const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                       {"PMIX_NAMESPACE", "4126539777"},
                       {"PMIX_RANK", "2"},
                       {"OMPI_MCA_orte_precondition_transports", "f93d21665d82ed64-1a96f519ebcf743c"}};

}  // namespace

TEST_CASE("a process that no launcher has started is no task, in the script of a Slurm job neither") {
  CHECK_FALSE(find_task(of({}), "host")->has_value());
  Variables script = slurm;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"})
    script.erase(name);
  CHECK_FALSE(find_task(of(script), "host")->has_value());
}

TEST_CASE("a task of Slurm knows its place, its machine, the nodes of its step, and its start from any other") {
  const LaunchedTask t = task_of(slurm);
  CHECK(t.launcher == "Slurm");
  CHECK(t.rank == 1);
  CHECK(t.size == 2);
  CHECK(t.machine == "n2");
  CHECK(t.on_node == 1);
  CHECK_FALSE(t.speaks);
  CHECK(t.nodes == std::vector<std::string>{"n1", "n2"});
  CHECK(t.start == "slurm-big-41.3.0");
  CHECK(task_of(changed(slurm, {{"SLURM_PROCID", "0"}, {"SLURMD_NODENAME", "n1"}})).start == t.start);
  for (const Variables& other : {Variables{{"SLURM_RESTART_COUNT", "1"}}, Variables{{"SLURM_STEP_ID", "4"}},
                                 Variables{{"SLURM_JOB_ID", "42"}}, Variables{{"SLURM_CLUSTER_NAME", "small"}}})
    CHECK(task_of(changed(slurm, other)).start != t.start);
  CHECK(task_of(changed(slurm, {{"SLURM_CLUSTER_NAME", "a/../b c"}})).start == "slurm-a_.._b_c-41.3.0");
}

TEST_CASE("a task of Open MPI knows its place, its machine, and its start from any other, under Slurm too") {
  const LaunchedTask t = task_of(changed(slurm, mpi));  // mpirun has started its daemons by srun
  CHECK(t.launcher == "Open MPI");
  CHECK(t.rank == 2);
  CHECK(t.size == 4);
  CHECK(t.machine == "host");
  CHECK(t.on_node == 1);
  CHECK(t.start == "mpi-4126539777-f93d21665d82ed64-1a96f519ebcf743c");
  CHECK(task_of(changed(mpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).start == t.start);
  CHECK(task_of(changed(mpi, {{"OMPI_MCA_orte_precondition_transports", "a-b"}})).start != t.start);
  Variables five = mpi;  // Open MPI 5 names its start by host and process, and has no key
  five.erase("OMPI_MCA_orte_precondition_transports");
  five["PMIX_NAMESPACE"] = "prterun-n1-77@1";
  CHECK(task_of(five).start == "mpi-prterun-n1-77_1");
}

TEST_CASE("several tasks on one node are refused, with the launcher's name and what to do") {
  CHECK(check_one_on_node(task_of(slurm)).ok());
  CHECK(check_one_on_node(task_of(mpi)).ok());
  const Status s = check_one_on_node(task_of(changed(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "1,2(x3),1"}})));
  CHECK(s.message().find("Slurm has started 2 tasks on one node") != std::string::npos);
  CHECK(s.message().find("srun --ntasks-per-node=1") != std::string::npos);
  const Status m = check_one_on_node(task_of(changed(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})));
  CHECK(m.message().find("Open MPI has started 3 tasks on one node") != std::string::npos);
  CHECK(m.message().find("mpirun --map-by ppr:1:node") != std::string::npos);
}

TEST_CASE("an environment that a launcher has not set so is refused by the variable's name") {
  CHECK(error_of(changed(slurm, {{"SLURM_PROCID", "x"}})).find("SLURM_PROCID is 'x'") == 0);
  CHECK(error_of(changed(slurm, {{"SLURM_PROCID", ""}})).find("SLURM_PROCID is ''") == 0);
  CHECK(error_of(changed(slurm, {{"SLURM_STEP_NUM_TASKS", "-2"}})).find("SLURM_STEP_NUM_TASKS is '-2'") == 0);
  CHECK(error_of(changed(slurm, {{"SLURM_PROCID", "2"}})).find("number 2 of 2") != std::string::npos);
  CHECK(error_of(changed(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "many"}})).find("'many'") != std::string::npos);
  Variables less = mpi;
  less.erase("OMPI_COMM_WORLD_SIZE");
  CHECK(error_of(less).find("has no OMPI_COMM_WORLD_SIZE") != std::string::npos);
  less = mpi;
  less.erase("PMIX_NAMESPACE");
  less.erase("OMPI_MCA_orte_precondition_transports");
  CHECK(error_of(less).find("PMIX_NAMESPACE") != std::string::npos);
  CHECK(error_of({{"PMI_RANK", "0"}}).find("PMI_RANK is set") == 0);
  CHECK(error_of({{"PMIX_RANK", "0"}}).find("PMIX_RANK is set") == 0);
}

TEST_CASE("Slurm's lists of nodes are expanded") {
  using Names = std::vector<std::string>;
  CHECK(node_names("n1") == Names{"n1"});
  CHECK(node_names("n[08-10,3],gpu-2,r[0-1]n[1-2]-x") ==
        Names{"n08", "n09", "n10", "n3", "gpu-2", "r0n1-x", "r0n2-x", "r1n1-x", "r1n2-x"});
  CHECK(node_names("n[1-1000000000]", 3) == Names{"n1", "n2", "n3"});
  for (const char* wrong : {"", "n[", "n]", "n[1-]", "n[2-1]", "n[]", "a,,b", "n]1["}) CHECK(node_names(wrong).empty());
}
