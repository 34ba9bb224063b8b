// PacedDevice: real time, modelled durations. Each task sleeps its predicted cost, so that the schedule
// of many devices can be measured on a few cores. A task that was submitted before its predecessor on the stream ended
// begins at that end, as on an accelerator, which has its next tasks already (decision 0027).
#pragma once

#include "devices/device.h"

namespace troupe {

struct PacedOptions {
  double scale = 1;       ///< a task takes cost_s * scale
  bool run_work = false;  ///< also run the host function, within that time (if it is shorter)
};

class PacedDevice final : public Device {
 public:
  explicit PacedDevice(const Clock& clock, PacedOptions options = {}) : clock_(clock), options_(options) {}

  Expected<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  std::unique_ptr<Stream> create_stream(const std::string& name, int threads) override;

 private:
  const Clock& clock_;
  const PacedOptions options_;
};

}  // namespace troupe
