// The port of a job, and the peers that reach it: agents, and strangers, which have not the token.
#include "runtime/agents/agent_port.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "tests/runtime/cpu_seconds.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

using Bytes = std::vector<std::byte>;
using End = Handshake::End;

constexpr std::int64_t second_ns = 1'000'000'000;
const std::string one_host = "127.0.0.2", other_host = "127.0.0.3";

const TokenKey& token() {
  static const TokenKey key = key_of("a token of thirty-two characters, or more");
  return key;
}

/// A port, what it has logged, and a clock that the test moves.
struct ServedPort {
  std::vector<std::string> lines;
  std::int64_t now_ns = 0;
  std::unique_ptr<AgentPort> port;
  std::vector<AgentPort::Joined> joined;

  ServedPort() {
    set_log_sink([this](std::string_view line) { lines.emplace_back(line); });
    auto opened = AgentPort::open("127.0.0.1:0", token());
    REQUIRE_MESSAGE(opened.ok(), opened.status().message());
    port = *std::move(opened);
  }
  ~ServedPort() { set_log_sink({}); }
  /// A turn of a job that has nothing else to do.
  void turn(int wait_ms = 0) {
    PollSet set;
    port->watch(set);
    if (set.wait(wait_ms)) set.serve();
    port->turn(now_ns);
    for (AgentPort::Joined& one : port->take_joined()) joined.push_back(std::move(one));
  }
  void turns(int count) {
    while (count-- > 0) turn();
  }
  bool has_told(const std::string& words) const {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }
};

