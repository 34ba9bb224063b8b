// Runs that Open MPI's mpirun, Slurm's srun or ssh start on several machines, each a set of namespaces (machines.h).
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/command/machines.h"
#include "tests/command/slurm.h"
#include "tests/command/told.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

bool is_installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

/// Files by which the processes of a start meet: they go with the run.
int invitations_in(const std::string& out) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out))
    count += entry.path().filename().string().starts_with("join-") ? 1 : 0;
  return count;
}

/// Starts of a run on several machines.
struct Started {
  const Machines& machines;
  const int count;
  TempDir dir;
  std::string out = dir / "out", ssh = dir / "reach";
  int places = 1;  // of each machine

  Started(const Machines& m, int n) : machines(m), count(n) { machines.write_ssh(ssh); }

  std::string hosts() const {
    std::string names;
    for (int i = 0; i < count; ++i) names += (i > 0 ? "," : "") + machines.name(i);
    return names;
  }
  /// `troupe train` with what each start needs.
  std::vector<std::string> training(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"--quiet", "--places", std::to_string(places)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return train(out, arguments);
  }
  std::vector<std::string> mpirun(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"mpirun", "--allow-run-as-root",       "--mca", "plm_rsh_agent", ssh,
                                   "--mca",  "odls_base_sigkill_timeout", "5",     "--host",        hosts(),
                                   "-n",     std::to_string(count)};
    const auto command = training(more);
    words.insert(words.end(), command.begin(), command.end());
    return machines.on(0, words);
  }
  std::vector<std::string> by_ssh(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"--hosts", hosts(), "--ssh", ssh};
    words.insert(words.end(), more.begin(), more.end());
    return machines.on(0, training(words));
  }
  /// Ends the machine on which a process is: the first process of its namespace, and all others with it.
  static void kill_machine_of(pid_t pid) {
    const auto space = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/pid");
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      const std::string status = read(entry.path().string() + "/status");
      const auto at = status.find("NSpid:");
      if (at == std::string::npos || std::filesystem::read_symlink(entry.path() / "ns/pid", error) != space) continue;
      if (status.substr(at, status.find('\n', at) - at).ends_with("\t1"))
        ::kill(std::stoi(entry.path().filename()), SIGKILL);
    }
  }
};

/// Why no run can be started by mpirun on machines here; empty: it can.
std::string no_mpi() { return is_installed("mpirun") ? "" : "mpirun is not installed (openmpi-bin)"; }

/// Open MPI may have warnings of its own.
void check_mpi_success(const Outcome& o) {
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(o.err.find("troupe: ") == std::string::npos);
  check_nothing_left(o);
}

}  // namespace

TEST_CASE("mpirun starts a run on four machines, which trains bitwise like one worker") {
  if (const auto why = no_mpi(); !why.empty()) return skip(why);
  const Machines machines(4);
  if (!machines.ok) return skip(Machines::why_not);
  const std::vector<std::string> steps{"--steps", "20"};
  Started job(machines, 4);
  check_mpi_success(run(job.mpirun({"--mesh", "dp=2,pp=2", "--steps", "20"}), 60));
  CHECK(told_by(job.out) == told_alone(steps));
  CHECK(invitations_in(job.out) == 0);
}

TEST_CASE("a run that mpirun has started ends with a checkpoint when mpirun is told to end, and goes on bitwise") {
  if (const auto why = no_mpi(); !why.empty()) return skip(why);
  const Machines machines(4);
  if (!machines.ok) return skip(Machines::why_not);
  const std::vector<std::string> words{"--mesh", "dp=4", "--steps", "300", "--set", "schedule.batch=8"};
  Started job(machines, 4);
  std::vector<std::string> more = words;
  more.insert(more.end(), {"--checkpoint-every", "1000"});
  Run first(job.mpirun(more));
  REQUIRE(first.wait_for_lines(job.out + "/metrics.jsonl", 20));
  first.send_to_group(SIGTERM);
  const Outcome o = first.wait(60);
  INFO(o.err);
  CHECK(o.err.find("interrupted by Terminated after step ") != std::string::npos);
  check_nothing_left(o);
  CHECK(std::filesystem::exists(job.out + "/checkpoints"));
  CHECK(count_lines(job.out + "/metrics.jsonl") < 300);
  more.insert(more.end(), {"--resume", "latest"});
  check_mpi_success(run(job.mpirun(more), 60));
  CHECK(told_by(job.out) == told_alone({"--steps", "300", "--set", "schedule.batch=8"}));
}
TEST_CASE(
    "a run that mpirun has started ends with its job when a node is lost, and goes on bitwise from a checkpoint") {
  if (const auto why = no_mpi(); !why.empty()) return skip(why);
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  std::vector<std::string> more{"--mesh", "dp=2", "--steps", "300", "--set", "schedule.batch=8", "--checkpoint-every",
                                "10"};
  Started job(machines, 2);
  Run first(job.mpirun(more));
  REQUIRE(first.wait_for_lines(job.out + "/metrics.jsonl", 30));
  const auto workers = first.workers();
  REQUIRE(workers.size() == 2);
  job.kill_machine_of(workers[1]);
  const Outcome o = first.wait(60);
  INFO(o.err);
  CHECK(o.code != exit_ok);
  check_nothing_left(o);
  more.insert(more.end(), {"--resume", "latest"});
  check_mpi_success(run(job.mpirun(more), 60));
  CHECK(told_by(job.out) == told_alone({"--steps", "300", "--set", "schedule.batch=8"}));
}

