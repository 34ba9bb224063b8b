#include "devices/cuda/cuda_stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/cpu/thread_team.h"
#include "devices/cpu/time_slice.h"
#include "devices/cuda/errors.h"
#include "devices/cuda/fence.h"

namespace troupe::cuda {
namespace {

/// The exit code of a worker that has failed (docs/exit-codes.md).
constexpr int exit_not_idle = 6;

/// The device's clock goes wrong by 1.3 ppm against the host's, and the time between two events is a float.
constexpr std::int64_t clock_ns_per_wrong_ns = 300'000;

CudaFence& fence_of(const Gpu& gpu, const std::shared_ptr<Fence>& fence, const std::string& task) {
  auto* own = dynamic_cast<CudaFence*>(fence.get());
  REQUIRE(own && own->gpu() == &gpu, gpu.name, task);
  return *own;
}

/// "comm" goes before the others: of two streams with work that could begin, one of equal priority waits for all
/// blocks of the other's kernel (3 ms of 8,448 blocks), one of higher priority for one block. Copies know no priority.
int priority_of(const std::string& name) {
  int least = 0, greatest = 0;
  if (::cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess) return 0;
  return name == "comm" ? greatest : least;
}

}  // namespace

/// What the stream lends to the work of one act.
class CudaStream::Work final : public Parallel {
 public:
  Work(CudaStream& stream, Act& act) : stream_(stream), act_(act) {}
  int threads() const override { return 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  }
  bool stopping() const override { return stream_.stopping_.load(std::memory_order_relaxed); }
  void* queue() override { return stream_.queue_; }
  void after(std::function<void()> host_part) override { stream_.add_part(act_, std::move(host_part)); }

 private:
  CudaStream& stream_;
  Act& act_;
};

CudaStream::CudaStream(std::string name, std::shared_ptr<Gpu> gpu)
    : name_(std::move(name)), gpu_(std::move(gpu)), issued_last_(gpu_->health.add_stream(name_)) {
  REQUIRE(gpu_->options.depth >= 1, gpu_->options.depth);
  // Where a call fails the GPU is dead, and so is the stream.
  gpu_->worked(gpu_->make_current(), "cudaSetDevice") &&
      gpu_->worked(::cudaStreamCreateWithPriority(&queue_, cudaStreamNonBlocking, priority_of(name_)),
                   "cudaStreamCreateWithPriority") &&
      (anchor_ = gpu_->event(true)) && gpu_->worked(::cudaEventRecord(anchor_.get(), queue_), "cudaEventRecord") &&
      gpu_->worked(::cudaEventSynchronize(anchor_.get()), "cudaEventSynchronize");
  anchor_ns_ = gpu_->clock.now_ns();
  gpu_->poller.add(*this);
  thread_ = std::thread([this] {
    set_up_thread(name_, -1);
    set_time_slice(0);
    gpu_->worked(gpu_->make_current(), "cudaSetDevice");
    run();
  });
}

CudaStream::~CudaStream() {
  quiesce();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  gpu_->poller.remove(*this);
  static_cast<void>(gpu_->make_current());
  if (queue_) static_cast<void>(::cudaStreamDestroy(queue_));  // a dead GPU refuses
}

void CudaStream::submit(Task task) {
  for (const auto& fence : task.waits) REQUIRE(fence_of(*gpu_, fence, task.name).begun(), name_, task.name);
  {
    std::lock_guard lock(mutex_);
    if (quiescing_ > 0 || gpu_->health.dead()) return;
    waiting_.push(std::move(task));
  }
  wake_.notify_one();
}

void CudaStream::quiesce() {
  // It would wait for itself.
  REQUIRE(std::this_thread::get_id() != thread_.get_id() && !gpu_->poller.is_this_thread(), name_);
  std::vector<Task> dropped;  // destroyed last, outside the lock: closures may own anything
  std::unique_lock lock(mutex_);
  ++quiescing_;  // submit() drops what callbacks submit: it would be issued after quiesce() had returned
  stopping_.store(true, std::memory_order_relaxed);
  dropped = waiting_.drop();
  const auto budget = std::chrono::nanoseconds(gpu_->options.quiesce_budget_ns);
  if (!idle_.wait_for(lock, budget, [&] { return in_flight_ == 0; })) end_process();
  if (--quiescing_ == 0) stopping_.store(false, std::memory_order_relaxed);  // no task has begun meanwhile
  lock.unlock();
}

void CudaStream::end_process() {
  std::string tasks;
  for (const auto& act : acts_) tasks += (tasks.empty() ? "'" : ", '") + act->task.name + "'";
  log_error(
      name_ + " of " + gpu_->name + " is not idle " + std::to_string(gpu_->options.quiesce_budget_ns / 1'000'000) +
      " ms after it was told to stop: " + std::to_string(in_flight_) + (in_flight_ == 1 ? " task has" : " tasks have") +
      " not ended (" + tasks + "); this process ends, because the memory that they use cannot be used again");
  ::_exit(exit_not_idle);
}

void CudaStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Task> task;
    wake_.wait(lock, [&] {
      if (stop_) return true;
      return in_flight_ < gpu_->options.depth && !gpu_->health.dead() && (task = waiting_.pop());
    });
    if (!task) return;
    ++in_flight_;
    Act& act = *acts_.emplace_back(std::make_unique<Act>(*std::move(task)));
    task.reset();
    lock.unlock();
    gpu_->poller.expect();
    issue(act);
    lock.lock();
    act.issued = true;  // the poller may end the act from now on
  }
}

