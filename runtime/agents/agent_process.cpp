#include "runtime/agents/agent_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
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
constexpr int grace_ms = 500;  // of places whose job cannot be reached
constexpr std::int64_t patience_least_ns = 10'000 * ms;

/// Why a connection is over: the job has said so, or what has broken it.
struct Parting {
  bool finished = false, refused = false;
  Status why;
};

/// One connection, from its beginning to its end.
class Service {
 public:
  Service(const AgentOptions& options, int fd, AgentEnds& ends)
      : options_(options), ends_(ends), connection_(fd, Handshake::End::joins, options.token),
        agent_([this](const FromAgent& m) { tell(m); }) {}

  Parting run(std::int64_t deadline_ns) {
    while (!parting_) turn(deadline_ns);
    if (!parting_->finished)
      if (const Status s = agent_.finish(grace_ms, killed_ms_max); !s.ok()) log_warn(s.message());
    return *parting_;
  }

 private:
  void part(Parting how) {
    if (!parting_) parting_ = std::move(how);
  }

  void tell(const FromAgent& message) {
    if (parting_ || !connection_.open()) return;
    sent_ns_ = clock_.now_ns();
    if (const Status s = connection_.post(encode(message)); !s.ok()) part({false, false, s});
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
    if (!known && connection_.open()) tell(Joins{options_.machine, options_.places, options_.program});
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
      log_info("the job takes this machine");
      if (options_.on_join) options_.on_join();
    } else if (const auto* refused = std::get_if<Refused>(&order)) {
      part({false, true, invalid(refused->why)});
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
  Agent agent_;
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
  for (;;) {
    const std::int64_t deadline_ns = lost_ns + options.wait_ms * ms;
    Status why;
    if (auto fd = connect_to(options.join, attempt++); !fd.ok()) {
      if (fd.status().code() == Code::invalid) return fd.status();
      why = fd.status();
    } else {
      const std::int64_t begin_ns = clock.now_ns();
      const Parting parting = Service(options, *fd, ends).run(deadline_ns);
      if (parting.finished) return {};
      if (parting.refused) return parting.why.in(options.join);
      why = parting.why.in(options.join);
      if (clock.now_ns() - begin_ns > 10 * retry_ns) lost_ns = clock.now_ns();  // it was a job for a while
    }
    if (std::exchange(told, why.message()) != why.message()) log_warn(why.message() + ": tries again");
    if (clock.now_ns() + retry_ns >= lost_ns + options.wait_ms * ms)
      return Status(Code::unavailable, fmt::format("{}; no job was reached for {:.1f} s", why.message(),
                                                   static_cast<double>(clock.now_ns() - lost_ns) * 1e-9));
    PollSet pause;
    ends.watch(pause);
    if (pause.wait(static_cast<int>(retry_ns / ms))) pause.serve();
    TROUPE_TRY(ends.due(false, clock.now_ns()));
  }
}

}  // namespace troupe::runtime
