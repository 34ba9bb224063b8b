#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "devices/cpu/cpu_device.h"
#include "devices/cpu/thread_team.h"
#include "devices/host_memory.h"

using namespace troupe;

namespace {

/// Opens once; what waits goes on.
class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace

TEST_CASE("cpu stream: tasks never overlap, and each is on_start, work, on_done") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 1);
  CHECK(stream->name() == "compute");
  constexpr int kTasks = 200;
  std::vector<std::pair<int, char>> log;  // unguarded on purpose: one thread writes it (TSan would tell)
  std::vector<std::int64_t> times;
  Gate done;
  std::atomic<int> finished{0};
  auto submit = [&](int id, std::int32_t microbatch) {
    Task t;
    t.order.microbatch = microbatch;
    t.on_start = [&, id] { log.push_back({id, 's'}); };
    t.work = [&, id](Parallel&) { log.push_back({id, 'w'}); };
    t.on_done = [&, id](std::int64_t begin_ns, std::int64_t end_ns) {
      log.push_back({id, 'd'});
      times.push_back(begin_ns);
      times.push_back(end_ns);
      if (++finished == kTasks) done.open();
    };
    stream->submit(std::move(t));
  };
  std::thread other([&] {  // submit is thread-safe
    for (int i = 0; i < kTasks; i += 2) submit(i, i % 7);
  });
  for (int i = 1; i < kTasks; i += 2) submit(i, i % 7);
  other.join();
  done.wait();
  stream->quiesce();
  REQUIRE(log.size() == 3 * kTasks);
  for (std::size_t i = 0; i < log.size(); i += 3) {
    CHECK(log[i].second == 's');
    CHECK(log[i + 1] == std::make_pair(log[i].first, 'w'));
    CHECK(log[i + 2] == std::make_pair(log[i].first, 'd'));
  }
  for (std::size_t i = 1; i < times.size(); ++i) CHECK(times[i - 1] <= times[i]);
}

TEST_CASE("cpu stream: the next task is chosen when the stream is free, by ReadyQueue's rule") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 1);
  std::string order;
  Gate started, submitted, done;
  auto submit = [&](char name, TaskOrder o, std::function<void(Parallel&)> work) {
    Task t;
    t.order = o;
    t.work = std::move(work);
    t.on_done = [&, name](std::int64_t, std::int64_t) {
      order += name;
      if (order.size() == 5) done.open();
    };
    stream->submit(std::move(t));
  };
  submit('a', {1, 0, 0, 1}, [&](Parallel&) {
    started.open();
    submitted.wait();
  });
  started.wait();
  submit('e', {9, 0, 0, 4}, {});
  submit('d', {1, 0, 1, 1}, {});
  submit('c', {0, 0, 0, 2}, {});
  submit('b', {1, 0, 0, 1}, {});  // continues a's run
  submitted.open();
  done.wait();
  CHECK(order == "abcde");
}

TEST_CASE("cpu stream: quiesce drops what waits, waits for what runs, and leaves the stream usable") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 2);
  Gate started, go;
  std::atomic<int> done{0}, dropped_ran{0};
  auto owned = std::make_shared<int>(0);
  Task first;
  first.on_start = [&] { started.open(); };
  first.work = [&](Parallel&) { go.wait(); };
  const auto submit_dropped = [&] {
    Task t;
    t.work = [&, owned](Parallel&) { ++dropped_ran; };
    stream->submit(std::move(t));
  };
  first.on_done = [&](std::int64_t, std::int64_t) {
    submit_dropped();  // while quiesce() waits for this task
    ++done;
  };
  stream->submit(std::move(first));
  started.wait();
  for (int i = 0; i < 3; ++i) submit_dropped();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(done == 0);
    go.open();
  });
  stream->quiesce();
  CHECK(done == 1);
  CHECK(owned.use_count() == 1);  // what waited is forgotten, closures and all
  stream->quiesce();              // idempotent
  opener.join();
  Gate again;
  Task t;
  t.on_done = [&](std::int64_t, std::int64_t) { again.open(); };
  stream->submit(std::move(t));
  again.wait();
  CHECK(dropped_ran == 0);
}

TEST_CASE("cpu stream: a running task sees, on each of its threads, that its stream is being quiesced") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 2);
  Gate started;
  std::atomic<int> saw{0};
  bool before = true, at_end = false;
  Task t;
  t.work = [&](Parallel& parallel) {
    before = parallel.stopping();
    started.open();
    parallel.for_each(2, [&](std::int64_t) {
      const auto end_ns = clock.now_ns() + 20'000'000'000;
      while (!parallel.stopping() && clock.now_ns() < end_ns) std::this_thread::yield();
      saw += parallel.stopping();
    });
    at_end = parallel.stopping();
  };
  stream->submit(std::move(t));
  started.wait();
  stream->quiesce();
  CHECK_FALSE(before);
  CHECK(saw == 2);
  CHECK(at_end);
}

