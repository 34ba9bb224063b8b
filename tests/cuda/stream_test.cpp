// The contract of Stream (devices/device.h), of the streams of a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/cuda/gpu.h"

using namespace troupe;
using namespace troupe::test;

namespace {

Task task(const std::string& name, TaskOrder order = {}) {
  Task t;
  t.name = name;
  t.order = order;
  return t;
}

/// What threads have said, in order.
class Log {
 public:
  void say(const std::string& word) {
    std::lock_guard lock(mutex_);
    text_ += (text_.empty() ? "" : " ") + word;
  }
  std::string text() {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

/// Pinned memory of `bytes`, all 0.
std::unique_ptr<Buffer> pinned(CudaDevice& device, std::size_t bytes) {
  auto buffer = device.allocate_pinned(bytes);
  INFO(buffer.status().message());
  REQUIRE(buffer.ok());
  return *std::move(buffer);
}

std::unique_ptr<Buffer> on_device(CudaDevice& device, std::size_t bytes) {
  auto buffer = device.allocate(bytes);
  INFO(buffer.status().message());
  REQUIRE(buffer.ok());
  return *std::move(buffer);
}

}  // namespace

TEST_CASE(
    "cuda stream: each task is on_start, work, on_done once, from any submitting thread, on_done in their order") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  constexpr int tasks = 200;
  Gate over;
  std::mutex mutex;
  std::vector<int> started, done;
  std::vector<std::string> states(tasks);
  std::vector<std::int64_t> times;
  bool times_hold = true;
  auto stream = device->create_stream("compute", 1);
  CHECK(stream->name() == "compute");
  const auto submit = [&](int id) {
    Task t = task(std::to_string(id), {0, 0, id % 7, static_cast<std::uint32_t>(id)});
    auto started_ns = std::make_shared<std::int64_t>(0);
    t.on_start = [&, id, started_ns] {
      std::lock_guard lock(mutex);
      started.push_back(id);
      states[id] += 's';
      *started_ns = clock.now_ns();
    };
    t.work = [&, id](Parallel& parallel) {
      CHECK(parallel.queue() != nullptr);
      CHECK(parallel.threads() == 1);
      std::lock_guard lock(mutex);
      states[id] += 'w';
    };
    t.on_done = [&, id, started_ns](std::int64_t begin_ns, std::int64_t end_ns) {
      std::lock_guard lock(mutex);
      done.push_back(id);
      states[id] += 'd';
      times_hold = times_hold && begin_ns >= *started_ns && end_ns <= clock.now_ns();
      times.push_back(begin_ns);
      times.push_back(end_ns);
      if (done.size() == tasks) over.open();
    };
    stream->submit(std::move(t));
  };
  std::thread other([&] {
    for (int i = 0; i < tasks; i += 2) submit(i);
  });
  for (int i = 1; i < tasks; i += 2) submit(i);
  other.join();
  over.wait();
  stream->quiesce();
  CHECK(done == started);
  CHECK(states == std::vector<std::string>(tasks, "swd"));
  CHECK(times_hold);
  CHECK(std::is_sorted(times.begin(), times.end()));
}

TEST_CASE("CS-1 (depth): the next task is chosen by ReadyQueue's rule, when fewer than depth are in flight") {
  for (const int depth : {1, 2, 3}) {
    fresh(static_cast<std::uint64_t>(depth));
    SteadyClock clock;
    auto device = open_gpu(clock, {.depth = depth});
    Gate first_ones, all_issued, over;
    Log order;
    std::atomic<int> in_flight{0}, most{0}, issued{0}, ended{0};
    const int tasks = depth + 4;
    auto stream = device->create_stream("compute", 1);
    OpensAtEnd opens{first_ones};
    const auto submit = [&](const std::string& name, TaskOrder o, bool held) {
      Task t = task(name, o);
      t.on_start = [&] {
        const int now = ++in_flight;
        for (int before = most; now > before && !most.compare_exchange_weak(before, now);) {}
      };
      t.work = [&, held](Parallel& parallel) {
        if (held) hold(parallel.queue(), first_ones);
        if (++issued == depth) all_issued.open();
      };
      t.on_done = [&, name](std::int64_t, std::int64_t) {
        order.say(name);
        --in_flight;
        if (++ended == tasks) over.open();
      };
      stream->submit(std::move(t));
    };
    std::string expected;
    for (int i = 0; i < depth; ++i) {
      submit("a" + std::to_string(i), {1, 0, 0, 1}, true);
      expected += "a" + std::to_string(i) + " ";
    }
    all_issued.wait();
    submit("e", {9, 0, 0, 4}, false);
    submit("d", {1, 0, 1, 1}, false);
    submit("c", {0, 0, 0, 2}, false);
    submit("b", {1, 0, 0, 1}, false);  // continues the run of the first ones
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(issued == depth);
    first_ones.open();
    over.wait();
    CHECK(order.text() == expected + "b c d e");
    CHECK(most == depth);
  }
}

TEST_CASE("CS-3 (completion): parts behind the work are called when the device has done what was issued before them") {
  constexpr std::size_t n = 1 << 16;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    fresh(seed);
    SteadyClock clock;
    auto device = open_gpu(clock);
    auto memory = on_device(*device, n);
    auto seen = pinned(*device, 2 * n);
    Log log;
    Gate over, rest, first_part;
    auto stream = device->create_stream("compute", 1);
    OpensAtEnd opens{rest};
    const auto holds = [&](std::size_t from, int value) {
      for (std::size_t i = from; i < from + n; ++i)
        if (seen->data()[i] != static_cast<std::byte>(value)) return " wrong";
      return "";
    };
    Task t = task("two parts");
    t.work = [&](Parallel& parallel) {
      fill(parallel.queue(), memory->data(), 7, n);
      copy(parallel.queue(), seen->data(), memory->data(), n);
      parallel.after([&] {
        log.say(std::string("seven") + holds(0, 7));
        first_part.open();
      });
      hold(parallel.queue(), rest);
      fill(parallel.queue(), memory->data(), 8, n);
      copy(parallel.queue(), seen->data() + n, memory->data(), n);
      parallel.after([&] { log.say(std::string("eight") + holds(n, 8)); });
      parallel.after([&] { log.say("last"); });  // nothing of the device's between
    };
    t.on_done = [&](std::int64_t, std::int64_t) {
      log.say("done");
      over.open();
    };
    stream->submit(std::move(t));
    first_part.wait();  // while the rest has not begun
    CHECK(log.text() == "seven");
    rest.open();
    over.wait();
    REQUIRE(log.text() == "seven eight last done");
  }
}