TEST_CASE("several processes that mpirun has started on one node are refused in one line") {
  if (const auto why = no_mpi(); !why.empty()) return skip(why);
  TempDir dir;
  std::vector<std::string> words{"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"};
  const auto command = train(dir / "out", {"--quiet"});
  words.insert(words.end(), command.begin(), command.end());
  const Outcome o = run(words);
  INFO(o.err);
  CHECK(o.code == exit_usage);
  const auto at = o.err.find("troupe: Open MPI has started 2 tasks on one node");
  REQUIRE(at != std::string::npos);
  CHECK(o.err.find("troupe: ", at + 1) == std::string::npos);
  check_nothing_left(o);
}

TEST_CASE("--hosts starts an agent on each host, and the run trains bitwise like one worker") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  Started job(machines, 2);
  job.places = 2;
  check_success(run(job.by_ssh({"--mesh", "dp=2,pp=2", "--steps", "20"}), 60));
  CHECK(told_by(job.out) == told_alone({"--steps", "20"}));
}

TEST_CASE("a run on hosts ends with a checkpoint by Ctrl-C, which no agent hears, and goes on bitwise") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  Started job(machines, 2);
  std::vector<std::string> more{"--mesh", "dp=2", "--steps", "300", "--set", "schedule.batch=8", "--checkpoint-every",
                                "1000"};
  Run first(job.by_ssh(more));
  REQUIRE(first.wait_for_lines(job.out + "/metrics.jsonl", 20));
  first.send_to_group(SIGINT);
  const Outcome o = first.wait();
  INFO(o.err);
  CHECK(o.code == exit_interrupted);
  CHECK(o.err.find("interrupted by Interrupt after step ") != std::string::npos);
  check_nothing_left(o);
  more.insert(more.end(), {"--resume", "latest"});
  check_success(run(job.by_ssh(more), 60));
  CHECK(told_by(job.out) == told_alone({"--steps", "300", "--set", "schedule.batch=8"}));
}

TEST_CASE("a run on hosts that is killed leaves no agent and no worker on any") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  Started job(machines, 2);
  Run command(job.by_ssh({"--mesh", "dp=2", "--steps", "10000000"}));
  REQUIRE(command.wait_for_lines(job.out + "/metrics.jsonl", 3));
  CHECK(command.workers().size() == 2);
  command.send_to_group(SIGKILL);
  check_nothing_left(command.wait());
}

TEST_CASE("a host that cannot be reached ends the run at once, in one line with its name") {
  TempDir dir;
  const auto on_hosts = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--quiet", "--steps", "1", "--listen", "127.0.0.1:0"};
    words.insert(words.end(), more.begin(), more.end());
    return run(train(dir / "out", words));
  };
  const Outcome o = on_hosts({"--hosts", "a,b", "--ssh", "false"});
  check_one_line(o, exit_worker, {"the agent of machine ", " has ended: its command exited with code 1"});
  CHECK(o.seconds < 10);
  check_one_line(on_hosts({"--hosts", "a", "--ssh", "/nonexistent/ssh"}), exit_worker,
                 {"machine a: cannot start '/nonexistent/ssh': No such file"});
  check_one_line(on_hosts({"--hosts", "a,a"}), exit_usage, {"--hosts has a twice"});
  check_one_line(on_hosts({"--hosts", "a,-oProxyCommand=x"}), exit_usage, {"--hosts '-oProxyCommand=x'"});
  check_one_line(on_hosts({"--hosts", "a;b"}), exit_usage, {"--hosts 'a;b'"});
  check_one_line(on_hosts({}), exit_usage, {"--listen is for a run on several machines"});
  check_one_line(run(train(dir / "out", {"--places", "2"})), exit_usage, {"--places is for a run on several machines"});
  check_one_line(run(troupe_command({"agent"})), exit_usage, {"--join HOST:PORT --token-file FILE"});
  const Outcome uninvited = run(troupe_command({"agent", "--invited"}));
  CHECK(uninvited.code == exit_interrupted);
  CHECK(uninvited.err.empty());  // whose command it is says why
}

