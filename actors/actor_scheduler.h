// ActorScheduler: runs the actors of a process one at a time, on a thread of its own and on each thread that lends
// itself (LendThread). A stream's thread that has ended an act runs the actors that wait for it with function calls;
// it wakes no thread to do so (decision 0021).
#pragma once

#include <caf/policy/unprofiled.hpp>
#include <caf/scheduler/coordinator.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace troupe::actors {

class OneAtATime;
using ActorScheduler = caf::scheduler::coordinator<OneAtATime>;

/// The policy of that scheduler, in CAF's terms: one queue, as caf::policy::work_sharing has, and one thread at a time
/// that runs what is in it. Load the scheduler with actor_system_config::load, with "scheduler.max-threads" 1.
class OneAtATime : public caf::policy::unprofiled {
 public:
  struct coordinator_data {
    explicit coordinator_data(caf::scheduler::abstract_coordinator*) {}
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<caf::resumable*> queue;  ///< actors with messages; guarded by mutex, as the next
    bool is_running = false;            ///< a thread runs actors, and looks into the queue before it stops
  };
  struct worker_data {
    explicit worker_data(caf::scheduler::abstract_coordinator*) {}
    bool is_running = false;  ///< this worker is the thread that runs actors
  };

  template <class Coordinator>
  void central_enqueue(Coordinator* self, caf::resumable* job) {
    enqueue(*self, job);
  }
  template <class Worker>
  void external_enqueue(Worker* self, caf::resumable* job) {
    enqueue(*self->parent(), job);
  }
  template <class Worker>
  void internal_enqueue(Worker* self, caf::resumable* job) {
    enqueue(*self->parent(), job);
  }
  template <class Worker>
  void resume_job_later(Worker* self, caf::resumable* job) {
    enqueue(*self->parent(), job);
  }
  template <class Worker>
  caf::resumable* dequeue(Worker* self) {
    return dequeue(self->parent()->data(), self->data());
  }
  template <class Worker, class Function>
  void foreach_resumable(Worker*, Function) {}
  template <class Coordinator, class Function>
  void foreach_central_resumable(Coordinator* self, Function f) {
    auto& data = self->data();
    std::lock_guard lock(data.mutex);
    for (; !data.queue.empty(); data.queue.pop_front()) f(data.queue.front());
  }

 private:
  friend class LendThread;
  static void enqueue(ActorScheduler& scheduler, caf::resumable* job);
  static caf::resumable* dequeue(coordinator_data& data, worker_data& own);
  static void run_here(ActorScheduler& scheduler);
};

/// Lends this thread to the actors that it sends messages to while the object lives: the messages wake no thread, and
/// the destructor runs the actors, and those that they send to, unless another thread does; at most 64 in a row, for
/// this thread has other work. Within another one, or under another scheduler, it does nothing. REQUIRES: this thread
/// holds no lock that an actor, or what it calls, takes; the actors are of one system, which lives until the destructor
/// has returned, or runs an actor in it.
class LendThread {
 public:
  LendThread();
  ~LendThread();
  LendThread(const LendThread&) = delete;

 private:
  const bool outermost_;
};

}  // namespace troupe::actors