TEST_CASE("cuda stream: a task without work, and one that issues nothing, are done in their place") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  Log log;
  Gate over;
  auto stream = device->create_stream("compute", 1);
  for (const char* name : {"a", "b", "c"}) {
    Task t = task(name);
    if (*name == 'b') t.work = [&](Parallel& parallel) { parallel.after([&] { log.say("part"); }); };
    t.on_done = [&, name](std::int64_t, std::int64_t) {
      log.say(name);
      if (*name == 'c') over.open();
    };
    stream->submit(std::move(t));
  }
  over.wait();
  CHECK(log.text() == "a part b c");
}

TEST_CASE("cuda stream: quiesce drops what waits, waits for what is in flight, and leaves the stream usable") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  Gate go, issued;
  std::atomic<int> done{0}, dropped_ran{0};
  auto owned = std::make_shared<int>(0);
  auto stream = device->create_stream("compute", 1);
  OpensAtEnd opens{go};
  const auto submit_dropped = [&] {
    Task t = task("dropped");
    t.work = [&, owned](Parallel&) { ++dropped_ran; };
    stream->submit(std::move(t));
  };
  for (const char* name : {"first", "second"}) {
    Task t = task(name);
    t.work = [&, name](Parallel& parallel) {
      hold(parallel.queue(), go);
      if (*name == 's') issued.open();
    };
    t.on_done = [&, owned](std::int64_t, std::int64_t) {
      submit_dropped();  // while quiesce() waits for this task
      ++done;
    };
    stream->submit(std::move(t));
  }
  issued.wait();
  for (int i = 0; i < 3; ++i) submit_dropped();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(done == 0);
    go.open();
  });
  stream->quiesce();
  CHECK(done == 2);
  CHECK(owned.use_count() == 1);  // closures and all, of what waited and of what was in flight
  stream->quiesce();              // idempotent
  opener.join();
  Gate again;
  Task t = task("again");
  t.on_done = [&](std::int64_t, std::int64_t) { again.open(); };
  stream->submit(std::move(t));
  again.wait();
  CHECK(dropped_ran == 0);
}

