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
#include "devices/host_memory.h"
#include "kernels/processor.h"
#include "runtime/agents/agent_ends.h"
#include "runtime/agents/agent_life.h"
#include "runtime/agents/connection.h"
#include "runtime/agents/followed_leader.h"
#include "runtime/agents/launcher.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

namespace {

constexpr std::int64_t ms = AgentLife::ms;

/// What tells the /dev/shm of this process from another one: the boot of its host, and the file system that is mounted
/// there.
std::string host_of_shared_memory() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat shm {};
  return ::stat("/dev/shm", &shm) == 0 ? fmt::format("{}:{}", boot, shm.st_dev) : boot;
}

/// Serves an agent: brings it the messages of its connection, and what has become of its processes.
class AgentService {
 public:
  AgentService(const AgentOptions& options, AgentEnds& ends)
      : options_(options), ends_(ends),
        life_(
            {{options.machine,
              options.places,
              options.program,
              options.net_device,
              host_of_shared_memory(),
              {},
              static_cast<std::int64_t>(available_host_bytes()),
              kernels::numbers_digest()},
             options.join,
             options.wait_ms,
             killed_ms_max,
             options.on_join},
            [this](const FromAgent& m) { return connection_->post(encode(m)); }, clock_.now_ns()) {}

  Status run() {
    for (std::size_t attempt = 0;; ++attempt) {
      const std::int64_t deadline_ns = life_.connects(clock_.now_ns());
      if (options_.where) leader_.connects(options_.where->address(), clock_.now_ns());
      const Expected<std::string>& at = leader_.at();
      if (auto fd = at.ok() ? connect_to(*at, attempt) : Expected<int>(at.status()); fd.ok()) {
        connection_.emplace(*fd, Handshake::End::joins, options_.token);
        while (!life_.over()) turn(deadline_ns);
        connection_.reset();
      } else if (fd.status().code() == Code::invalid) {
        return fd.status();
      } else {
        life_.cannot_connect(fd.status());
      }
      if (const auto ended = life_.parted(clock_.now_ns())) return *ended;
      PollSet pause;
      ends_.watch(pause);
      if (pause.wait(static_cast<int>(AgentLife::retry_ns / ms))) pause.serve();
      if (options_.where) {
        options_.where->turn(leader_.hears(clock_.now_ns()));
        TROUPE_TRY(options_.where->given_up());
      }
      TROUPE_TRY(ends_.due(false, clock_.now_ns()));
    }
  }

 private:
  void turn(std::int64_t deadline_ns) {
    PollSet set;
    set.add(connection_->fd(), connection_->events(), [this](short happened) {
      if (happened != 0) serve();
    });
    life_.agent().watch(set);
    ends_.watch(set);
    if (options_.where) set.add(options_.where->fd(), POLLIN, [](short) {});  // look_at_leader()
    constexpr std::int64_t poll_ns = 200 * ms;
    const std::int64_t wait_ns = life_.is_taken() ? std::min(poll_ns, life_.budget_ns() / 8) : poll_ns;
    if (!set.wait(static_cast<int>(wait_ns / ms))) return;
    set.serve();
    life_.turn(clock_.now_ns());
    if (options_.where) look_at_leader();
    if (const Status s = ends_.due(life_.is_taken(), clock_.now_ns()); !s.ok()) life_.breaks(s, true);
    if (!connection_->open() && clock_.now_ns() >= deadline_ns)
      life_.breaks(Status(Code::unavailable, "it has not answered"));
  }

  /// Leaves a leader whose place another one has taken.
  void look_at_leader() {
    options_.where->turn(leader_.hears(clock_.now_ns()));
    if (const Status s = leader_.leaves(options_.where->address()); !s.ok()) life_.breaks(s);
  }

  void serve() {
    const bool known = connection_->open();
    std::deque<std::vector<std::byte>> messages;
    const Status s = connection_->serve(messages);
    life_.heard(clock_.now_ns());
    if (life_.is_taken()) silent_ns_ = life_.budget_ns();
    if (connection_->open()) leader_.heard(clock_.now_ns(), silent_ns_);
    if (!known && connection_->open()) life_.opened(clock_.now_ns());
    for (const auto& message : messages) {
      const auto order = decode_to_agent(message);
      if (!order.ok()) return life_.breaks(order.status());
      life_.take(*order, clock_.now_ns());
      if (std::holds_alternative<Finish>(*order)) return flush();
    }
    if (!s.ok()) life_.breaks(s, s.code() == Code::invalid && !known);
  }

  /// Sends what is queued, for as long as the job reads it.
  void flush() {
    const std::int64_t until_ns = clock_.now_ns() + 5'000 * ms;
    std::deque<std::vector<std::byte>> messages;
    while ((connection_->events() & POLLOUT) != 0 && clock_.now_ns() < until_ns) {
      PollSet set;
      set.add(connection_->fd(), POLLOUT, [](short) {});
      if (set.wait(100) && !connection_->serve(messages).ok()) return;
    }
  }

  const AgentOptions& options_;
  AgentEnds& ends_;
  const SteadyClock clock_;

  FollowedLeader leader_{options_.join};
  std::int64_t silent_ns_ = FollowedLeader::silent_ns;  // for so long the leader may say nothing
  std::optional<Connection> connection_;
  AgentLife life_;
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
  TROUPE_TRY(kernels::check_processor());
  AgentEnds ends(options.end_fd, options.outlasts_signal);  // from before the first place starts
  return AgentService(options, ends).run();
}

}  // namespace troupe::runtime
