// Machines for tests: each a set of namespaces of its own (network, IPC, host name, processes, mounts) with its own
// /dev/shm, all on one switch.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace troupe::test {

class Machines {
 public:
  static constexpr const char* why_not = "namespaces are not allowed here (`ip netns add`, veth, unshare)";
  bool ok = false;

  explicit Machines(int count) {
    ok = shell("ip netns add " + switch_) && shell("ip -n " + switch_ + " link add name bridge0 type bridge") &&
         shell("ip -n " + switch_ + " link set bridge0 up");
    for (int i = 0; ok && i < count; ++i) {
      const std::string m = name(i);
      ok = shell("ip netns add " + m);
      count_ += ok ? 1 : 0;
      ok = ok && shell("ip link add " + m + " netns " + m + " type veth peer name " + m + " netns " + switch_) &&
           shell("ip -n " + switch_ + " link set " + m + " master bridge0 up") &&
           shell("ip -n " + m + " addr add " + address(i) + "/24 dev " + m) &&
           shell("ip -n " + m + " link set " + m + " up") && shell("ip -n " + m + " link set lo up");
    }
    for (int i = 0; i < count_; ++i)  // a cable needs a moment after both its ends are up
      for (int tries = 0;
           ok && tries < 100 &&
           !shell("ip netns exec " + name(i) + " cat /sys/class/net/" + name(i) + "/operstate | grep -q up");
           ++tries)
        ::usleep(20'000);
    ok = ok && shell(join(on(0, {"true"})));
  }
  ~Machines() {
    for (int i = 0; i < count_; ++i) shell("ip netns del " + name(i));
    shell("ip netns del " + switch_);
  }
  Machines(const Machines&) = delete;

  /// The name of a machine, and of its network device. At most 15 letters.
  std::string name(int i) const { return "trm" + std::to_string(::getpid()) + static_cast<char>('a' + i); }
  static std::string address(int i) { return "10.77.8." + std::to_string(i + 1); }
  /// A command as it runs on a machine. Its processes end with it.
  std::vector<std::string> on(int i, const std::vector<std::string>& command) const {
    std::vector<std::string> words{
        "ip",     "netns",        "exec",
        name(i),  "unshare",      "--uts",
        "--ipc",  "--pid",        "--mount",
        "--fork", "--kill-child", "--mount-proc",
        "sh",     "-c",           "mount -t tmpfs none /dev/shm && hostname " + name(i) + " && exec \"$@\"",
        "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  /// Writes a program that is called as ssh is, HOST COMMAND..., and runs the command's words, as a shell reads them,
  /// on the machine of that name.
  void write_ssh(const std::string& path) const {
    std::ofstream(path) << R"(#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts --ipc --pid --mount --fork --kill-child --mount-proc sh -c \
  'mount -t tmpfs none /dev/shm && hostname "$1" && exec sh -c "$2"' sh "$host" "$*"
)";
    ::chmod(path.c_str(), 0700);
  }
  /// No packet passes between a machine and the others any more; or all pass again.
  void cut(int i) const { shell("ip -n " + switch_ + " link set " + name(i) + " down"); }
  void heal(int i) const { shell("ip -n " + switch_ + " link set " + name(i) + " up"); }
  /// What a machine sends passes at this rate; what waits is never dropped. False: this kernel has no tbf.
  bool limit_rate(int i, int megabits_per_s) const {
    return shell("ip netns exec " + name(i) + " tc qdisc add dev " + name(i) + " root tbf rate " +
                 std::to_string(megabits_per_s) + "mbit burst 128kb limit 64mb");
  }
  /// No packet passes from one machine to another one any more, as if it went nowhere; or all pass again.
  void cut_way(int from, int to) const {
    shell(neighbour("replace", from, to) + " lladdr 02:00:00:00:00:01 nud permanent");
  }
  void heal_way(int from, int to) const { shell(neighbour("del", from, to)); }

 private:
  std::string neighbour(const std::string& what, int from, int to) const {
    return "ip -n " + name(from) + " neigh " + what + " " + address(to) + " dev " + name(from);
  }
  static bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  static std::string join(const std::vector<std::string>& words) {
    std::string text;
    for (const auto& word : words) text += "'" + word + "' ";
    return text;
  }

  const std::string switch_ = "trs" + std::to_string(::getpid());
  int count_ = 0;
};

}  // namespace troupe::test
