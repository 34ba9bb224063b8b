// UcxTransport between processes: death, what is left behind, what an idle transport costs, speed.
//
// The other process is this binary, run again with one skipped test case: a fork() without exec would
// share UCX's locks and threads with us.
#include <fcntl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "tests/comm/pair.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;
using Clock_ = std::chrono::steady_clock;

namespace {

bool write_all(int fd, const void* p, std::size_t n) { return ::write(fd, p, n) == static_cast<ssize_t>(n); }
bool read_all(int fd, void* p, std::size_t n) {
  for (std::size_t at = 0; at < n;) {
    const ssize_t got = ::read(fd, static_cast<char*>(p) + at, n - at);
    if (got <= 0) return false;
    at += static_cast<std::size_t>(got);
  }
  return true;
}
bool tell(int fd, const std::string& s) {
  const std::size_t n = s.size();
  return write_all(fd, &n, sizeof n) && write_all(fd, s.data(), n);
}
std::string hear(int fd) {
  std::size_t n = 0;
  if (!read_all(fd, &n, sizeof n) || n > 1 << 20) return {};
  std::string s(n, '\0');
  return read_all(fd, s.data(), n) ? s : std::string();
}

/// A second process that runs `role` as rank 1, and our own transport as rank 0, connected.
class OtherProcess {
 public:
  OtherProcess(const char* role, const char* tls, const char* device, UcxOptions options = {}) {
    int down[2], up[2];
    REQUIRE(pipe(down) == 0);
    REQUIRE(pipe(up) == 0);
    const std::string eager = std::to_string(options.eager_bytes_max), spin = std::to_string(options.spin_us);
    pid = ::fork();
    if (pid == 0) {
      ::dup2(down[0], 3);
      ::dup2(up[1], 4);
      ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
      ::setenv("TROUPE_TEST_ROLE", role, 1);
      ::setenv("TROUPE_TEST_TLS", tls, 1);
      ::setenv("TROUPE_TEST_DEVICE", device, 1);
      ::setenv("TROUPE_TEST_EAGER", eager.c_str(), 1);
      ::setenv("TROUPE_TEST_SPIN", spin.c_str(), 1);
      ::execl("/proc/self/exe", "test_comm", "-tc=the other process", "-ns", nullptr);
      ::_exit(127);
    }
    ::close(down[0]);
    ::close(up[1]);
    to_child = down[1];
    from_child = up[0];
    options.rank = 0, options.job = 7, options.generation = 1, options.tls = tls, options.net_devices = device;
    auto t = UcxTransport::open(options);
    REQUIRE_MESSAGE(t.ok(), t.status().message());
    transport = *std::move(t);
    REQUIRE(tell(to_child, transport->address()));
    const std::string theirs = hear(from_child);
    REQUIRE(!theirs.empty());
    transport->connect({{1, theirs}});
  }
  ~OtherProcess() {
    if (transport) transport->shutdown();
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(to_child);
    ::close(from_child);
  }
  pid_t pid = -1;
  int to_child = -1, from_child = -1;
  std::unique_ptr<UcxTransport> transport;
};

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator("/dev/shm")) names.insert(e.path().filename());
  return names;
}

