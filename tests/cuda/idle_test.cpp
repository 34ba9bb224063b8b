// What idle streams of a GPU use of the CPU: nothing.
#include <doctest/doctest.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/cuda/gpu.h"

using namespace troupe;
using namespace troupe::test;

namespace {

/// CPU time so far, in nanoseconds, of each thread of ours, by its number; the driver's threads are its own.
std::map<int, std::int64_t> cpu_of_threads() {
  std::map<int, std::int64_t> times;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const int thread = std::stoi(entry.path().filename().string());
    std::ifstream file(entry.path() / "comm");
    std::string name;
    std::getline(file, name);
    if (name != "idle" && name != "cuda:0 poller") continue;
    timespec t;
    const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6);  // of that thread
    if (::clock_gettime(clock, &t) == 0) times[thread] = t.tv_sec * 1'000'000'000ll + t.tv_nsec;
  }
  return times;
}

}  // namespace

TEST_CASE("idle streams of a GPU, and its poller, use no CPU") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  std::vector<Gate> done(4);
  std::vector<std::unique_ptr<Stream>> streams;
  for (Gate& over : done) {
    streams.push_back(device->create_stream("idle", 1));
    Task t;  // idle after work, not only before
    t.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
    streams.back()->submit(std::move(t));
    over.wait();
  }
  std::map<int, std::int64_t> before, after;
  const auto look = [&](std::chrono::milliseconds window, int tries) {
    do {
      before = cpu_of_threads();
      std::this_thread::sleep_for(window);
      after = cpu_of_threads();
    } while (before != after && --tries > 0);
  };
  look(std::chrono::milliseconds(200), 50);  // beside other work a thread may come to its sleep late
  CHECK(before.size() == 5);
  CHECK(before == after);  // not a nanosecond
  look(std::chrono::seconds(2), 5);
  CHECK(before == after);
}