TEST_CASE("cuda stream: after quiesce turns go on with the first that has not started") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock, {.depth = 1});
  Log order;
  Gate first_over, held, submitted, over;
  auto stream = device->create_stream("compute", 1);
  OpensAtEnd opens{submitted};
  const auto submit = [&](const std::string& name, std::int32_t priority, std::int64_t turn, Gate* done = nullptr) {
    Task t = task(name, {priority, 0, 0, static_cast<std::uint32_t>(name[0]), turn});
    t.on_done = [&order, name, done](std::int64_t, std::int64_t) {
      order.say(name);
      if (done) done->open();
    };
    stream->submit(std::move(t));
  };
  submit("a", 0, 0, &first_over);
  first_over.wait();
  submit("x", 0, 2);  // waits for turn 1, and is forgotten
  stream->quiesce();
  Task holds = task("holds");
  holds.work = [&](Parallel& parallel) {
    hold(parallel.queue(), submitted);
    held.open();
  };
  stream->submit(std::move(holds));
  held.wait();
  submit("d", 9, -1, &over);
  submit("c", 1, 2);
  submit("b", 1, 1);
  submitted.open();
  over.wait();
  CHECK(order.text() == "a b c d");
}

TEST_CASE("cuda stream: work that is being issued sees that its stream is being quiesced, and the next work does not") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  auto stream = device->create_stream("compute", 1);
  for (int round = 0; round < 20; ++round) {
    Gate started, over;
    bool before = true, saw = false, after = true;
    Task t = task("looks");
    t.work = [&](Parallel& parallel) {
      before = parallel.stopping();
      started.open();
      const auto end_ns = clock.now_ns() + 5'000'000'000;
      while (!parallel.stopping() && clock.now_ns() < end_ns) std::this_thread::yield();
      saw = parallel.stopping();
    };
    stream->submit(std::move(t));
    started.wait();
    std::thread other([&] { stream->quiesce(); });
    stream->quiesce();
    other.join();
    CHECK_FALSE(before);
    CHECK(saw);
    Task next = task("next");
    next.work = [&](Parallel& parallel) { after = parallel.stopping(); };
    next.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
    stream->submit(std::move(next));
    over.wait();
    REQUIRE_FALSE(after);
  }
}

TEST_CASE("cuda stream: the destructor quiesces") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  std::atomic<int> done{0};
  Gate go, started;
  std::thread opener([&] {
    started.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    go.open();
  });
  {
    auto stream = device->create_stream("compute", 1);
    Task t = task("held");
    t.work = [&](Parallel& parallel) {
      hold(parallel.queue(), go);
      started.open();
    };
    t.on_done = [&](std::int64_t, std::int64_t) { ++done; };
    stream->submit(std::move(t));
    started.wait();
  }
  CHECK(done == 1);
  opener.join();
}

TEST_CASE("cuda stream: one stream that is held holds no other") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  auto memory = on_device(*device, 4096);
  Gate go, other_over, over;
  auto held = device->create_stream("compute", 1);
  auto other = device->create_stream("copies", 1);
  OpensAtEnd opens{go};
  std::atomic<bool> first_done{false};
  Task t = task("held");
  t.work = [&](Parallel& parallel) { hold(parallel.queue(), go); };
  t.on_done = [&](std::int64_t, std::int64_t) {
    first_done = true;
    over.open();
  };
  held->submit(std::move(t));
  Task u = task("passes");
  u.work = [&](Parallel& parallel) { fill(parallel.queue(), memory->data(), 1, 4096); };
  u.on_done = [&](std::int64_t, std::int64_t) { other_over.open(); };
  other->submit(std::move(u));
  other_over.wait();
  CHECK_FALSE(first_done);
  go.open();
  over.wait();
}

