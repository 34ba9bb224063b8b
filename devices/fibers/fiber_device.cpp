#include "devices/fibers/fiber_device.h"

#include "devices/cpu/thread_stream.h"
#include "devices/host_memory.h"

namespace troupe::fibers {

namespace {

/// Memory of the device.
class DeviceBuffer final : public Buffer {
 public:
  explicit DeviceBuffer(std::unique_ptr<Buffer> memory) : memory_(std::move(memory)) {}
  Space space() const override { return Space::device; }
  std::byte* data() override { return memory_->data(); }
  std::size_t size() const override { return memory_->size(); }

 private:
  const std::unique_ptr<Buffer> memory_;
};

/// What a task issues is done when its work ends, and not before.
class Issuing final : public Parallel {
 public:
  Issuing(Parallel& inner, Order& order) : inner_(inner), order_(order) {}
  int threads() const override { return 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override { inner_.for_each(n, body); }
  bool stopping() const override { return inner_.stopping(); }
  void* queue() override { return &order_; }
  void after(std::function<void()> host_part) override { parts_.push_back(std::move(host_part)); }
  void finish() {
    for (const auto& part : parts_) part();
  }

 private:
  Parallel& inner_;
  Order& order_;
  std::vector<std::function<void()>> parts_;
};

}  // namespace

Expected<std::unique_ptr<Buffer>> FiberDevice::allocate(std::size_t bytes) {
  TROUPE_ASSIGN(auto memory, allocate_host(bytes));
  return std::unique_ptr<Buffer>(std::make_unique<DeviceBuffer>(std::move(memory)));
}

Expected<std::unique_ptr<Buffer>> FiberDevice::allocate_pinned(std::size_t bytes) { return allocate_host(bytes); }

std::unique_ptr<Stream> FiberDevice::create_stream(const std::string& name, int threads) {
  return std::make_unique<ThreadStream>(
      name, threads, clock_, std::vector<int>{}, ThreadStream::Begin::now,
      [&clock = clock_, order = order_](Task& task, Parallel& parallel, std::int64_t) {
        Issuing issuing(parallel, *order);
        if (task.work) task.work(issuing);
        issuing.finish();
        return clock.now_ns();
      });
}

}  // namespace troupe::fibers
