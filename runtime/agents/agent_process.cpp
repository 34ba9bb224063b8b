#include "runtime/agents/agent_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <optional>

#include "devices/base/clock.h"
#include "devices/base/log.h"
#include "runtime/agents/agent.h"
#include "runtime/agents/agent_ends.h"
#include "runtime/agents/connection.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t retry_ns = 200 * ms;
/// For one attempt to reach the job. The system asks ever more seldom whether a peer that is cut off is there.
constexpr std::int64_t attempt_ns = 5'000 * ms;
constexpr int grace_ms = 500;  // of places whose job cannot be reached
constexpr std::int64_t patience_least_ns = 10'000 * ms;

/// Why a connection is over: the job has said so, or what has broken it.
struct Parting {
  bool finished = false, refused = false;
  Status why;
};

/// What tells the /dev/shm of this process from another one: the boot of its host, and the file system that is mounted
/// there.
std::string host_of_shared_memory() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat shm {};
  return ::stat("/dev/shm", &shm) == 0 ? fmt::format("{}:{}", boot, shm.st_dev) : boot;
}

/// One connection, from its beginning to its end.
class Service {
 public:
  /// `agent`: tells what tell() takes. `kept`: what it has kept of the connection before.
  Service(const AgentOptions& options, int fd, AgentEnds& ends, Agent& agent, const Kept& kept)
      : options_(options), ends_(ends), connection_(fd, Handshake::End::joins, options.token), agent_(agent),
        kept_(kept) {}

  Parting run(std::int64_t deadline_ns) {
    while (!parting_) turn(deadline_ns);
    return *parting_;
  }
  /// Whether the job has proved the token; has taken the machine.
  bool open() const { return connection_.open(); }
  bool taken() const { return budget_ns_ > 0; }

  void tell(const FromAgent& message) {
    if (parting_ || !connection_.open()) return;
    sent_ns_ = clock_.now_ns();
    if (const Status s = connection_.post(encode(message)); !s.ok()) part({false, false, s});
  }

 private:
  void part(Parting how) {
    if (!parting_) parting_ = std::move(how);
  }

  /// Tells the job that this machine lives, and parts from a job that does not tell so.
  void beat() {
    if (budget_ns_ == 0) return;
    const std::int64_t now_ns = clock_.now_ns();
    if (now_ns - sent_ns_ >= budget_ns_ / 8) tell(Beat{});
    const std::int64_t looked_ns = std::exchange(looked_ns_, now_ns);
    if (now_ns - looked_ns > budget_ns_ / 2) heard_ns_ = now_ns;  // this process was stopped, and read nothing
    if (now_ns - heard_ns_ > std::max(agent_patience * budget_ns_, patience_least_ns))
      part({false, false,
            Status(Code::unavailable, fmt::format("the job has said nothing for {:.1f} s",
                                                  static_cast<double>(now_ns - heard_ns_) * 1e-9))});
  }

  void turn(std::int64_t deadline_ns) {
    PollSet set;
    set.add(connection_.fd(), connection_.events(), [this](short happened) {
      if (happened != 0) serve();
    });
    agent_.watch(set);
    ends_.watch(set);
    constexpr std::int64_t poll_ns = 200 * ms;
    const std::int64_t wait_ns = budget_ns_ > 0 ? std::min(poll_ns, budget_ns_ / 8) : poll_ns;
    if (!set.wait(static_cast<int>(wait_ns / ms))) return;
    set.serve();
    agent_.tell_ends();
    beat();
    if (const Status s = ends_.due(budget_ns_ > 0, clock_.now_ns()); !s.ok()) part({false, true, s});
    if (!connection_.open() && clock_.now_ns() >= deadline_ns)
      part({false, false, Status(Code::unavailable, "it has not answered")});
  }

  void serve() {
    const bool known = connection_.open();
    std::deque<std::vector<std::byte>> messages;
    const Status s = connection_.serve(messages);
    heard_ns_ = clock_.now_ns();
    if (!known && connection_.open())
      tell(Joins{options_.machine, options_.places, options_.program, options_.net_device, host_of_shared_memory(),
                 kept_});
    for (const auto& message : messages) {
      const auto order = decode_to_agent(message);
      if (!order.ok()) return part({false, false, order.status()});
      take(*order);
    }
    if (!s.ok()) part({false, s.code() == Code::invalid && !known, s});
  }