void CudaStream::issue(Act& act) {
  Task& task = act.task;
  issued_last_->issue(task.name);
  CudaFence* reaches = nullptr;
  if (task.reaches) {
    reaches = &fence_of(*gpu_, task.reaches, task.name);
    REQUIRE(reaches->begin(), name_, task.name);
  }
  Event fence_event;
  const auto steps = [&] {
    if (task.on_start) task.on_start();
    for (const auto& fence : task.waits) {
      const cudaEvent_t event = fence_of(*gpu_, fence, task.name).event();
      if (!event || !gpu_->worked(::cudaStreamWaitEvent(queue_, event, 0), "cudaStreamWaitEvent")) return;
    }
    if (!(act.begin = gpu_->event(true)) || !(act.end = gpu_->event(true))) return;
    act.issue_ns = gpu_->clock.now_ns();
    if (!gpu_->worked(::cudaEventRecord(act.begin.get(), queue_), "cudaEventRecord")) return;
    if (task.work) {
      Work work(*this, act);
      task.work(work);
      // A launch reports here what it refuses.
      if (const cudaError_t refused = ::cudaGetLastError(); refused != cudaSuccess) {
        gpu_->health.report(status_of(refused, "the work of '" + task.name + "' on " + name_));
        return;
      }
    }
    if (reaches) {
      Event event = gpu_->event(false);
      if (!event || !gpu_->worked(::cudaEventRecord(event.get(), queue_), "cudaEventRecord")) return;
      fence_event = std::move(event);
    }
    gpu_->worked(::cudaEventRecord(act.end.get(), queue_), "cudaEventRecord");
  };
  if (!gpu_->health.dead()) steps();
  if (reaches) reaches->end(std::move(fence_event));
}

void CudaStream::add_part(Act& act, std::function<void()> run) {
  Event reached = gpu_->event(false);
  if (!reached || !gpu_->worked(::cudaEventRecord(reached.get(), queue_), "cudaEventRecord")) return;
  std::lock_guard lock(mutex_);
  act.parts.push_back({std::move(reached), std::move(run)});
}

