// CpuDevice: the cores of this host. A stream is a thread with helpers; memory is mapped pages.
#pragma once

#include <vector>

#include "devices/device.h"

namespace troupe {

struct CpuOptions {
  /// Where to pin streams' threads, each core once, in the order of create_stream; threads beyond them are not pinned.
  std::vector<int> cores;
};

/// create_stream and allocate are called by the owner's thread; streams do not refer to the device.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const Clock& clock, CpuOptions options = {})
      : clock_(clock), free_cores_(std::move(options.cores)) {}

  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> create_stream(const std::string& name, int threads) override;

 private:
  const Clock& clock_;
  std::vector<int> free_cores_;
};

/// The cores (logical CPUs) that this process may run on, in ascending order.
std::vector<int> usable_cores();
/// The calling thread, and every thread that it starts from now on, runs on these cores only. A core that is not there
/// is ignored.
void keep_to(const std::vector<int>& cores);

}  // namespace troupe