  void take(const ToAgent& order) {
    if (const auto* welcome = std::get_if<Welcome>(&order)) {
      budget_ns_ = welcome->budget_ms * ms;
      looked_ns_ = clock_.now_ns();
      agent_.forget_kept(welcome->keeps);
      log_info("the job takes this machine");
      if (options_.on_join) options_.on_join();
    } else if (const auto* refused = std::get_if<Refused>(&order)) {
      part({false, !refused->for_now, invalid(refused->why)});
    } else if (const auto* finish = std::get_if<Finish>(&order)) {
      agent_.take(*finish);
      flush();
      part({true, false, {}});
    } else {
      agent_.take(order);
    }
  }

  /// Sends what is queued, for as long as the job reads it.
  void flush() {
    const std::int64_t until_ns = clock_.now_ns() + 5'000 * ms;
    std::deque<std::vector<std::byte>> messages;
    while ((connection_.events() & POLLOUT) != 0 && clock_.now_ns() < until_ns) {
      PollSet set;
      set.add(connection_.fd(), POLLOUT, [](short) {});
      if (set.wait(100) && !connection_.serve(messages).ok()) return;
    }
  }

  const AgentOptions& options_;
  AgentEnds& ends_;
  SteadyClock clock_;
  Connection connection_;
  Agent& agent_;
  const Kept& kept_;
  std::int64_t budget_ns_ = 0;  // the job has taken the machine
  std::int64_t sent_ns_ = 0, heard_ns_ = 0, looked_ns_ = 0;
  std::optional<Parting> parting_;
};

}  // namespace

Expected<std::string> program_fingerprint() {
  const auto fail = [] { return Status(Code::io, std::string("cannot read /proc/self/exe: ") + std::strerror(errno)); };
  const int fd = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail();
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, 16);
  std::vector<std::byte> chunk(std::size_t{1} << 20);
  ssize_t n = 0;
  while ((n = ::read(fd, chunk.data(), chunk.size())) > 0 || (n < 0 && errno == EINTR))
    if (n > 0) crypto_generichash_update(&state, raw(chunk.data()), static_cast<unsigned long long>(n));
  ::close(fd);
  if (n < 0) return fail();
  std::array<std::byte, 16> hash;
  crypto_generichash_final(&state, raw(hash.data()), hash.size());
  std::string text;
  for (const std::byte b : hash) text += fmt::format("{:02x}", std::to_integer<int>(b));
  return text;
}

Status run_agent(const AgentOptions& options) {
  AgentEnds ends(options.end_fd, options.outlasts_signal);  // from before the first place starts
  const SteadyClock clock;
  std::int64_t lost_ns = clock.now_ns();
  std::string told;
  std::size_t attempt = 0;
  Service* service = nullptr;
  const auto tell = [&service](const FromAgent& m) {
    if (service) service->tell(m);
  };
  auto agent = std::make_unique<Agent>(tell);
  Kept kept;
  for (;;) {
    const std::int64_t deadline_ns = lost_ns + options.wait_ms * ms;
    Status why;
    if (auto fd = connect_to(options.join, attempt++); !fd.ok()) {
      if (fd.status().code() == Code::invalid) return fd.status();
      why = fd.status();
    } else {
      const std::int64_t begin_ns = clock.now_ns();
      Service connected(options, *fd, ends, *agent, kept);
      service = &connected;
      const Parting parting = connected.run(std::min(deadline_ns, begin_ns + attempt_ns));
      service = nullptr;
      if (parting.finished) return {};
      if (connected.taken()) kept = agent->keep(grace_ms, killed_ms_max);
      if (parting.refused) return parting.why.in(options.join);
      why = parting.why.in(options.join);
      const bool waited_with_it = connected.open() && clock.now_ns() - begin_ns > 10 * retry_ns;  // for other machines
      if (connected.taken() || waited_with_it) lost_ns = clock.now_ns();
    }
    if (std::exchange(told, why.message()) != why.message()) log_warn(why.message() + ": tries again");
    if (clock.now_ns() + retry_ns >= lost_ns + options.wait_ms * ms)
      return Status(Code::unavailable, fmt::format("{}; no job has taken this machine for {:.1f} s", why.message(),
                                                   static_cast<double>(clock.now_ns() - lost_ns) * 1e-9));
    PollSet pause;
    ends.watch(pause);
    if (pause.wait(static_cast<int>(retry_ns / ms))) pause.serve();
    TROUPE_TRY(ends.due(false, clock.now_ns()));
  }
}

}  // namespace troupe::runtime
