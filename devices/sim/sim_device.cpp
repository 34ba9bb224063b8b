#include "devices/sim/sim_device.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "devices/base/check.h"
#include "devices/host_memory.h"
#include "devices/parallel.h"
#include "devices/ready_queue.h"

namespace troupe {

namespace {

/// What a stream lends to a task. Issued work is done when `finish` is called.
class SimParallel final : public SerialParallel {
 public:
  explicit SimParallel(void* queue) : queue_(queue) {}
  void* queue() override { return queue_; }
  void after(std::function<void()> host_part) override {
    if (queue_) parts_.push_back(std::move(host_part));
    else host_part();
  }
  void finish() {
    for (const auto& part : parts_) part();
  }

 private:
  void* const queue_;
  std::vector<std::function<void()>> parts_;
};

}  // namespace

/// The loop's events hold the State weakly: a stream may be destroyed before its events are due.
class SimStream final : public Stream {
 public:
  struct State {
    SimLoop& loop;
    std::shared_ptr<SimDevice::Halt> halt;
    ReadyQueue queue;
    std::optional<Task> running;
    std::int64_t begin_ns = 0;
    std::uint64_t started = 0;  ///< numbers the running task: an event of an ended one finds another
    bool choosing = false;      ///< a choice is in the loop
    bool in_callback = false;
    void* queue_of_device = nullptr;
  };

  SimStream(SimLoop& loop, std::string name, std::shared_ptr<SimDevice::Halt> halt, void* queue)
      : name_(std::move(name)), state_(new State{loop, std::move(halt), {}, {}}) {
    state_->queue_of_device = queue;
  }
  ~SimStream() override { quiesce(); }

  const std::string& name() const override { return name_; }

  void submit(Task task) override {
    state_->queue.push(std::move(task));
    choose_later(state_);
  }

  void quiesce() override {
    REQUIRE(!state_->in_callback, name_);
    const auto dropped = state_->queue.drop();  // destroyed last: closures may own anything
    if (state_->running && !state_->halt->stuck) finish(state_);
    const auto submitted = state_->queue.drop();  // by callbacks of the running task
  }

 private:
  /// When a task that is due now may start or complete.
  static std::int64_t due_ns(const State& s) { return std::max(s.loop.now_ns(), s.halt->until_ns); }

  static void choose_later(const std::shared_ptr<State>& s) {
    if (s->running || s->choosing || s->halt->stuck || s->queue.empty()) return;
    s->choosing = true;
    s->loop.at_end_of(due_ns(*s), [weak = std::weak_ptr(s)] {
      if (auto alive = weak.lock()) choose(alive);
    });
  }

  static void choose(const std::shared_ptr<State>& s) {
    s->choosing = false;
    if (s->halt->stuck) return;
    if (s->loop.now_ns() < s->halt->until_ns) return choose_later(s);
    s->running = s->queue.pop();
    if (!s->running) return;  // quiesced meanwhile, or all wait for their turn
    s->begin_ns = s->loop.now_ns();
    const std::uint64_t number = ++s->started;
    const std::int64_t end_ns = s->begin_ns + std::llround(s->running->cost_s * 1e9);
    finish_at(end_ns, s, number);
    s->in_callback = true;
    if (s->running->on_start) s->running->on_start();
    s->in_callback = false;
  }

  /// The running task of this number ends then, or with the pause that is on then.
  static void finish_at(std::int64_t ns, const std::shared_ptr<State>& s, std::uint64_t number) {
    s->loop.at(ns, [weak = std::weak_ptr(s), number] {
      const auto alive = weak.lock();
      if (!alive || !alive->running || alive->started != number || alive->halt->stuck) return;
      if (alive->loop.now_ns() < alive->halt->until_ns) return finish_at(alive->halt->until_ns, alive, number);
      finish(alive);
    });
  }

  static void finish(const std::shared_ptr<State>& s) {
    SimParallel parallel(s->queue_of_device);
    s->in_callback = true;
    if (s->running->work) s->running->work(parallel);
    parallel.finish();
    if (s->running->on_done) s->running->on_done(s->begin_ns, s->loop.now_ns());
    s->in_callback = false;
    s->running.reset();
    choose_later(s);
  }

  const std::string name_;
  const std::shared_ptr<State> state_;
};

namespace {

/// Host memory that counts against a simulated device.
class SimBuffer final : public Buffer {
 public:
  SimBuffer(std::unique_ptr<Buffer> host, std::shared_ptr<std::size_t> free_bytes)
      : host_(std::move(host)), free_bytes_(std::move(free_bytes)) {
    *free_bytes_ -= host_->size();
  }
  ~SimBuffer() override { *free_bytes_ += host_->size(); }
  std::byte* data() override { return host_->data(); }
  std::size_t size() const override { return host_->size(); }

 private:
  std::unique_ptr<Buffer> host_;
  std::shared_ptr<std::size_t> free_bytes_;
};

}  // namespace

SimDevice::SimDevice(SimLoop& loop, std::size_t memory_bytes)
    : loop_(loop), free_bytes_(std::make_shared<std::size_t>(memory_bytes)), halt_(std::make_shared<Halt>()) {}

SimDevice::~SimDevice() = default;

Expected<std::unique_ptr<Buffer>> SimDevice::allocate(std::size_t bytes) {
  if (!cause_.ok()) return cause_;
  if (bytes > *free_bytes_)
    return Status(Code::exhausted, "cannot allocate " + std::to_string(bytes) + " bytes: the simulated device has " +
                                       std::to_string(*free_bytes_) + " left");
  TROUPE_ASSIGN(auto host, allocate_host(bytes));
  return std::unique_ptr<Buffer>(new SimBuffer(std::move(host), free_bytes_));
}

std::unique_ptr<Stream> SimDevice::create_stream(const std::string& name, int) {
  const bool issues = name == "compute" || name == "snapshot";
  return std::make_unique<SimStream>(loop_, name, halt_, issues ? queue_ : nullptr);
}

void SimDevice::on_dead(std::function<void(Status)> f) {
  if (!cause_.ok()) return f(cause_);
  on_dead_ = std::move(f);
}

void SimDevice::hang() { halt_->stuck = true; }

void SimDevice::pause_until(std::int64_t ns) { halt_->until_ns = std::max(halt_->until_ns, ns); }

void SimDevice::die(Status cause) {
  REQUIRE(!cause.ok());
  if (!cause_.ok()) return;  // once dead is dead
  halt_->stuck = true;
  cause_ = std::move(cause);
  if (on_dead_) on_dead_(cause_);
}

}  // namespace troupe