TEST_CASE("cpu stream: it runs tasks as usual after a quiesce, also after two at a time") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 1);
  for (int round = 0; round < 100; ++round) {
    Gate started, over;
    Task running;
    running.work = [&](Parallel&) { started.open(); };
    stream->submit(std::move(running));
    started.wait();
    std::thread other([&] { stream->quiesce(); });
    stream->quiesce();
    other.join();
    bool stopping = true;
    Task next;
    next.work = [&](Parallel& parallel) { stopping = parallel.stopping(); };
    next.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
    stream->submit(std::move(next));
    over.wait();
    REQUIRE_FALSE(stopping);
  }
}

TEST_CASE("cpu stream: after quiesce turns go on with the first that has not started") {
  std::string order;
  Gate first_over, holds, submitted, over;
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute",
                                     1);  // forgets what a failing check leaves waiting, before the rest goes
  const auto submit = [&](char name, std::int32_t priority, std::int64_t turn, Gate* done = nullptr) {
    Task t;
    t.order.priority = priority;
    t.order.run = static_cast<std::uint32_t>(name);
    t.order.turn = turn;
    t.on_done = [&order, name, done](std::int64_t, std::int64_t) {
      order += name;
      if (done) done->open();
    };
    stream->submit(std::move(t));
  };
  submit('a', 0, 0, &first_over);
  first_over.wait();
  submit('x', 0, 2);  // waits for turn 1, and is forgotten
  stream->quiesce();
  Task hold;
  hold.on_start = [&] { holds.open(); };
  hold.work = [&](Parallel&) { submitted.wait(); };
  stream->submit(std::move(hold));
  holds.wait();
  submit('d', 9, -1, &over);
  submit('c', 1, 2);
  submit('b', 1, 1);
  submitted.open();
  over.wait();
  stream->quiesce();
  CHECK(order == "abcd");
}

TEST_CASE("cpu stream: a task begins when on_start has returned: what on_start runs is not the task's time") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("compute", 1);
  Gate over;
  std::int64_t started_ns = 0, began_ns = 0;
  Task t;
  t.on_start = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    started_ns = clock.now_ns();
  };
  t.on_done = [&](std::int64_t begin_ns, std::int64_t) {
    began_ns = begin_ns;
    over.open();
  };
  stream->submit(std::move(t));
  over.wait();
  CHECK(began_ns >= started_ns);
}

