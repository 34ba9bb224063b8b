// Runs whose ports are reached by strangers, which have not the token: they go on as if no stranger had come.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stop_token>
#include <thread>

#include "tests/command/checks.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// A descriptor that is closed with this object.
class Open {
 public:
  explicit Open(int fd) : fd_(fd) {}
  ~Open() {
    if (fd_ >= 0) ::close(fd_);
  }
  Open(Open&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  operator int() const { return fd_; }

 private:
  int fd_;
};

sockaddr_in at_loopback(int port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return at;
}
/// Connected, or not; does not wait long.
Open stranger_at(int port) {
  Open fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 0, .tv_usec = 100'000};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const sockaddr_in at = at_loopback(port);
  (void)::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at);
  return fd;
}
/// Listens at a port of 127.0.0.1 that the system chooses.
Open listener() {
  Open fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in at = at_loopback(0);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(::listen(fd, 8) == 0);
  return fd;
}
int port_of(int fd) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
  return ntohs(at.sin_port);
}
int free_port() { return port_of(listener()); }

/// Stands between an agent and its run, and keeps what the agent sends first.
class Recorder {
 public:
  explicit Recorder(int to) : to_(to), thread_([this] { pass(); }) {}
  ~Recorder() {
    over_ = true;
    thread_.join();
  }
  int port() const { return port_of(listener_); }
  std::string heard() const {
    std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  void pass() {
    pollfd waits{listener_, POLLIN, 0};
    while (!over_ && ::poll(&waits, 1, 50) <= 0) {}
    if (over_) return;
    const Open agent(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)), run = stranger_at(to_);
    pollfd both[] = {{agent, POLLIN, 0}, {run, POLLIN, 0}};
    std::string chunk(1 << 16, '\0');
    while (!over_) {
      if (::poll(both, 2, 50) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (both[i].revents == 0) continue;
        const ssize_t n = ::recv(both[i].fd, chunk.data(), chunk.size(), 0);
        if (n <= 0) return;
        if (i == 0) {
          std::lock_guard lock(mutex_);
          if (heard_.size() < 4096) heard_.append(chunk, 0, static_cast<std::size_t>(n));
        }
        for (ssize_t sent = 0; sent < n;) {
          const ssize_t m = ::send(both[1 - i].fd, chunk.data() + sent, static_cast<std::size_t>(n - sent),
                                   MSG_NOSIGNAL);
          if (m <= 0) return;
          sent += m;
        }
      }
    }
  }

  const int to_;
  const Open listener_ = listener();
  mutable std::mutex mutex_;
  std::string heard_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

void say(int fd, const std::string& text) { (void)::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }

/// Sends what no agent does: garbage, proofs of another token, a real agent's bytes again, frames of every size, and
/// connections that say nothing, of which `kept` stay open at a time. Returns how many of those were made.
int attack(int port, const std::string& recorded, int silent, std::size_t kept, const std::stop_token& stop = {}) {
  const std::string opening(64, '\7');
  for (int i = 0; i < 200 && !stop.stop_requested(); ++i) {
    const Open garbage = stranger_at(port), proof = stranger_at(port), again = stranger_at(port),
               large = stranger_at(port);
    say(garbage, std::string(1 + static_cast<std::size_t>(i) * 37, static_cast<char>(i)));
    say(proof, opening + std::string(32, static_cast<char>(i)));
    say(again, recorded);
    say(large, opening + std::string(1 << 17, '\xff'));
  }
  std::deque<Open> open;
  int made = 0;
  for (int i = 0; i < silent && !stop.stop_requested(); ++i) {
    open.push_back(stranger_at(port));
    made += ::recv(open.back(), nullptr, 0, MSG_DONTWAIT) >= 0 || errno != ENOTCONN ? 1 : 0;
    if (open.size() > kept) open.pop_front();
  }
  return made;
}

/// Garbage, a request that is too long, and connections that say nothing at the socket of `troupe ps`.
void attack_socket(const std::string& path, const std::stop_token& stop) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof at.sun_path);
  path.copy(at.sun_path, path.size());
  std::deque<Open> open;
  for (int i = 0; i < 1000 && !stop.stop_requested(); ++i) {
    Open fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at);  // its queue may be full
    if (i % 3 == 0) say(fd, std::string(static_cast<std::size_t>(i) * 30, static_cast<char>(i)));
    open.push_back(std::move(fd));
    if (open.size() > 200) open.pop_front();
    ::usleep(200);
  }
}

