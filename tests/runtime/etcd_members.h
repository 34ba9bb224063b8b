// A real etcd of several members on this machine's loopback, for tests: each a process that ends with the test.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/apps/temp_dir.h"

namespace troupe::test {

/// Whether a program is there; PATH counts.
bool has_program(const std::string& name);

/// Runs a program to its end, and returns its exit code; -1: it has none. What it says goes to `said`.
int run_program(const std::vector<std::string>& words, std::string* said = nullptr);

/// The files of a server's certificate, its key, and the authority that has signed it; empty: no TLS.
struct EtcdTls {
  std::string ca, cert, key;
  bool wants_clients = false;  ///< only a client with a certificate of the authority is heard
};

class EtcdMembers {
 public:
  /// Starts `count` members and waits until each answers.
  explicit EtcdMembers(std::size_t count, const EtcdTls& tls = {});
  /// Kills them.
  ~EtcdMembers();
  EtcdMembers(const EtcdMembers&) = delete;
  EtcdMembers& operator=(const EtcdMembers&) = delete;

  std::size_t size() const { return members_.size(); }
  /// "127.0.0.1:12345".
  const std::string& endpoint(std::size_t member) const { return members_[member].client; }
  /// "etcd://..." of all members, with a prefix ("/x") or without.
  std::string url(const std::string& prefix = "") const;

  void kill(std::size_t member);
  void stop(std::size_t member);     ///< SIGSTOP
  void go_on(std::size_t member);    ///< SIGCONT
  void restart(std::size_t member);  ///< of one that was killed, with its data
  std::size_t leader() const;        ///< waits until there is one

  /// Runs etcdctl; returns what it has printed. Its exit code must be 0.
  std::string ctl(const std::vector<std::string>& words) const;

 private:
  struct Member {
    std::string name, client, peer;
    int pid = -1;
  };
  void start(Member& member, bool first);

  troupe::test::TempDir dir_;
  EtcdTls tls_;
  std::string cluster_;
  std::vector<Member> members_;
};

}  // namespace troupe::test