TEST_CASE("cuda stream: begin and end are the device's, on the clock") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  Gate go, over;
  std::int64_t opened_ns = 0, first[2] = {}, second[2] = {};
  auto stream = device->create_stream("compute", 1);
  OpensAtEnd opens{go};
  Task t = task("held");
  t.work = [&](Parallel& parallel) { hold(parallel.queue(), go); };
  t.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) { first[0] = begin_ns, first[1] = end_ns; };
  stream->submit(std::move(t));
  Task u = task("behind");
  u.on_done = [&](std::int64_t begin_ns, std::int64_t end_ns) {
    second[0] = begin_ns, second[1] = end_ns;
    over.open();
  };
  stream->submit(std::move(u));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  opened_ns = clock.now_ns();
  go.open();
  over.wait();
  CHECK(opened_ns - first[0] > 20'000'000);  // begins when it is issued
  CHECK(first[1] > opened_ns - 1'000'000);   // ends when the device lets it
  CHECK(second[0] >= first[1]);              // begins behind it, although it was issued long before
  CHECK(second[0] > opened_ns - 1'000'000);
}

namespace {

/// Chunks go through two slots of the device: copied in, then from slot to slot, then out, each by a stream of its own;
/// what orders the streams is fences. Submitted as early as the contract of Task::waits allows.
struct Pipeline {
  static constexpr int chunks = 8, slots = 2;
  static constexpr std::size_t n = 4096;
  static constexpr const char* stages[] = {"h2d", "compute", "d2h"};

  Pipeline(CudaDevice& device, bool with_fences)
      : in(pinned(device, chunks * n)), out(pinned(device, chunks * n)), loaded(on_device(device, slots * n)),
        computed(on_device(device, slots * n)), fenced(with_fences) {
    for (int c = 0; c < chunks; ++c) std::memset(in->data() + c * n, c + 1, n);
    for (int s = 0; s < 3; ++s)
      for (int c = 0; c < chunks; ++c) fences[s][c] = device.create_fence();
    for (const char* stage : stages) streams.push_back(device.create_stream(stage, 1));
  }

  /// Whether each chunk has come out whole.
  bool run() {
    submit_what_may();
    over.wait();
    for (auto& stream : streams) stream->quiesce();
    for (int c = 0; c < chunks; ++c)
      for (std::size_t i = 0; i < n; ++i)
        if (out->data()[c * n + i] != static_cast<std::byte>(c + 1)) return false;
    return true;
  }

  /// What stage `s` of chunk `c` waits for: the stage before, and that the next one has read the slot.
  std::vector<std::pair<int, int>> waits(int s, int c) const {
    std::vector<std::pair<int, int>> all;
    if (s > 0) all.push_back({s - 1, c});
    if (s < 2 && c >= slots) all.push_back({s + 1, c - slots});
    return all;
  }

  void submit_what_may() {
    std::lock_guard lock(mutex);
    for (bool any = true; any;) {
      any = false;
      for (int s = 0; s < 3; ++s) {
        const int c = submitted[s];
        if (c == chunks) continue;
        bool may = true;
        for (const auto& [stage, chunk] : waits(s, c)) may = may && begun[stage][chunk];
        if (!may) continue;
        ++submitted[s];
        any = true;
        streams[static_cast<std::size_t>(s)]->submit(stage_task(s, c));
      }
    }
  }

