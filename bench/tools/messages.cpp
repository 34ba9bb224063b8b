// Messages between processes over the project's UCX transport, and an all-reduce over its exchanges.
//
//   bench_messages stream TLS BYTES OUTSTANDING BUFFERS COUNT [SPIN_US]    rank 1 sends to rank 0
//   bench_messages ping-pong TLS BYTES COUNT [SPIN_US]                     half a round trip
//   bench_messages all-reduce TLS BYTES WORKERS COUNT [SPIN_US]            floats, P -> S -> B as for gradients
//
// TLS is what UCX may use, such as "posix,cma". Starts the other processes itself. Rank 0 prints one line of JSON.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/ucx/ucx_transport.h"
#include "devices/base/check.h"
#include "devices/base/clock.h"
#include "devices/cpu/cpu_device.h"
#include "devices/host_memory.h"
#include "placement/boxing.h"

namespace {

using namespace troupe;
using namespace troupe::comm;

double now_s() { return static_cast<double>(SteadyClock().now_ns()) * 1e-9; }

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "bench_messages: {}\n", why);
  std::exit(2);
}

// ---- processes that know each other's addresses ---------------------------------------------------------------

void put(int fd, const std::string& s) {
  const std::size_t n = s.size();
  if (::write(fd, &n, sizeof n) != sizeof n || ::write(fd, s.data(), n) != static_cast<ssize_t>(n))
    give_up("a process is gone");
}
std::string get(int fd) {
  const auto all = [fd](void* p, std::size_t n) {
    for (std::size_t at = 0; at < n;) {
      const ssize_t got = ::read(fd, static_cast<char*>(p) + at, n - at);
      if (got <= 0) give_up("a process is gone");
      at += static_cast<std::size_t>(got);
    }
  };
  std::size_t n = 0;
  all(&n, sizeof n);
  std::string s(n, '\0');
  all(s.data(), n);
  return s;
}

struct Options {
  std::string tls;
  std::int64_t spin_us = 0;
};

/// One process of a group. Rank 0 forks the others before it has a thread, and passes addresses on over pipes.
class Member {
 public:
  Member(int ranks, const Options& o) {
    for (int r = 1; r < ranks && rank_ == 0; ++r) fork_one(r);
    auto made = UcxTransport::open({.rank = rank_, .job = 1, .generation = 1, .tls = o.tls, .spin_us = o.spin_us});
    if (!made.ok()) give_up(made.status().message());
    transport_ = *std::move(made);
    std::map<Rank, std::string> addresses{{rank_, transport_->address()}};
    if (rank_ == 0) {
      for (const auto& c : children_) addresses[c.rank] = get(c.from);
      for (const auto& c : children_)
        for (Rank r = 0; r < ranks; ++r) put(c.to, addresses[r]);
    } else {
      put(up_, transport_->address());
      for (Rank r = 0; r < ranks; ++r) addresses[r] = get(down_);
    }
    transport_->connect(addresses);
  }
  /// Leaves together: no process goes while another still sends.
  ~Member() {
    if (rank_ == 0) {
      for (const auto& c : children_) (void)get(c.from);
      for (const auto& c : children_) put(c.to, "bye");
      transport_->shutdown();
      for (const auto& c : children_) ::waitpid(c.pid, nullptr, 0);
    } else {
      put(up_, "done");
      (void)get(down_);
      transport_->shutdown();
    }
  }
  Rank rank() const { return rank_; }
  UcxTransport& transport() { return *transport_; }

 private:
  struct Child {
    Rank rank;
    pid_t pid;
    int to, from;
  };
  void fork_one(Rank r) {
    int down[2], up[2];
    if (::pipe(down) != 0 || ::pipe(up) != 0) give_up("no pipe");
    const pid_t pid = ::fork();
    if (pid < 0) give_up("no process");
    if (pid == 0) {
      rank_ = r, down_ = down[0], up_ = up[1];
      return;
    }
    children_.push_back({r, pid, down[1], up[0]});
  }
  Rank rank_ = 0;
  int down_ = -1, up_ = -1;
  std::vector<Child> children_;
  std::unique_ptr<UcxTransport> transport_;
};

/// Counts what is done; waits asleep, so that the cores belong to the transport.
class Countdown {
 public:
  explicit Countdown(int n) : left_(n) {}
  void one_done(const Status& s) {
    if (!s.ok()) give_up(s.message());
    if (left_.fetch_sub(1) == 1) left_.notify_all();
  }
  void wait() {
    for (int n = left_; n > 0; n = left_) left_.wait(n);
  }

