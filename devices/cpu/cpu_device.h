// CpuDevice: the cores of this host. A stream is a thread with helpers; memory is mapped pages.
#pragma once

#include <vector>

#include "devices/device.h"

namespace troupe {

struct CpuOptions {
  bool pin = false;  ///< pin each stream's threads to the next free cores of this process, round robin
};

/// create_stream and allocate are called by the owner's thread; streams do not refer to the device.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const Clock& clock, CpuOptions options = {});

  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> create_stream(const std::string& name, int threads) override;

 private:
  const Clock& clock_;
  std::vector<int> cores_;   ///< those this process may use; empty: no pinning
  std::size_t next_core_ = 0;
};

}  // namespace troupe