  Task stage_task(int s, int c) {
    Task t = task(std::string(stages[s]) + " " + std::to_string(c), {0, 0, c, 1});
    if (fenced) {
      t.reaches = fences[s][c];
      for (const auto& [stage, chunk] : waits(s, c)) t.waits.push_back(fences[stage][chunk]);
    }
    t.on_start = [this, s, c] {
      {
        std::lock_guard lock(mutex);
        begun[s][c] = true;
      }
      submit_what_may();
    };
    t.work = [this, s, c](Parallel& parallel) {
      std::byte* const a = loaded->data() + c % slots * n;
      std::byte* const b = computed->data() + c % slots * n;
      if (s == 0) copy(parallel.queue(), a, in->data() + c * n, n);
      if (s == 1) copy(parallel.queue(), b, a, n);
      if (s == 2) copy(parallel.queue(), out->data() + c * n, b, n);
    };
    t.on_done = [this](std::int64_t, std::int64_t) {
      if (++ended == 3 * chunks) over.open();
    };
    return t;
  }

  std::unique_ptr<Buffer> in, out, loaded, computed;
  const bool fenced;
  std::shared_ptr<Fence> fences[3][chunks];
  std::mutex mutex;
  int submitted[3] = {};
  bool begun[3][chunks] = {};
  std::atomic<int> ended{0};
  Gate over;
  std::vector<std::unique_ptr<Stream>> streams;
};

}  // namespace

TEST_CASE("fences order streams on the device: whatever the schedule, no chunk is read early or overwritten") {
  SteadyClock clock;
  for (std::uint64_t seed = 1; seed <= 50; ++seed)
    for (const int starve : {-1, 1, 2, 3}) {  // 0: the stream that zeroes memory
      fresh(seed, starve);
      auto device = open_gpu(clock);
      Pipeline pipeline(*device, true);
      REQUIRE(pipeline.run());
    }
}

#if TROUPE_CUDA_DOUBLE
TEST_CASE("double: the schedules find that fences are missing") {
  SteadyClock clock;
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    for (const int starve : {-1, 1, 2, 3}) {
      fresh(seed, starve);
      auto device = open_gpu(clock);
      Pipeline pipeline(*device, false);
      wrong += !pipeline.run();
    }
  CHECK(wrong >= 10);
}
#endif

TEST_CASE("a fence is no way through the host: what waits for it is issued while the device has not reached it") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  Gate go, issued, over;
  Log log;
  auto compute = device->create_stream("compute", 1);
  auto comm = device->create_stream("comm", 1);
  OpensAtEnd opens{go};
  const auto fence = device->create_fence();
  Task first = task("first");
  first.reaches = fence;
  first.on_start = [&] {
    Task second = task("second");
    second.waits = {fence};
    second.work = [&](Parallel&) { issued.open(); };
    second.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
    comm->submit(std::move(second));
  };
  first.work = [&](Parallel& parallel) { hold(parallel.queue(), go); };
  first.on_done = [&](std::int64_t, std::int64_t) { log.say("first done"); };
  compute->submit(std::move(first));
  issued.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(over.is_open());
  CHECK(log.text() == "");
  go.open();
  over.wait();
}

TEST_CASE("a task that waits for a fence whose task has not begun ends the process by name") {
  const Outcome outcome = run_victim("waits_for_a_fence_of_a_later_task");
  CHECK(outcome.end_signal == SIGABRT);
  CHECK(outcome.said.find("task.name = early") != std::string::npos);
}

TEST_CASE("quiesce of a device that does not end ends the process: the words name stream, device and tasks") {
  const Outcome outcome = run_victim("never_idle");
  INFO(outcome.said);
  CHECK(outcome.exit_code == 6);
  CHECK(outcome.said.find("compute of cuda:0 (") != std::string::npos);
  CHECK(outcome.said.find("is not idle 200 ms after it was told to stop") != std::string::npos);
  CHECK(outcome.said.find("2 tasks have not ended ('stuck', 'behind it')") != std::string::npos);
}

TEST_CASE("quiesce from a callback of the stream ends the process") {
  const Outcome outcome = run_victim("quiesces_in_a_callback");
  INFO(outcome.said);
  CHECK(outcome.end_signal == SIGABRT);
  CHECK(outcome.said.find("name_ = compute") != std::string::npos);
}