 private:
  std::atomic<int> left_;
};

Header header(std::uint32_t channel, std::uint32_t sequence) {
  Header h;
  h.job = 1, h.generation = 1, h.channel = channel, h.sequence = sequence;
  return h;
}

// ---- what is measured -----------------------------------------------------------------------------------------

/// Memory as workers have it: large pages where the machine gives them.
class Memory {
 public:
  explicit Memory(std::size_t bytes) {
    auto made = allocate_host(bytes);
    if (!made.ok()) give_up(made.status().message());
    buffer_ = *std::move(made);
    std::memset(buffer_->data(), 0, bytes);
  }
  std::byte* data() const { return buffer_->data(); }
  std::span<std::byte> span() const { return {buffer_->data(), buffer_->size()}; }

 private:
  std::unique_ptr<Buffer> buffer_;
};

/// Slots of equal size in one arena, as a worker's are: they lie on large pages even where one alone would fill none.
class Slots {
 public:
  Slots(std::size_t bytes, int count)
      : bytes_(bytes), count_(count), arena_(std::max(bytes * count, std::size_t{8} << 20)) {}
  std::span<std::byte> operator[](int i) const {
    return {arena_.data() + static_cast<std::size_t>(i % count_) * bytes_, bytes_};
  }

 private:
  std::size_t bytes_;
  int count_;
  Memory arena_;
};

/// Seconds for `count` messages from rank 1 to rank 0, `outstanding` under way, the slots used in turn.
double stream(Member& m, std::uint32_t channel, const Slots& slots, int outstanding, int count) {
  Countdown left(count);
  std::function<void(int)> next = [&](int i) {
    const auto sequence = static_cast<std::uint32_t>(i);
    const auto after = [&, i](const Status& s) {
      if (i + outstanding < count) next(i + outstanding);
      left.one_done(s);
    };
    if (m.rank() == 1) m.transport().send(0, header(channel, sequence), slots[i], after);
    else m.transport().recv(1, {channel, 0, sequence}, slots[i], [after](const Status& s, const Header&) { after(s); });
  };
  const double begin = now_s();
  for (int i = 0; i < std::min(outstanding, count); ++i) next(i);
  left.wait();
  return now_s() - begin;
}

/// Seconds for `turns` messages to and fro, rank 0 first.
double ping_pong(Member& m, std::uint32_t channel, std::vector<std::byte>& ball, std::vector<std::byte>& in,
                 int turns) {
  const Rank other = 1 - m.rank();
  Countdown left(turns);
  std::function<void(int)> turn = [&](int i) {  // turn i is a send of rank i % 2
    if (i >= turns) return;
    if (i % 2 == m.rank()) {
      m.transport().send(other, header(channel, static_cast<std::uint32_t>(i)), ball,
                         [&](const Status& s) { left.one_done(s); });
      turn(i + 1);
    } else {
      m.transport().recv(other, {channel, 0, static_cast<std::uint32_t>(i)}, in,
                         [&, i](const Status& s, const Header&) {
                           turn(i + 1);
                           left.one_done(s);
                         });
    }
  };
  const double begin = now_s();
  turn(0);
  left.wait();
  return now_s() - begin;
}

