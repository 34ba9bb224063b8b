#include "devices/cpu/time_slice.h"

#include <doctest/doctest.h>
#include <sched.h>

#include <future>
#include <thread>

#include "devices/base/clock.h"
#include "devices/cpu/cpu_device.h"
#include "tests/skip.h"

using namespace troupe;

TEST_CASE(
    "a thread that asks for a short slice has it, and so have those that it starts; a compute stream has the "
    "system's") {
  std::int64_t before = 0, asked = 0, started = 0, computing = 0;
  std::thread([&] {
    before = time_slice();
    set_time_slice(200'000);
    asked = time_slice();
    std::thread([&] { started = time_slice(); }).join();
    SteadyClock clock;
    CpuDevice device(clock);
    auto stream = device.create_stream("compute", 1);
    Task task;
    task.work = [&](Parallel&) { computing = time_slice(); };
    std::promise<void> done;
    task.on_done = [&](std::int64_t, std::int64_t) { done.set_value(); };
    stream->submit(std::move(task));
    done.get_future().wait();
  }).join();
  if (before == 0) return troupe::test::skip("this system (before Linux 6.12) knows no slices of a thread's own");
  CHECK(asked == 200'000);
  CHECK(started == 200'000);
  CHECK(computing == before);
}

TEST_CASE("a thread that stops preempting has the policy for it, and so have the threads that it starts") {
  int own = -1, started = -1;
  bool stopped = false, again = true;
  const int before = ::sched_getscheduler(0);
  std::thread([&] {
    stopped = stop_preempting();
    again = stop_preempting();
    own = ::sched_getscheduler(0);
    std::thread([&] { started = ::sched_getscheduler(0); }).join();
  }).join();
  CHECK(::sched_getscheduler(0) == before);
  bool allowed = false;  // asked of the system in another way
  std::thread([&] {
    const sched_param none{};
    allowed = before == SCHED_OTHER && ::sched_setscheduler(0, SCHED_BATCH, &none) == 0;
  }).join();
  CHECK(stopped == allowed);
  if (!allowed) return troupe::test::skip("this process has another policy, or the system refuses to change it");
  CHECK(own == SCHED_BATCH);
  CHECK(started == SCHED_BATCH);
  CHECK_FALSE(again);  // there is nothing to stop
}