namespace {

/// Why there can be no cluster of Slurm here; empty: there can.
std::string no_slurm() {
  for (const char* program : {"slurmctld", "slurmd", "srun", "sbatch", "munged"})
    if (!is_installed(program))
      return std::string(program) + " is not installed (slurmctld, slurmd, slurm-client, munge)";
  return ::geteuid() == 0 ? "" : "a cluster of Slurm is started by root only";
}

/// The script of a job, as docs/launchers.md has it, the same for each attempt: one that a signal has ended is queued
/// again.
std::string write_job(const Started& job, const std::vector<std::string>& more) {
  const std::string path = job.dir / "job.sh";
  std::ofstream script(path);
  script << "#!/bin/sh\nsrun";
  for (const auto& word : train(job.out, more)) script << " '" << word << "'";
  script << " --resume auto\ncode=$?\n"
            "if [ $code = 130 ]; then scontrol requeue $SLURM_JOB_ID; fi\nexit $code\n";
  script.close();
  REQUIRE(::chmod(path.c_str(), 0700) == 0);
  return path;
}

bool wait_for_steps(const std::string& out, int count) {
  for (int tries = 0; tries < 3000 && count_lines(out + "/metrics.jsonl") < count; ++tries) ::usleep(10'000);
  return count_lines(out + "/metrics.jsonl") >= count;
}

/// A job of Slurm on two nodes that `disturb` has end before its last step is queued again, and comes to the bits of
/// one worker.
void requeue_by(const std::function<void(const Slurm&, const std::string& job, const Machines&)>& disturb) {
  if (const auto why = no_slurm(); !why.empty()) return skip(why);
  const Machines machines(3);
  if (!machines.ok) return skip(Machines::why_not);
  const Slurm slurm(machines, 3);
  INFO(slurm.log());
  REQUIRE(slurm.ok);
  const Started started(machines, 3);
  const std::vector<std::string> steps{"--steps", "300", "--set", "schedule.batch=8"};
  std::vector<std::string> more{"--quiet", "--mesh", "dp=2", "--checkpoint-every", "10"};
  more.insert(more.end(), steps.begin(), steps.end());
  const std::string log = started.dir / "log", job = slurm.submit(write_job(started, more), log);
  REQUIRE(wait_for_steps(started.out, 30));
  disturb(slurm, job, machines);
  REQUIRE(slurm.wait_for(job, "PENDING", 60));
  ::sleep(2);  // Slurm itself would have it wait for two minutes
  CHECK(slurm.ask({"scontrol", "update", "jobid=" + job, "starttime=now"}).code == 0);
  CHECK(count_lines(started.out + "/metrics.jsonl") < 300);
  const bool completed = slurm.wait_for(job, "COMPLETED", 120);
  INFO(read(log));
  CHECK(completed);
  CHECK(told_by(started.out) == told_alone(steps));
  CHECK(slurm.processes() == 0);
  CHECK(invitations_in(started.out) == 0);
}

}  // namespace

TEST_CASE("a job of Slurm that is told to end saves a checkpoint, is queued again, and goes on bitwise") {
  requeue_by([](const Slurm& slurm, const std::string& job, const Machines&) {
    CHECK(slurm.ask({"scancel", "--signal=TERM", job}).code == 0);
  });
}

TEST_CASE("a job of Slurm whose node is set down is queued again, and goes on bitwise from its newest checkpoint") {
  requeue_by([](const Slurm& slurm, const std::string&, const Machines& machines) {
    CHECK(slurm.ask({"scontrol", "update", "nodename=" + machines.name(2), "state=down", "reason=test"}).code == 0);
    ::sleep(1);
    CHECK(slurm.ask({"scontrol", "update", "nodename=" + machines.name(2), "state=resume"}).code == 0);
  });
}

TEST_CASE("several tasks of Slurm on one node are refused in one line") {
  if (const auto why = no_slurm(); !why.empty()) return skip(why);
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const Slurm slurm(machines, 2);
  INFO(slurm.log());
  REQUIRE(slurm.ok);
  TempDir dir;
  std::vector<std::string> words{"srun", "-N", "1", "-n", "2", "--overcommit"};
  const auto command = train(dir / "out", {"--quiet"});
  words.insert(words.end(), command.begin(), command.end());
  const Outcome o = slurm.ask(words);
  INFO(o.err);
  CHECK(o.code == exit_usage);
  const auto at = o.err.find("troupe: Slurm has started 2 tasks on one node");
  REQUIRE(at != std::string::npos);
  CHECK(o.err.find("troupe: ", at + 1) == std::string::npos);
}
