// A real etcd of three members, each on a machine of its own (machines.h), for tests.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/apps/temp_dir.h"
#include "tests/command/machines.h"
#include "tests/command/run.h"

namespace troupe::test {

class EtcdOnMachines {
 public:
  static constexpr const char* why_not = "etcd is not installed (etcd-server, etcd-client)";

  /// Members on the machines `first` to `first` + 2.
  EtcdOnMachines(const Machines& machines, int first) : machines_(machines), first_(first) {
    for (int i = 0; i < 3; ++i) members.push_back(std::make_unique<Run>(machines_.on(first_ + i, command(i))));
    ok = answers();
  }
  static bool is_installed() { return run({"sh", "-c", "command -v etcd etcdctl"}).code == 0; }
  /// "etcd://A:2379,B:2379,C:2379", beginning with this member, which is asked first.
  std::string url(int first = 0) const {
    std::string text;
    for (int i = 0; i < 3; ++i) text += (i == 0 ? "etcd://" : ",") + at((first + i) % 3, client_port);
    return text;
  }
  /// Whether it answers within 20 s.
  bool answers() const { return run(etcdctl({"--command-timeout=20s", "put", "test", "1"})).code == 0; }
  /// What it says of a key, or of all keys with this prefix.
  std::string keys(const std::string& prefix) const {
    return run(etcdctl({"get", "--prefix", "--keys-only", prefix})).out;
  }

  /// The member that leads etcd itself; -1: it does not say.
  int leader() const {
    std::istringstream members_of(run(etcdctl({"endpoint", "status"})).out);  // ENDPOINT, ID, VERSION, SIZE, LEADS, ...
    for (std::string line; std::getline(members_of, line);)
      if (line.find(", true, false, ") != std::string::npos)
        for (int i = 0; i < 3; ++i)
          if (line.find(at(i, client_port) + ",") == 0) return i;
    return -1;
  }

  /// A command that writes each value that a key gets into a file: of a pipe that is read in the end it would wait.
  std::vector<std::string> watch(const std::string& key, const std::string& file) const {
    return etcdctl({"watch", key}, {"sh", "-c", "exec \"$@\" > '" + file + "'", "sh"});
  }

  std::vector<std::unique_ptr<Run>> members;
  bool ok = false;

 private:
  static constexpr const char *client_port = "2379", *peer_port = "2380";
  std::string at(int i, const char* port) const { return Machines::address(first_ + i) + ":" + port; }
  static std::string name(int i) { return "member" + std::to_string(i); }
  std::vector<std::string> command(int i) const {
    std::string cluster;
    for (int k = 0; k < 3; ++k) cluster += (k == 0 ? "" : ",") + name(k) + "=http://" + at(k, peer_port);
    return {"etcd",
            "--name",
            name(i),
            "--data-dir",
            dir_ / name(i),
            "--listen-client-urls",
            "http://" + at(i, client_port),
            "--advertise-client-urls",
            "http://" + at(i, client_port),
            "--listen-peer-urls",
            "http://" + at(i, peer_port),
            "--initial-advertise-peer-urls",
            "http://" + at(i, peer_port),
            "--initial-cluster",
            cluster,
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
            "--log-level",
            "error"};
  }
  std::vector<std::string> etcdctl(std::vector<std::string> words, std::vector<std::string> under = {}) const {
    std::string all;
    for (int i = 0; i < 3; ++i) all += (i == 0 ? "" : ",") + at(i, client_port);
    words.insert(words.begin(), {"env", "ETCDCTL_API=3", "etcdctl", "--endpoints", all});
    under.insert(under.end(), words.begin(), words.end());
    return machines_.on(first_, under);
  }

  const Machines& machines_;
  const int first_;
  TempDir dir_;
};

}  // namespace troupe::test
