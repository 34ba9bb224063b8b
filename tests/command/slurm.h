// A cluster of Slurm for tests: its controller on the first machine, and a node on each of the others (machines.h).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/command/checks.h"
#include "tests/command/machines.h"

namespace troupe::test {

class Slurm {
 public:
  bool ok = false;  ///< the nodes take jobs; else log() says why not

  /// Nodes are machines 1, 2, ... of `count`. REQUIRES: the programs of Slurm and munge are installed.
  Slurm(const Machines& machines, int count) : machines_(machines), count_(count) {
    write_configuration();
    run_daemon({"munged", "--force", "--foreground", "--key-file=" + dir_ / "munge.key",
                "--socket=" + dir_ / "munge.socket", "--pid-file=" + dir_ / "munged.pid",
                "--log-file=" + dir_ / "munged.log", "--seed-file=" + dir_ / "munge.seed"});
    for (int i = 0; i < 500 && !std::filesystem::exists(dir_ / "munge.socket"); ++i) ::usleep(10'000);
    run_daemon(machines_.on(0, {"slurmctld", "-D", "-f", configuration()}));
    for (int i = 1; i < count_; ++i)
      run_daemon(machines_.on(i, {"slurmd", "-D", "-f", configuration(), "-N", machines_.name(i)}));
    for (int tries = 0; tries < 100 && !ok; ++tries) {
      ok = ask({"sinfo", "-h", "-N", "-o", "%T"}).out == idle();
      if (!ok) ::usleep(200'000);
    }
  }

  /// A command of Slurm, as a user gives it on the first machine.
  Outcome ask(const std::vector<std::string>& command) const {
    std::vector<std::string> words{"env", "SLURM_CONF=" + configuration()};
    words.insert(words.end(), command.begin(), command.end());
    return run(machines_.on(0, words), 30);
  }
  /// Gives Slurm a job of all nodes, one task on each; returns its number. What it puts out goes to `log`.
  std::string submit(const std::string& script, const std::string& log) const {
    const Outcome o = ask({"sbatch", "--parsable", "-N", std::to_string(count_ - 1), "--ntasks-per-node=1", "--requeue",
                           "--open-mode=append", "-o", log, script});
    INFO(o.err);
    REQUIRE(o.code == 0);
    return o.out.substr(0, o.out.find_first_of(";\n"));
  }
  std::string state_of(const std::string& job) const {
    const std::string text = ask({"scontrol", "-o", "show", "job", job}).out, key = "JobState=";
    const auto at = text.find(key);
    if (at == std::string::npos) return "";
    return text.substr(at + key.size(), text.find(' ', at) - at - key.size());
  }
  bool wait_for(const std::string& job, const std::string& state, int limit_s) const {
    for (int tries = 0; tries < limit_s * 4; ++tries) {
      if (state_of(job) == state) return true;
      ::usleep(250'000);
    }
    return false;
  }
  /// Processes of its jobs that live.
  int processes() const {
    int count = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      const std::string environment = read(entry.path().string() + "/environ");
      count += environment.find("SLURM_CONF=" + configuration()) != std::string::npos &&
                       environment.find("SLURM_PROCID=") != std::string::npos
                   ? 1
                   : 0;
    }
    return count;
  }
  std::string log() const {
    std::string text = read(dir_ / "slurmctld.log");
    for (int i = 1; i < count_; ++i) text += read(dir_ / (machines_.name(i) + ".log"));
    return text;
  }

 private:
  std::string configuration() const { return dir_ / "slurm.conf"; }
  std::string idle() const {
    std::string text;
    for (int i = 1; i < count_; ++i) text += "idle\n";
    return text;
  }
  void run_daemon(std::vector<std::string> words) {
    std::vector<std::string> quiet{"sh", "-c", "exec \"$@\" >/dev/null 2>&1", "sh"};
    quiet.insert(quiet.end(), words.begin(), words.end());
    daemons_.push_back(std::make_unique<Run>(quiet));
  }
  void write_configuration() const {
    std::filesystem::permissions(dir_.path(), std::filesystem::perms(0755));
    std::filesystem::create_directory(dir_ / "state");
    std::ofstream(dir_ / "munge.key") << std::string(1024, 'm');
    std::filesystem::permissions(dir_ / "munge.key", std::filesystem::perms(0600));
    std::ofstream(dir_ / "cgroup.conf") << "CgroupPlugin=cgroup/v1\n";  // is loaded, and not used
    std::ofstream conf(configuration());
    conf << "ClusterName=test\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nCredType=cred/munge\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n"
            "SelectType=select/linear\nSchedulerType=sched/builtin\nReturnToService=1\nKillWait=5\n"
            "SlurmdParameters=config_overrides\n"
         << "SlurmctldHost=" << machines_.name(0) << "(" << Machines::address(0)
         << ")\n"
         // A job that is queued again begins once no credential of its last start is valid any more.
         << "AuthInfo=socket=" << dir_ / "munge.socket"
         << ",cred_expire=10\n"
         << "StateSaveLocation=" << dir_ / "state"
         << "\nSlurmdSpoolDir=" << dir_ / "spool-%n"
         << "\n"
         << "SlurmctldPidFile=" << dir_ / "slurmctld.pid"
         << "\nSlurmdPidFile=" << dir_ / "slurmd-%n.pid"
         << "\n"
         << "SlurmctldLogFile=" << dir_ / "slurmctld.log"
         << "\nSlurmdLogFile=" << dir_ / "%n.log"
         << "\n";
    std::string nodes;
    for (int i = 1; i < count_; ++i) {
      conf << "NodeName=" << machines_.name(i) << " NodeAddr=" << Machines::address(i) << " CPUs=1 RealMemory=1000\n";
      nodes += (i > 1 ? "," : "") + machines_.name(i);
    }
    conf << "PartitionName=all Nodes=" << nodes << " Default=YES MaxTime=INFINITE State=UP\n";
  }

  const Machines& machines_;
  const int count_;
  TempDir dir_;
  std::vector<std::unique_ptr<Run>> daemons_;  // end before the folder goes
};

}  // namespace troupe::test
