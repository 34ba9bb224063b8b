// FiberDevice: a GPU that is a thread: the work of a task issues kernels, which run on fibers at once (block.h). What a
// place does on a GPU it does here on any machine, and slowly: for tests.
#pragma once

#include "devices/device.h"
#include "devices/fibers/block.h"

namespace troupe::fibers {

class FiberDevice final : public Device {
 public:
  /// The clock outlives what the device makes.
  explicit FiberDevice(const Clock& clock, Order order = {}) : clock_(clock), order_(std::make_shared<Order>(order)) {}
  /// Memory that the host must not touch.
  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  Expected<std::unique_ptr<Buffer>> allocate_pinned(std::size_t bytes) override;
  /// Parallel::queue is an Order.
  std::unique_ptr<Stream> create_stream(const std::string& name, int threads) override;

 private:
  const Clock& clock_;
  const std::shared_ptr<Order> order_;
};

}  // namespace troupe::fibers
