#include "tests/runtime/etcd_members.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace troupe::test {

namespace {

/// Ports that are free now, each another one.
std::vector<std::string> free_ports(std::size_t count) {
  std::vector<int> sockets;
  std::vector<std::string> ports;
  for (std::size_t i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    ports.push_back(std::to_string(ntohs(address.sin_port)));
    sockets.push_back(fd);
  }
  for (const int fd : sockets) ::close(fd);
  return ports;
}

/// Starts a program that ends with this process; its output goes to `out`.
int start_program(const std::vector<std::string>& words, const std::string& out) {
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const int parent = ::getpid(), pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  const int fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

int run_program(const std::vector<std::string>& words, std::string* said) {
  troupe::test::TempDir dir;
  const int pid = start_program(words, dir / "out");
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (said) *said = troupe::test::read_text(dir / "out");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

EtcdMembers::EtcdMembers(std::size_t count, const EtcdTls& tls) : tls_(tls) {
  const auto ports = free_ports(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    members_.push_back({"m" + std::to_string(i), "127.0.0.1:" + ports[2 * i], "http://127.0.0.1:" + ports[2 * i + 1]});
    cluster_ += (i > 0 ? "," : "") + members_[i].name + "=" + members_[i].peer;
  }
  for (auto& member : members_) start(member, true);
  static_cast<void>(leader());
}

EtcdMembers::~EtcdMembers() {
  for (std::size_t i = 0; i < size(); ++i) kill(i);
}

void EtcdMembers::start(Member& member, bool first) {
  const std::string client = (tls_.ca.empty() ? "http://" : "https://") + member.client;
  std::vector<std::string> words = {"etcd",
                                    "--name",
                                    member.name,
                                    "--data-dir",
                                    dir_ / member.name,
                                    "--listen-client-urls",
                                    client,
                                    "--advertise-client-urls",
                                    client,
                                    "--listen-peer-urls",
                                    member.peer,
                                    "--initial-advertise-peer-urls",
                                    member.peer,
                                    "--initial-cluster",
                                    cluster_,
                                    "--initial-cluster-state",
                                    first ? "new" : "existing",
                                    "--heartbeat-interval",
                                    "20",
                                    "--election-timeout",
                                    "200",
                                    "--auth-token-ttl",
                                    "2",
                                    "--logger",
                                    "zap",
                                    "--log-level",
                                    "error"};
  // A member that begins again repeats what came after its newest snapshot, and has forgotten older tokens.
  words.insert(words.end(), {"--snapshot-count", "10"});
  if (!tls_.ca.empty()) {
    words.insert(words.end(), {"--cert-file", tls_.cert, "--key-file", tls_.key});
    if (tls_.wants_clients) words.insert(words.end(), {"--client-cert-auth", "--trusted-ca-file", tls_.ca});
  }
  member.pid = start_program(words, dir_ / (member.name + ".log"));
}

std::string EtcdMembers::url(const std::string& prefix) const {
  std::string text;
  for (const auto& member : members_) text += (text.empty() ? "" : ",") + member.client;
  return (tls_.ca.empty() ? "etcd://" : "etcds://") + text + prefix;
}

void EtcdMembers::kill(std::size_t member) {
  int& pid = members_[member].pid;
  if (pid < 0) return;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  pid = -1;
}

void EtcdMembers::stop(std::size_t member) {
  ::kill(members_[member].pid, SIGSTOP);
  REQUIRE(::waitpid(members_[member].pid, nullptr, WUNTRACED) == members_[member].pid);
}

void EtcdMembers::go_on(std::size_t member) { ::kill(members_[member].pid, SIGCONT); }
void EtcdMembers::restart(std::size_t member) { start(members_[member], false); }

std::size_t EtcdMembers::leader() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < until) {
    for (std::size_t i = 0; i < size(); ++i) {
      if (members_[i].pid < 0) continue;
      std::vector<std::string> words = {"etcdctl", "--endpoints", members_[i].client, "--command-timeout",
                                        "2s",      "endpoint",    "status",           "-w",
                                        "fields"};
      if (!tls_.ca.empty()) {
        words[2] = "https://" + words[2];
        words.insert(words.end(), {"--cacert", tls_.ca, "--cert", tls_.cert, "--key", tls_.key});
      }
      std::string said;
      if (run_program(words, &said) != 0) continue;
      const auto field = [&](const std::string& name) {
        const auto at = said.find("\"" + name + "\" : ");
        return at == std::string::npos ? ""
                                       : said.substr(at + name.size() + 5, said.find('\n', at) - at - name.size() - 5);
      };
      if (!field("Leader").empty() && field("Leader") == field("MemberID")) return i;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL("the members of etcd have no leader: " << troupe::test::read_text(dir_ / (members_[0].name + ".log")));
  return 0;
}

std::string EtcdMembers::ctl(const std::vector<std::string>& words) const {
  std::vector<std::string> all = {"etcdctl", "--endpoints", members_[0].client};
  all.insert(all.end(), words.begin(), words.end());
  std::string said;
  const int code = run_program(all, &said);
  REQUIRE_MESSAGE(code == 0, said);
  return said;
}

}  // namespace troupe::test
