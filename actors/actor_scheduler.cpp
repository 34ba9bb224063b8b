#include "actors/actor_scheduler.h"

#include <caf/actor_system.hpp>
#include <caf/scoped_execution_unit.hpp>
#include <utility>

namespace troupe::actors {

namespace {

constexpr int actors_in_a_row = 64;

/// Whether this thread is lent, and the scheduler of the actors to which it has sent messages since.
thread_local bool is_lent = false;
thread_local ActorScheduler* enqueued_to = nullptr;

}  // namespace

void OneAtATime::enqueue(ActorScheduler& scheduler, caf::resumable* job) {
  auto& data = scheduler.data();
  bool wakes = false;
  {
    std::lock_guard lock(data.mutex);
    data.queue.push_back(job);
    wakes = !data.is_running && !is_lent;
  }
  if (is_lent) enqueued_to = &scheduler;
  if (wakes) data.wake.notify_one();
}

// The job that ends the worker is in the queue like any other. Where a lent thread has taken it, CAF enqueues it again,
// until the worker has it. The worker then asks for no more: is_running stays true, and no lent thread runs anything.
caf::resumable* OneAtATime::dequeue(coordinator_data& data, worker_data& own) {
  std::unique_lock lock(data.mutex);
  if (own.is_running) data.is_running = false;  // a worker that begins has not run: a lent thread may
  data.wake.wait(lock, [&] { return !data.queue.empty() && !data.is_running; });
  data.is_running = own.is_running = true;
  caf::resumable* job = data.queue.front();
  data.queue.pop_front();
  return job;
}

void OneAtATime::run_here(ActorScheduler& scheduler) {
  auto& data = scheduler.data();
  caf::scoped_execution_unit unit(&scheduler.system());
  std::unique_lock lock(data.mutex);
  if (data.is_running) return;
  data.is_running = true;
  for (int i = 0; i < actors_in_a_row && !data.queue.empty(); ++i) {
    caf::resumable* job = data.queue.front();
    data.queue.pop_front();
    lock.unlock();
    const auto result = job->resume(&unit, scheduler.max_throughput());
    // As CAF's workers do: the queue holds a reference to the actor while it is in it, and none to what ends a worker.
    if (result == caf::resumable::done || result == caf::resumable::awaiting_message) intrusive_ptr_release(job);
    lock.lock();
    if (result == caf::resumable::resume_later) data.queue.push_back(job);
  }
  data.is_running = false;
  // Under the lock: the scheduler may end, and with it the condition, once its thread has what is left.
  if (!data.queue.empty()) data.wake.notify_one();
}

LendThread::LendThread() : outermost_(!std::exchange(is_lent, true)) {}

LendThread::~LendThread() {
  if (!outermost_) return;
  if (ActorScheduler* scheduler = std::exchange(enqueued_to, nullptr)) OneAtATime::run_here(*scheduler);
  enqueued_to = nullptr;
  is_lent = false;
}

}  // namespace troupe::actors