/// Whether this machine lets a process read the memory of another of the same user that is not its child.
bool may_read_siblings() {
  char from = 1, to = 0;
  iovec remote{&from, 1}, local{&to, 1};
  char scope = '0';
  if (std::FILE* f = std::fopen("/proc/sys/kernel/yama/ptrace_scope", "r")) {
    scope = static_cast<char>(std::fgetc(f));
    std::fclose(f);
  }
  return scope == '0' && ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

/// Makes known what is pending when it is killed: a large message that it announced, a receive that it posted.
void play_victim(UcxTransport& t, int up) {
  static const auto data = payload(4 << 20, 1);
  static std::vector<std::byte> into(4 << 20);
  std::atomic<bool> hello{false};
  t.recv(0, {3, 0, 0}, std::span(into).first(8), [&](const Status&, const Header&) { hello = true; });
  t.send(0, header(0), std::span(data).first(8), [](const Status&) {});
  for (std::uint32_t i = 1; i < 4; ++i) {
    t.send(0, header(i), data, [](const Status&) {});
    t.recv(0, {4, 0, i}, into, [](const Status&, const Header&) {});
  }
  wait_for([&] { return hello.load(); });
  tell(up, "ready");
  std::this_thread::sleep_for(std::chrono::seconds(30));
}

/// Sends and receives as much as the other rank likes, 64 MiB at a time.
constexpr std::size_t kLarge = std::size_t{64} << 20;
void play_large(UcxTransport& t, Rank me, std::span<const std::byte> data, std::span<std::byte> into) {
  for (std::uint32_t i = 1; i < 9; ++i) {
    t.send(1 - me, header(i), data, [](const Status&) {});
    t.recv(1 - me, {3, 0, i}, into, [](const Status&, const Header&) {});
  }
}

/// Streams messages of `bytes` with `outstanding` under way; the answer of rank `me`'s side.
void stream(UcxTransport& t, Rank me, std::uint32_t channel, std::size_t bytes, int outstanding, int count) {
  std::vector<std::vector<std::byte>> slots(outstanding, std::vector<std::byte>(bytes));
  std::atomic<int> done{0};
  std::function<void(int)> next = [&](int i) {
    auto& slot = slots[i % outstanding];
    const auto after = [&, i] {
      if (i + outstanding < count) next(i + outstanding);
      ++done;
    };
    if (me == 1) t.send(0, header(i, channel), slot, [after](const Status&) { after(); });
    else
      t.recv(1, {channel, 0, static_cast<std::uint32_t>(i)}, slot, [after](const Status&, const Header&) { after(); });
  };
  for (int i = 0; i < std::min(outstanding, count); ++i) next(i);
  wait_for([&] { return done == count; }, std::chrono::seconds(30));
}

/// Half a round trip, in us, with 8 bytes.
double ping_pong(UcxTransport& t, Rank me, std::uint32_t channel, int turns) {
  std::byte ball[8]{}, in[8]{};
  std::atomic<int> done{0};
  const auto begin = Clock_::now();
  std::function<void(std::uint32_t)> play = [&](std::uint32_t i) {
    t.recv(1 - me, {channel, 0, i}, in, [&, i](const Status&, const Header&) {
      if (static_cast<int>(i) + 2 < turns) play(i + 2);
      if (static_cast<int>(i) + 1 < turns) t.send(1 - me, header(i + 1, channel), ball, [&](const Status&) { ++done; });
      ++done;
    });
  };
  play(me == 1 ? 0 : 1);
  if (me == 0) t.send(1, header(0, channel), ball, [&](const Status&) { ++done; });
  wait_for([&] { return done >= turns; }, std::chrono::seconds(30));
  return std::chrono::duration<double, std::micro>(Clock_::now() - begin).count() / turns;
}

void play_measure(UcxTransport& t, Rank me) {
  std::uint32_t channel = 100;
  for (int round = 0; round < 3; ++round) {
    const double us = ping_pong(t, me, channel++, 20'000);
    stream(t, me, channel++, 1 << 20, 4, 50);
    const auto begin = Clock_::now();
    const int count = 2000;
    stream(t, me, channel++, 1 << 20, 4, count);
    const double s = std::chrono::duration<double>(Clock_::now() - begin).count();
    const auto small = Clock_::now();
    const auto cpu = t.progress_cpu_ns();
    stream(t, me, channel++, 64, 64, 100'000);
    const double cpu_us = static_cast<double>(t.progress_cpu_ns() - cpu) / 100'000 * 1e-3;
    const double rate = 100'000 / std::chrono::duration<double>(Clock_::now() - small).count();
    if (me == 0)
      std::printf("  8 bytes one way %.2f us; 1 MiB x4 %.2f GB/s; 64 B x64 %.2f M/s, %.2f us of CPU each\n", us,
                  count * double(1 << 20) / s * 1e-9, rate * 1e-6, cpu_us);
  }
}

}  // namespace

/// UCX leaks a few bytes for every connection that fails; ours are still reported. Read by LeakSanitizer only.
extern "C" const char* __lsan_default_suppressions() { return "leak:libuct\nleak:libucp\nleak:libucs\n"; }

TEST_CASE("the other process" * doctest::skip()) {
  const char* role = std::getenv("TROUPE_TEST_ROLE");
  if (role == nullptr) return;
  auto t = UcxTransport::open({.rank = 1,
                               .job = 7,
                               .generation = 1,
                               .tls = std::getenv("TROUPE_TEST_TLS"),
                               .net_devices = std::getenv("TROUPE_TEST_DEVICE"),
                               .eager_bytes_max = std::stoul(std::getenv("TROUPE_TEST_EAGER")),
                               .spin_us = std::stol(std::getenv("TROUPE_TEST_SPIN"))});
  if (!t.ok()) std::exit(1);
  tell(4, (*t)->address());
  (*t)->connect({{0, hear(3)}});
  if (std::string(role) == "victim") play_victim(**t, 4);
  std::vector<std::byte> data, into;
  if (std::string(role) == "large") {
    data.resize(kLarge), into.resize(kLarge);
    play_large(**t, 1, data, into);
    tell(4, "ready");
    hear(3);  // until the test ends
  }
  if (std::string(role) == "measure") play_measure(**t, 1);
  if (std::string(role) == "measure") std::this_thread::sleep_for(std::chrono::milliseconds(300));
  (*t)->shutdown();
  std::exit(0);
}

TEST_CASE("measure latency and bandwidth" * doctest::skip()) {
  for (const auto& [tls, device] : {std::pair("", ""), {"posix", ""}, {"tcp", "lo"}})
    for (const std::size_t eager : {std::size_t{4096}, std::size_t{0}})
      for (const std::int64_t spin : {0, 20}) {
        std::printf("tls \"%s\" eager %zu spin %ld us\n", tls, eager, spin);
        UcxOptions o;
        o.eager_bytes_max = eager;
        o.spin_us = spin;
        OtherProcess other("measure", tls, device, o);
        play_measure(*other.transport, 0);
      }
}

TEST_CASE("measure abort, with large transfers under way" * doctest::skip()) {
  const std::vector<std::byte> data(kLarge);
  std::vector<std::byte> into(kLarge);
  const auto ms = [](Clock_::duration d) { return std::chrono::duration<double, std::milli>(d).count(); };
  for (const auto& [tls, device] : {std::pair("posix,cma", ""), {"posix", ""}, {"tcp", "lo"}, {"", ""}})
    for (const char* peer : {"lives", "is killed", "is stopped"})
      for (const bool aborts : {true, false}) {
        std::vector<double> took, reopened;
        for (int round = 0; round < 15; ++round) {
          OtherProcess other("large", tls, device);
          UcxTransport& t = *other.transport;
          REQUIRE(hear(other.from_child) == "ready");
          play_large(t, 0, data, into);
          std::this_thread::sleep_for(std::chrono::milliseconds(20 + round));
          if (*peer == 'i') {
            ::kill(other.pid, std::string(peer) == "is killed" ? SIGKILL : SIGSTOP);
            REQUIRE(::waitpid(other.pid, nullptr, WUNTRACED) == other.pid);
          }
          const auto begin = Clock_::now();
          if (aborts) t.abort();
          else t.shutdown();
          const auto ended = Clock_::now();
          auto again = UcxTransport::open({.rank = 0, .job = 7, .generation = 2, .tls = tls, .net_devices = device});
          REQUIRE(again.ok());
          took.push_back(ms(ended - begin));
          reopened.push_back(ms(Clock_::now() - ended));
        }
        std::sort(took.begin(), took.end());
        std::sort(reopened.begin(), reopened.end());
        std::ifstream statm("/proc/self/statm");
        long pages = 0, resident = 0;
        statm >> pages >> resident;
        const std::filesystem::directory_iterator fds("/proc/self/fd");
        std::printf("rss %ld KiB, %ld fds; ", resident * 4, static_cast<long>(std::distance(begin(fds), end(fds))));
        std::printf("%-10s peer %-10s %-8s %7.2f ms, at most %7.2f; open %6.2f ms, at most %6.2f\n",
                    *tls ? tls : "default", peer, aborts ? "abort" : "shutdown", took[took.size() / 2], took.back(),
                    reopened[reopened.size() / 2], reopened.back());
        std::fflush(stdout);
      }
}

TEST_CASE("abort returns while a peer is stopped, or has just been killed, in the middle of large transfers") {
  if (const auto why = no_lost_peers(); !why.empty()) return troupe::test::skip(why);
  const std::vector<std::byte> data(kLarge);
  std::vector<std::byte> into(kLarge);
  const auto files = shared_files();
  for (const auto& [tls, device] : {std::pair("posix,cma", ""), {"posix", ""}, {"tcp", "lo"}, {"", ""}})
    for (const int signal : {SIGSTOP, SIGKILL}) {
      CAPTURE(std::string(tls));
      CAPTURE(signal);
      {
        OtherProcess other("large", tls, device);
        UcxTransport& t = *other.transport;
        REQUIRE(hear(other.from_child) == "ready");
        play_large(t, 0, data, into);
        REQUIRE(wait_for([&] { return t.stats().received_bytes + t.stats().sent_bytes > 0; }));
        ::kill(other.pid, signal);
        REQUIRE(::waitpid(other.pid, nullptr, WUNTRACED) == other.pid);
        t.abort();
        t.abort();
      }
      CHECK(shared_files() == files);
    }
}

TEST_CASE("a SIGKILLed peer is reported within 2 s and everything pending with it ends") {
  if (const auto why = no_lost_peers(); !why.empty()) return troupe::test::skip(why);
  for (const auto& [tls, device] : {std::pair("posix,cma", ""), {"posix", ""}, {"tcp", "lo"}, {"", ""}}) {
    CAPTURE(std::string(tls));
    const auto files = shared_files();
    std::atomic<int> downs{0};
    std::vector<std::byte> into(4 << 20), data = payload(4 << 20, 2);
    Outcome hello_in, hello_out, fetched, fetching, never_sent, small, large, awaited, late;
    OtherProcess other("victim", tls, device);
    UcxTransport& t = *other.transport;
    t.on_peer_down([&](Rank r, const Status& s) { downs += r == 1 && s.code() == Code::unavailable ? 1 : 100; });
    t.recv(1, {3, 0, 0}, std::span(into).first(8), hello_in.received());
    t.send(1, header(0), std::span(data).first(8), hello_out.sent());
    REQUIRE(hear(other.from_child) == "ready");
    REQUIRE(wait_for([&] { return hello_in.done() && hello_out.done(); }));
    REQUIRE(wait_for([&] { return t.stats().unexpected_max >= 3; }));
    t.recv(1, {3, 0, 1}, into, fetched.received());
    REQUIRE(wait_for([&] { return fetched.done(); }));
    CHECK(fetched.status.ok());
    CHECK(into == payload(4 << 20, 1));

    ::kill(other.pid, SIGSTOP);  // now nothing moves in the peer: these are under way when it dies
    REQUIRE(::waitpid(other.pid, nullptr, WUNTRACED) == other.pid);  // all of its threads have stopped
    t.recv(1, {3, 0, 2}, into, fetching.received());
    t.recv(1, {3, 0, 9}, std::span(data).first(8), never_sent.received());
    t.send(1, header(8), std::span(data).first(8), small.sent());
    t.send(1, header(9), data, large.sent());
    t.send(1, header(1, 4), data, awaited.sent());
    if (std::string(tls) != "posix" && std::string(tls) != "tcp" && may_read_siblings()) {
      REQUIRE(wait_for([&] { return fetching.done(); }));  // by cma, which needs nothing of the sender
      CHECK(fetching.status.ok());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto killed = Clock_::now();
    ::kill(other.pid, SIGKILL);
    ::waitpid(other.pid, nullptr, 0);
    REQUIRE(wait_for([&] { return downs > 0; }, std::chrono::seconds(5)));
    const auto detected = Clock_::now() - killed;
    CHECK(detected < std::chrono::seconds(2));
    MESSAGE(std::string(*tls ? tls : "default") << ": a SIGKILL is seen after " << detected.count() / 1000 << " us");
    REQUIRE(wait_for(
        [&] { return fetching.done() && never_sent.done() && small.done() && large.done() && awaited.done(); }));
    for (const Outcome* o : {&never_sent, &small, &large, &awaited}) {
      CHECK(o->status.code() == Code::unavailable);
      CHECK(o->calls == 1);
    }
    // cma can read a stopped process
    if (!fetching.status.ok()) CHECK(fetching.status.code() == Code::unavailable);
    t.send(1, header(50), {}, late.sent());
    REQUIRE(wait_for([&] { return late.done(); }));
    CHECK(late.status.code() == Code::unavailable);
    CHECK(downs == 1);
    t.shutdown();
    CHECK(shared_files() == files);  // neither the dead nor the living left anything
  }
}

TEST_CASE("an endpoint of a process that is already dead fails, it does not hang") {
  for (const auto& [tls, device] : {std::pair("posix,cma", ""), {"tcp", "lo"}}) {
    CAPTURE(std::string(tls));
    Outcome s, r;
    OtherProcess other("victim", tls, device);
    ::kill(other.pid, SIGKILL);
    ::waitpid(other.pid, nullptr, 0);
    other.transport->send(1, header(0), {}, s.sent());
    other.transport->recv(1, {3, 0, 0}, {}, r.received());
    REQUIRE(wait_for([&] { return s.done() && r.done(); }));
    CHECK(s.status.code() == Code::unavailable);
    CHECK(r.status.code() == Code::unavailable);
  }
}

TEST_CASE("an idle transport costs no CPU") {
  for (const auto& [tls, device] : {std::pair("posix,cma", ""), {"tcp", "lo"}, {"", ""}}) {
    CAPTURE(std::string(tls));
    UcxPair pair(tls, device, 1, 1);
    Outcome s, r;
    std::vector<std::byte> into(8), never(8), data(8);
    pair.at(1).recv(0, {3, 0, 0}, into, r.received());
    pair.at(0).send(1, header(0), data, s.sent());
    pair.at(1).recv(0, {3, 0, 1}, never, [](const Status&, const Header&) {});  // waiting is idling, too
    REQUIRE(pair.wait([&] { return s.done() && r.done(); }));
    pair.settle();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr std::int64_t used_max = 24'000'000;  // 3 % of a core: one that spins uses all
#else
    constexpr std::int64_t used_max = 8'000'000;  // 1 % of a core: two threads that poll each millisecond use more
#endif
    // The least of some: what a busy machine makes of a thread's time is not its own.
    std::int64_t used = std::numeric_limits<std::int64_t>::max();
    for (int tries = 0; tries < 5 && used >= used_max; ++tries) {
      const auto cpu = pair.at(0).progress_cpu_ns() + pair.at(1).progress_cpu_ns();
      std::this_thread::sleep_for(std::chrono::milliseconds(800));
      used = std::min<std::int64_t>(used, pair.at(0).progress_cpu_ns() + pair.at(1).progress_cpu_ns() - cpu);
    }
    MESSAGE(std::string(*tls ? tls : "default")
            << ": two idle progress threads use " << static_cast<double>(used) / 800e6 * 100 << " % of a core");
    CHECK(used < used_max);
    for (Rank a : {0, 1}) pair.at(a).shutdown();
  }
}

TEST_CASE("the environment's UCX variables decide nothing") {
  ::setenv("UCX_TLS", "tcp", 1);
  ::setenv("UCX_MM_ERROR_HANDLING", "n", 1);
  ::setenv("UCX_POSIX_USE_PROC_LINK", "n", 1);
  const auto files = shared_files();
  {
    UcxPair pair("posix", "", 1, 1);
    Outcome s, r;
    std::vector<std::byte> into(8), data = payload(8, 1);
    pair.at(1).recv(0, {3, 0, 0}, into, r.received());
    pair.at(0).send(1, header(0), data, s.sent());
    CHECK(pair.wait([&] { return s.done() && r.done(); }));
    CHECK(into == data);
    CHECK(shared_files() == files);
  }
  for (const char* name : {"UCX_TLS", "UCX_MM_ERROR_HANDLING", "UCX_POSIX_USE_PROC_LINK"}) ::unsetenv(name);
}

TEST_CASE("a transport that UCX does not have is an error with a name") {
  const auto t = UcxTransport::open({.tls = "carrier_pigeon"});
  REQUIRE_FALSE(t.ok());
  CHECK(t.status().code() == Code::invalid);
  CHECK(t.status().message().find("carrier_pigeon") != std::string::npos);
}