bool CudaStream::look() {
  for (bool found = false;; found = true) {
    bool is_part = false;
    cudaEvent_t next = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (!acts_.empty()) {
        const Act& first = *acts_.front();
        is_part = !first.parts.empty();
        if (is_part) next = first.parts.front().reached.get();
        else if (first.issued) next = first.end.get();
      }
    }
    // Asked behind that: an act that was not issued whole, whose events tell nothing, is one of a dead GPU.
    if (gpu_->health.dead()) return forget_all() || found;
    if (!next) return found;
    const std::int64_t asked_ns = gpu_->clock.now_ns();
    const cudaError_t answer = ::cudaEventQuery(next);
    if (answer == cudaErrorNotReady) {
      if (!is_part) not_ready_ns_ = asked_ns;
      return found;
    }
    if (!gpu_->worked(answer, "cudaEventQuery")) continue;
    if (!is_part) {
      complete(gpu_->clock.now_ns());
      return true;  // the other streams' turn
    }
    Part part;
    {
      std::lock_guard lock(mutex_);
      auto& parts = acts_.front()->parts;
      part = std::move(parts.front());
      parts.pop_front();
    }
    part.run();
  }
}

void CudaStream::complete(std::int64_t seen_ns) {
  std::unique_lock lock(mutex_);
  std::unique_ptr<Act> act = std::move(acts_.front());
  acts_.pop_front();
  lock.unlock();

  float to_begin_ms = 0, to_end_ms = 0;
  if (!gpu_->worked(::cudaEventElapsedTime(&to_begin_ms, anchor_.get(), act->begin.get()), "cudaEventElapsedTime") ||
      !gpu_->worked(::cudaEventElapsedTime(&to_end_ms, anchor_.get(), act->end.get()), "cudaEventElapsedTime")) {
    act.reset();
    lock.lock();
    return forget(lock, 1);
  }
  const auto on_clock = [&](float ms) -> std::int64_t {
    return anchor_ns_ + std::llround(static_cast<double>(ms) * 1e6);
  };
  // What the host knows for certain bounds what the device's clock says.
  const std::int64_t begin_ns = std::clamp(on_clock(to_begin_ms), std::max(act->issue_ns, last_end_ns_), seen_ns);
  const std::int64_t end_ns = std::clamp(on_clock(to_end_ms), begin_ns, seen_ns);
  last_end_ns_ = end_ns;
  // This end is a better anchor where it is known more closely than the old one still tells.
  const std::int64_t not_ready_ns = std::exchange(not_ready_ns_, 0);
  const std::int64_t wrong_ns = seen_ns - not_ready_ns;
  if (not_ready_ns > 0 && wrong_ns < (end_ns - anchor_ns_) / clock_ns_per_wrong_ns) {
    anchor_ = std::move(act->end);
    anchor_ns_ = seen_ns - wrong_ns / 2;
  }

  issued_last_->done();
  if (act->task.on_done) act->task.on_done(begin_ns, end_ns);
  act.reset();  // destroys its closures before quiesce() returns
  lock.lock();
  forget(lock, 1);
}

bool CudaStream::forget_all() {
  std::vector<Task> dropped;  // destroyed outside the lock: closures may own anything
  std::deque<std::unique_ptr<Act>> gone;
  std::unique_lock lock(mutex_);
  dropped = waiting_.drop();
  while (!acts_.empty() && acts_.front()->issued) {  // one that is not is in its thread's hands
    gone.push_back(std::move(acts_.front()));
    acts_.pop_front();
  }
  lock.unlock();
  const int acts = static_cast<int>(gone.size());
  gone.clear();
  dropped.clear();
  lock.lock();
  if (acts > 0) forget(lock, acts);
  return acts > 0;
}

void CudaStream::forget(std::unique_lock<std::mutex>& lock, int acts) {
  in_flight_ -= acts;
  idle_.notify_all();
  wake_.notify_one();
  lock.unlock();
  for (int i = 0; i < acts; ++i) gpu_->poller.found();
}

}  // namespace troupe::cuda