std::int64_t resident_kib(pid_t pid) {
  std::istringstream status(read("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
  return -1;
}
double cpu_of(pid_t pid) {
  const std::string stat = read("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream rest(stat.substr(stat.rfind(')') + 2));
  std::string word;
  std::int64_t user = 0, system = 0;
  for (int i = 0; i < 11; ++i) rest >> word;
  rest >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// Losses, norms and the digest of the parameters: what must not depend on who connects.
std::string numbers_of(const std::string& out) {
  std::string text = nlohmann::json::parse(read(out + "/run.json"))["params_hash"].get<std::string>() + "\n";
  std::istringstream lines(read(out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    for (const char* key : {"step", "loss", "grad_norm", "eval_loss"})
      if (object.contains(key)) text += std::string(key) + " " + object[key].dump() + " ";
    text += "\n";
  }
  return text;
}

/// The addresses at which a process listens, as /proc/net/tcp has them: "0100007F" is 127.0.0.1.
std::vector<std::string> listens_at(pid_t pid) {
  std::string sockets;
  std::error_code gone;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone))
    sockets += std::filesystem::read_symlink(fd.path(), gone).string() + "\n";
  std::vector<std::string> addresses;
  for (const std::string table : {"tcp", "tcp6"}) {
    std::istringstream lines(read("/proc/" + std::to_string(pid) + "/net/" + table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state == "0A" && sockets.find("socket:[" + inode + "]\n") != std::string::npos)
        addresses.push_back(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

/// A run of two agents on this machine, under `prefix`, that strangers reach before its agents have joined, and while
/// it trains.
void run_among_strangers(const std::vector<std::string>& prefix) {
  TempDir dir;
  const std::string out = dir / "out", token = dir / "token";
  std::ofstream(token) << std::string(40, 't') << "\n";
  REQUIRE(::chmod(token.c_str(), 0600) == 0);
  const std::vector<std::string> steps{"--steps", "150", "--set", "schedule.batch=8", "--quiet"};
  std::vector<std::string> words = steps;
  const int port = free_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  for (const std::string& word :
       std::vector<std::string>{"--mesh", "dp=2", "--nodes", "2", "--listen", address, "--token-file", token,
                                "--recovery", "slots", "--detect-budget", "20000", "--node-wait", "300"})
    words.push_back(word);
  std::vector<std::string> command = prefix;
  for (const std::string& word : train(out, words)) command.push_back(word);
  const auto agent = [&](const std::string& name, int at) {
    return troupe_command(
        {"agent", "--join", "127.0.0.1:" + std::to_string(at), "--token-file", token, "--name", name, "--wait", "300"});
  };
  const auto began = std::chrono::steady_clock::now();
  Run job(command);
  for (int i = 0; i < 500 && ::recv(stranger_at(port), nullptr, 0, MSG_DONTWAIT) < 0 && errno == ENOTCONN; ++i)
    ::usleep(10'000);  // until it listens
  attack(port, "", 200, 100);
  const std::int64_t before_kib = resident_kib(job.pid());
  REQUIRE(before_kib > 0);
  const int before_agents = attack(port, "", 10'000, 500);
  const std::int64_t after_kib = resident_kib(job.pid());
  const double attacked_s = cpu_of(job.pid());
  const auto lines_come = [&](int count) {  // on a busy machine, too
    for (int tries = 0; tries < 30; ++tries)
      if (job.wait_for_lines(out + "/metrics.jsonl", count)) return true;
    return false;
  };
  Recorder recorder(port);
  Run a(agent("a", port)), b(agent("b", recorder.port()));
  REQUIRE(lines_come(5));
  const std::string recorded = recorder.heard();
  CHECK(recorded.size() > 96);  // a whole handshake, and what follows
  const std::int64_t trains_kib = resident_kib(job.pid());
  std::atomic<int> in_training = 0;
  std::optional<std::jthread> strangers, at_socket;
  strangers.emplace([&](const std::stop_token& stop) { in_training = attack(port, recorded, 10'000, 500, stop); });
  at_socket.emplace([&](const std::stop_token& stop) { attack_socket(out + "/job.sock", stop); });
  const Outcome asked = run(troupe_command({"ps", out}));
  REQUIRE(lines_come(120));
  const std::int64_t trained_kib = resident_kib(job.pid());
  const Outcome o = job.wait(120);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  strangers.reset();
  at_socket.reset();
  INFO(o.err);
  MESSAGE("KiB resident: " << before_kib << ", after " << before_agents << " silent strangers " << after_kib << " ("
                           << attacked_s << " s of CPU); training " << trains_kib << ", after " << in_training.load()
                           << " more " << trained_kib << "; " << seconds << " s");
  CHECK(before_agents > 5'000);
  CHECK(o.code == exit_ok);
  check_nothing_left(o);
  CHECK(asked.code == exit_ok);
  for (Run* one : {&a, &b}) CHECK(one->wait().code == exit_ok);
  CHECK(after_kib - before_kib < 4 << 10);
  CHECK(trained_kib - trains_kib < 16 << 10);  // lines of metrics and of incidents grow, too
  TempDir alone;
  check_success(run(train(alone / "out", steps), 200));
  CHECK(numbers_of(out) == numbers_of(alone / "out"));
  std::istringstream incidents(read(out + "/incidents.jsonl"));
  for (std::string line; std::getline(incidents, line);)
    CHECK_MESSAGE(nlohmann::json::parse(line).contains("straggler"), line);
  std::istringstream lines(o.err);
  int told = 0, refused = 0;
  const std::string begin = "troupe: warning: ";
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" from 127.0.0.1 refused, the last one: ") == std::string::npos) continue;
    ++told;
    refused += std::atoi(line.c_str() + begin.size());
  }
  CHECK(told > 1);
  CHECK(told <= static_cast<int>(seconds) + 2);
  CHECK(refused >= before_agents);
}

}  // namespace

TEST_CASE("strangers at a run's ports change nothing of it: neither its bits, nor its memory, nor who works for it") {
  run_among_strangers({});
}

TEST_CASE("nor do they where the run may have few file descriptors") {
  run_among_strangers({"sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"});
}

TEST_CASE("a run on one machine listens at no address that another machine reaches") {
  TempDir dir;
  for (const std::string tls : {"", "tcp"}) {
    CAPTURE(tls);
    const std::string out = dir / ("out" + tls);
    std::vector<std::string> words{"--quiet", "--mesh", "dp=2", "--recovery", "slots", "--steps", "1000000"};
    if (!tls.empty()) words.insert(words.end(), {"--ucx-tls", tls});
    Run job(train(out, words));
    REQUIRE(job.wait_for_lines(out + "/metrics.jsonl", 3));
    CHECK(listens_at(job.pid()).empty());
    const auto workers = job.workers();
    REQUIRE(workers.size() == 2);
    for (const pid_t worker : workers) {
      const auto addresses = listens_at(worker);
      CHECK((tls.empty() || !addresses.empty()));  // this test sees ports
      for (const std::string& address : addresses) CHECK(address == "0100007F");
    }
    job.send(SIGTERM);
    CHECK(job.wait().code == exit_interrupted);
  }
}