TEST_CASE("cpu stream: the destructor quiesces") {
  SteadyClock clock;
  CpuDevice device(clock);
  std::atomic<int> done{0};
  Gate started;
  {
    auto stream = device.create_stream("compute", 1);
    Task t;
    t.work = [&](Parallel&) {
      started.open();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    t.on_done = [&](std::int64_t, std::int64_t) { ++done; };
    stream->submit(std::move(t));
    started.wait();
  }
  CHECK(done == 1);
}

TEST_CASE("Parallel::for_each calls every index once, for any n and number of threads") {
  SteadyClock clock;
  CpuDevice device(clock);
  for (int threads = 1; threads <= 4; ++threads) {
    auto stream = device.create_stream("s" + std::to_string(threads), threads);
    Gate done;
    std::vector<std::string> wrong;
    Task t;
    t.work = [&](Parallel& parallel) {
      if (parallel.threads() != threads) wrong.push_back("threads() = " + std::to_string(parallel.threads()));
      for (int round = 0; round < 300; ++round)  // back to back: late helpers meet the next loop
        for (std::int64_t n : {0, 1, 2, 3, 1000}) {
          std::vector<std::atomic<int>> calls(n);
          parallel.for_each(n, [&](std::int64_t i) { ++calls[i]; });
          for (std::int64_t i = 0; i < n; ++i)
            if (calls[i] != 1) wrong.push_back("n = " + std::to_string(n) + ": index " + std::to_string(i));
        }
    };
    t.on_done = [&](std::int64_t, std::int64_t) { done.open(); };
    stream->submit(std::move(t));
    done.wait();
    INFO("threads = " << threads);
    CHECK(wrong == std::vector<std::string>{});
  }
}

TEST_CASE("Parallel::for_each really uses the stream's threads") {
  SteadyClock clock;
  CpuDevice device(clock);
  auto stream = device.create_stream("wide", 2);
  Gate done;
  std::atomic<int> arrived{0};
  Task t;
  t.work = [&](Parallel& parallel) {
    // Each of the two indices waits for the other: a single thread would never come out.
    parallel.for_each(2, [&](std::int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
  };
  t.on_done = [&](std::int64_t, std::int64_t) { done.open(); };
  stream->submit(std::move(t));
  done.wait();
  CHECK(arrived == 2);
}

TEST_CASE(
    "Parallel::for_each: an exception on any of its threads comes out on the caller's, and the team stays usable") {
  ThreadTeam team("team", 3, {});
  const auto caller = std::this_thread::get_id();
  enum Thrower { on_helper, on_caller, on_all };
  for (int round = 0; round < 50; ++round)
    for (Thrower who : {on_helper, on_caller, on_all}) {
      std::atomic<int> arrived{0}, inside{0};
      std::atomic<bool> thrown{false};
      std::string caught;
      try {
        team.for_each(1000, [&](std::int64_t) {
          ++inside;
          if (++arrived <= 3)
            while (arrived < 3) std::this_thread::yield();  // the first three indices: one on each thread
          const bool mine = who == on_all || (std::this_thread::get_id() == caller) == (who == on_caller);
          --inside;
          if (mine && (who == on_all || !thrown.exchange(true))) throw std::runtime_error("broken");
        });
      } catch (const std::runtime_error& e) {
        caught = e.what();
      }
      REQUIRE(caught == "broken");
      REQUIRE(inside == 0);
      std::vector<std::atomic<int>> calls(100);
      team.for_each(100, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& n : calls) REQUIRE(n == 1);
    }
}

TEST_CASE("Parallel::for_each begins no new index after an exception") {
  ThreadTeam team("team", 2, {});
  std::atomic<int> calls{0};
  CHECK_THROWS_AS(team.for_each(1'000'000'000,
                                [&](std::int64_t) {
                                  ++calls;
                                  throw 7;
                                }),
                  int);
  CHECK(calls <= 2);
}

TEST_CASE("threads carry the stream's name; each has a core of its own, streams in order, while there are some") {
  const auto usable = usable_cores();
  REQUIRE(!usable.empty());
  const std::vector<int> given(usable.begin(), usable.begin() + std::min<std::ptrdiff_t>(2, std::ssize(usable)));
  SteadyClock clock;
  CpuDevice device(clock, {.cores = given});
  const auto threads = static_cast<std::int64_t>(given.size());
  auto pinned = device.create_stream("a stream with a long name", static_cast<int>(threads));
  auto other = device.create_stream("other", 1);
  /// Where the threads of a stream may run, and the name of its first.
  auto look = [&](Stream& stream, std::int64_t n, std::string& name) {
    std::vector<std::vector<int>> cores(static_cast<std::size_t>(n));
    std::atomic<std::int64_t> arrived{0};
    Gate done;
    Task t;
    t.work = [&](Parallel& parallel) {
      char text[16] = {};
      ::pthread_getname_np(::pthread_self(), text, sizeof text);
      name = text;
      // each index in a thread of its own: they wait for each other
      parallel.for_each(n, [&](std::int64_t i) {
        cores[static_cast<std::size_t>(i)] = usable_cores();
        ++arrived;
        while (arrived < n) std::this_thread::yield();
      });
    };
    t.on_done = [&](std::int64_t, std::int64_t) { done.open(); };
    stream.submit(std::move(t));
    done.wait();
    return cores;
  };
  std::string name;
  auto cores = look(*pinned, threads, name);
  CHECK(name == "a stream with a");
  std::sort(cores.begin(), cores.end());
  REQUIRE(cores.size() == given.size());
  for (std::size_t i = 0; i < cores.size(); ++i) CHECK(cores[i] == std::vector<int>{given[i]});
  CHECK(look(*other, 1, name) == std::vector<std::vector<int>>{usable});
}

TEST_CASE("allocate gives zeroed memory at a 4 KiB boundary, of the size asked for") {
  SteadyClock clock;
  CpuDevice device(clock);
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20}) {
    auto buffer = device.allocate(bytes);
    REQUIRE(buffer.ok());
    CHECK((*buffer)->size() == bytes);
    std::byte* data = (*buffer)->data();
    CHECK(reinterpret_cast<std::uintptr_t>(data) % 4096 == 0);
    std::size_t nonzero = 0;
    for (std::size_t i = 0; i < bytes; ++i) nonzero += data[i] != std::byte{0};
    CHECK(nonzero == 0);
    if (bytes) data[0] = data[bytes - 1] = std::byte{1};
  }
}

TEST_CASE("allocate refuses what the machine cannot give, and says how much that was") {
  SteadyClock clock;
  CpuDevice device(clock);
  for (std::size_t bytes : {available_host_bytes() + (std::size_t{1} << 40), ~std::size_t{0}}) {
    const auto buffer = device.allocate(bytes);
    REQUIRE_FALSE(buffer.ok());
    CHECK(buffer.status().code() == Code::exhausted);
    CHECK(buffer.status().message().find(std::to_string(bytes) + " bytes") != std::string::npos);
  }
}