/// One tensor of floats: everybody's terms are added and everybody has the sum (P -> S -> B, as the planner does it).
class AllReduce {
 public:
  AllReduce(Member& m, int ranks, std::int64_t bytes)
      : m_(m), device_(clock_), elements_(bytes / 4), terms_(bytes), share_(bytes), sum_(bytes) {
    const Mesh mesh = Mesh::dense({{"dp", ranks}});
    const Shape shape{elements_};
    const Layout partial(shape, DType::f32, mesh, {Sbp::P()}), split(shape, DType::f32, mesh, {Sbp::S(0)}),
        whole(shape, DType::f32, mesh, {Sbp::B()});
    scatter_ = step(partial, split);
    gather_ = step(split, whole);
    for (std::int64_t i = 0; i < elements_; ++i)
      reinterpret_cast<float*>(terms_.data())[i] = static_cast<float>(m.rank() + i % 7);
    staging_ = std::make_unique<Memory>(std::max(scatter_.staging_bytes, gather_.staging_bytes));
    stream_ = device_.create_stream("comm", 1);
  }
  double seconds(std::uint32_t number) {
    const double begin = now_s();
    run(scatter_, 2 * number, terms_, share_);
    run(gather_, 2 * number + 1, share_, sum_);
    return now_s() - begin;
  }
  /// The sum is what arithmetic says: a wrong all-reduce has no speed.
  void check(int ranks) const {
    const auto* sum = reinterpret_cast<const float*>(sum_.data());
    for (std::int64_t i = 0; i < elements_; ++i)
      if (sum[i] != static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (i % 7))) give_up("wrong sum");
  }

 private:
  Route step(const Layout& from, const Layout& to) {
    const auto plan = plan_boxing(from, to);
    if (!plan.ok()) give_up(plan.status().message());
    const Holding have = from.holding_at(m_.rank());
    const Extent want = to.extent_at(m_.rank());
    Route route;
    PartNumbers numbers;
    add_move(route, m_.rank(), *plan, DType::f32, DType::f32, {.have = {{have.extent, have.term, 0}}, .want = &want},
             numbers);
    return route;
  }
  void run(const Route& route, std::uint32_t channel, const Memory& from, const Memory& to) {
    Countdown left(1);
    ExchangeAct act;
    act.header = header(channel, 0);
    act.sources = {from.data()};
    act.destination = to.data();
    act.staging = staging_->data();
    run_exchange(route, act, m_.transport(), *stream_, [&](const Status& s, const Header&) { left.one_done(s); });
    left.wait();
  }

  Member& m_;
  SteadyClock clock_;
  CpuDevice device_;
  const std::int64_t elements_;
  Memory terms_, share_, sum_;
  Route scatter_, gather_;
  std::unique_ptr<Memory> staging_;
  std::unique_ptr<Stream> stream_;
};

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

// ---- commands -------------------------------------------------------------------------------------------------

void run_stream(const Options& o, std::size_t bytes, int outstanding, int buffers, int count) {
  Member m(2, o);
  const Slots slots(bytes, buffers);
  stream(m, 1, slots, outstanding, std::max(count / 10, 2 * outstanding));
  const double s = stream(m, 2, slots, outstanding, count);
  if (m.rank() == 0)
    fmt::print("{{\"gb_per_s\": {:.3f}, \"messages_per_s\": {:.0f}}}\n", static_cast<double>(bytes) * count / s * 1e-9,
               count / s);
}

void run_ping_pong(const Options& o, std::size_t bytes, int count) {
  Member m(2, o);
  std::vector<std::byte> ball(bytes), in(bytes);
  ping_pong(m, 1, ball, in, count / 10);
  const double s = ping_pong(m, 2, ball, in, count);
  if (m.rank() == 0) fmt::print("{{\"one_way_us\": {:.3f}}}\n", s / count * 1e6);
}

void run_all_reduce(const Options& o, std::int64_t bytes, int workers, int count) {
  Member m(workers, o);
  AllReduce all(m, workers, bytes);
  std::vector<double> times;
  for (int i = 0; i < count + 3; ++i) {
    const double s = all.seconds(static_cast<std::uint32_t>(i + 1));
    if (i >= 3) times.push_back(s);
  }
  all.check(workers);
  if (m.rank() == 0) fmt::print("{{\"ms\": {:.3f}}}\n", median(times) * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  const auto number = [&](std::size_t i) { return i < a.size() ? std::atoll(a[i].c_str()) : 0; };
  const auto options = [&](std::size_t spin) { return Options{a[1], number(spin)}; };
  if (a.size() >= 6 && a[0] == "stream")
    run_stream(options(6), static_cast<std::size_t>(number(2)), static_cast<int>(number(3)),
               static_cast<int>(number(4)), static_cast<int>(number(5)));
  else if (a.size() >= 4 && a[0] == "ping-pong")
    run_ping_pong(options(4), static_cast<std::size_t>(number(2)), static_cast<int>(number(3)));
  else if (a.size() >= 5 && a[0] == "all-reduce")
    run_all_reduce(options(5), number(2), static_cast<int>(number(3)), static_cast<int>(number(4)));
  else
    give_up(
        "stream TLS BYTES OUTSTANDING BUFFERS COUNT | ping-pong TLS BYTES COUNT | all-reduce TLS BYTES WORKERS COUNT");
  return 0;
}