/// A peer, of a host of its own where `from` says so.
class Peer {
 public:
  explicit Peer(const AgentPort& port, const std::string& from = "127.0.0.1") {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd_ >= 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    REQUIRE(::inet_pton(AF_INET, from.c_str(), &at.sin_addr) == 1);
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    const std::string address = port.address();
    at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    REQUIRE(::inet_pton(AF_INET, "127.0.0.1", &at.sin_addr) == 1);
    REQUIRE(::connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  }
  ~Peer() { ::close(fd_); }
  Peer(Peer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  void say(std::span<const std::byte> bytes) const { (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// What has come until now.
  Bytes heard() const {
    Bytes all(4096);
    const ssize_t n = ::recv(fd_, all.data(), all.size(), MSG_DONTWAIT);
    all.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return all;
  }
  /// Reads what has come.
  bool was_refused() const {
    (void)heard();
    std::byte byte;
    const ssize_t n = ::recv(fd_, &byte, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
  }

 private:
  int fd_ = -1;
};

/// Who has a token, and joins in two steps. `said`: all that it has sent.
class TokenHolder {
 public:
  TokenHolder(ServedPort& served, const TokenKey& key, const std::string& from = "127.0.0.1")
      : served_(served), peer_(*served.port, from), handshake_(End::joins, key) {
    say(handshake_.take_out());
  }
  /// False: it was refused.
  bool prove_and_say(std::span<const std::byte> message) {
    Bytes heard;
    for (int turn = 0; heard.size() < 64 && turn < 50; ++turn) {
      served_.turn(1);
      const Bytes more = peer_.heard();
      heard.insert(heard.end(), more.begin(), more.end());
    }
    if (heard.size() < 64) return false;
    REQUIRE(handshake_.take(heard).ok());
    say(handshake_.take_out());
    Bytes proof;
    for (int turn = 0; proof.size() < 32 && turn < 50; ++turn) {
      served_.turn(1);
      const Bytes more = peer_.heard();
      proof.insert(proof.end(), more.begin(), more.end());
    }
    if (proof.size() < 32 || !handshake_.take(proof).ok()) return false;
    Bytes sealed;
    seal_.emplace(handshake_.keys().sends);
    seal_->seal(message, sealed);
    say(sealed);
    for (int turn = 0; turn < 3; ++turn) served_.turn(1);
    return true;
  }
  bool join() { return prove_and_say(encode(FromAgent(Joins{"m", 1, "p"}))); }
  Bytes said;

 private:
  void say(const Bytes& bytes) {
    peer_.say(bytes);
    said.insert(said.end(), bytes.begin(), bytes.end());
  }
  ServedPort& served_;
  const Peer peer_;
  Handshake handshake_;
  std::optional<Seal> seal_;
};

/// For as long as it lives this process may have few more descriptors than it has.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::dup(0);  // the lowest that is free
    ::close(next);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(next + more);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~FewDescriptors() {
    for (const int fd : taken_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  void take_all() {
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(fd);
  }
  void give_back(int count) {
    for (; count > 0 && !taken_.empty(); --count, taken_.pop_back()) ::close(taken_.back());
  }

 private:
  rlimit before_{};
  std::vector<int> taken_;
};

}  // namespace

TEST_CASE("a peer with another token, one that repeats a real agent's bytes, and one that sends garbage are refused") {
  ServedPort served;
  TokenHolder agent(served, token());
  REQUIRE(agent.join());
  REQUIRE(served.joined.size() == 1);
  CHECK(served.joined[0].joins.machine == "m");
  CHECK(served.lines.empty());

  TokenHolder stranger(served, key_of("another token of thirty-two characters"));
  CHECK_FALSE(stranger.join());
  CHECK(served.has_told("1 connection from 127.0.0.1 refused, the last one: the peer has another token"));

  served.now_ns += 2 * second_ns;
  const Peer replays(*served.port);
  replays.say(agent.said);
  served.turns(10);
  CHECK(replays.heard().size() <= 64);  // no proof
  CHECK(replays.was_refused());
  served.lines.clear();

  for (const int value : {0, 0x16, 0x47, 0xff}) {
    CAPTURE(value);
    const Peer garbage(*served.port);
    garbage.say(Bytes(100'000, static_cast<std::byte>(value)));
    served.turns(10);
    CHECK(garbage.was_refused());
  }
  served.now_ns += 2 * second_ns;
  served.turn();
  CHECK(served.has_told("from 127.0.0.1 refused"));
  CHECK(served.joined.size() == 1);
}

TEST_CASE("an address in digits at which this machine cannot listen is not its own, and a name may become known") {
  for (const char* own : {"127.0.0.1:7", "127.0.0.1:0", "[::1]:7170", "a-pod.that.is.not.ready:7170"})
    CHECK_MESSAGE(check_own_address(own).ok(), own);
  for (const char* foreign : {"192.0.2.1:7170", "[2001:db8::1]:7170", "[]:7170", ":7170", "127.0.0.1", "127.0.0.1:x"})
    CHECK_MESSAGE(check_own_address(foreign).code() == Code::invalid, foreign);
  CHECK(check_own_address("192.0.2.1:7170").message().find("'192.0.2.1:7170' is no address of this machine") == 0);
}

TEST_CASE("an agent that has proved the token and does not say who it is, is refused") {
  ServedPort served;
  TokenHolder no_message(served, token());
  CHECK(no_message.prove_and_say(Bytes(100, std::byte{7})));
  CHECK(served.has_told("1 connection from 127.0.0.1 refused, the last one: it has not said who it is"));
  served.now_ns += 2 * second_ns;
  TokenHolder another_message(served, token());
  CHECK(another_message.prove_and_say(encode(FromAgent(Beat{}))));
  served.now_ns += 2 * second_ns;
  served.turn();
  CHECK(served.lines.size() == 2);
  CHECK(served.joined.empty());
}

TEST_CASE("who says nothing is refused after ten seconds, and not before") {
  ServedPort served;
  const Peer silent(*served.port);
  served.turns(3);
  CHECK(silent.heard().size() == 64);  // the opening, which tells nothing
  served.now_ns = AgentPort::unknown_ns;
  served.turn();
  CHECK_FALSE(silent.was_refused());
  ++served.now_ns;
  served.turns(2);
  CHECK(silent.was_refused());
  CHECK(served.has_told("it has not proved the token in time"));
}

TEST_CASE(
    "what peers do wrong is told once a second for each host, with a count, however many hosts (AP-2 few lines)") {
  ServedPort served;
  const auto garbage_from = [&](const std::string& host) {
    const Peer peer(*served.port, host);
    peer.say(Bytes(64));
    served.turns(2);
  };
  for (int i = 0; i < 50; ++i) garbage_from(one_host);
  CHECK(served.lines.size() == 1);  // at once
  CHECK(served.has_told("1 connection from 127.0.0.2 refused, the last one: the peer has sent no public key"));
  garbage_from(other_host);
  CHECK(served.lines.size() == 2);
  served.now_ns += second_ns;
  served.turn();
  REQUIRE(served.lines.size() == 3);
  CHECK(served.has_told("49 connections from 127.0.0.2 refused"));
  served.now_ns += 5 * second_ns;
  served.turns(3);
  CHECK(served.lines.size() == 3);
  served.lines.clear();
  for (int host = 0; host < 100; ++host) garbage_from("127.0.1." + std::to_string(1 + host));
  served.now_ns += second_ns;
  served.turn();
  CHECK(served.lines.size() <= 2 * (AgentPort::hosts_told + 1));
  CHECK(served.has_told("from other hosts refused"));
}

TEST_CASE(
    "strangers of one host, however many, push out no agent of another one, nor a fast one of their own (AP-1 "
    "bounded)") {
  ServedPort served;
  std::vector<Peer> silent;
  const auto strangers = [&](int count) {
    while (count-- > 0) silent.emplace_back(*served.port, one_host);
    served.turns(1);
  };
  for (int i = 0; i < 20; ++i) strangers(8);
  TokenHolder agent(served, token(), other_host);
  for (int i = 0; i < 20; ++i) strangers(8);
  CHECK(agent.join());
  CHECK(served.joined.size() == 1);
  strangers(64);  // they wait in the queue; the agent behind them
  TokenHolder beside_them(served, token(), one_host);
  CHECK(beside_them.join());
  CHECK(served.joined.size() == 2);
  served.turns(20);
  const auto refused = std::count_if(silent.begin(), silent.end(), [](const Peer& p) { return p.was_refused(); });
  CHECK(refused >= std::ssize(silent) - std::int64_t{AgentPort::unknown_max});
  CHECK(refused < std::ssize(silent));
  CHECK(served.has_told("too many connections wait to prove the token"));
}

TEST_CASE("who waits to prove the token leaves the process descriptors that it needs (AP-3 few descriptors)") {
  ServedPort served;
  std::vector<Peer> silent;
  for (int i = 0; i < 40; ++i) silent.emplace_back(*served.port, one_host);
  {
    FewDescriptors few(AgentPort::descriptors_spare + 5);
    served.turns(20);
    int could_open = 0;
    std::vector<int> opened;
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0; ++could_open) opened.push_back(fd);
    for (const int fd : opened) ::close(fd);
    CHECK(could_open >= AgentPort::descriptors_spare - 1);
    CHECK(served.has_told("the process has few file descriptors left (ulimit -n)"));
  }
  TokenHolder agent(served, token());
  CHECK(agent.join());
  CHECK(served.joined.size() == 1);
}

TEST_CASE(
    "a process without a descriptor left does not spin at its port, and takes an agent once it has one (AP-3 few "
    "descriptors)") {
  ServedPort served;
  std::optional<FewDescriptors> few;
  few.emplace(20);
  {
    const Peer stranger(*served.port, one_host);
    TokenHolder agent(served, token());
    few->take_all();
    served.turn();
    const double begin_s = cpu_seconds();
    const SteadyClock clock;
    const std::int64_t begin_ns = clock.now_ns();
    for (int turn = 0; turn < 10; ++turn) {
      served.turn(50);
      served.now_ns += second_ns / 20;
    }
    CHECK(clock.now_ns() - begin_ns >= second_ns / 2);  // each turn has waited
    CHECK(cpu_seconds() - begin_s < 0.1);
    CHECK(served.lines.size() == 1);
    CHECK(served.has_told("connections wait to be taken: Too many open files"));
    few->give_back(2);
    CHECK(agent.join());
    CHECK(served.joined.size() == 1);
  }
}

TEST_CASE(
    "where the process has no descriptor left, who waits to prove the token goes for another one (AP-3 few "
    "descriptors)") {
  ServedPort served;
  FewDescriptors few(20);
  const Peer stranger(*served.port, one_host);
  served.turns(2);
  TokenHolder agent(served, token());
  few.take_all();
  CHECK(agent.join());
  CHECK(stranger.was_refused());
  CHECK(served.has_told("1 connection from 127.0.0.2 refused, the last one: the process has no file descriptor left"));
}

TEST_CASE("ten thousand connections that say nothing cost the process less than a megabyte (AP-1 bounded)") {
  ServedPort served;
  const auto resident_bytes = [] {
    long pages = 0, resident = 0;
    std::FILE* f = std::fopen("/proc/self/statm", "r");
    REQUIRE(f != nullptr);
    REQUIRE(std::fscanf(f, "%ld %ld", &pages, &resident) == 2);
    std::fclose(f);
    return std::int64_t{resident} * ::sysconf(_SC_PAGESIZE);
  };
  std::deque<Peer> silent;  // the oldest have been refused
  const auto connect = [&](int count) {
    for (int i = 0; i < count; ++i) {
      silent.emplace_back(*served.port, one_host);
      if (silent.size() > 100) silent.pop_front();
      if (i % 8 == 0) served.turn();
    }
  };
  connect(1'000);
  const std::int64_t before = resident_bytes();
  connect(10'000);
  const std::int64_t grown = resident_bytes() - before;
  MESSAGE("grown by " << grown << " bytes");
#if !defined(__SANITIZE_ADDRESS__)  // which keeps what is freed, and tells of what is not
  CHECK(grown < 1 << 20);
#endif
  TokenHolder agent(served, token());
  CHECK(agent.join());
}
