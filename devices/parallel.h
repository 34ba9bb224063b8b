// SerialParallel: the Parallel of a caller with one thread: tests, the simulation, references.
#pragma once

#include "devices/device.h"

namespace troupe {

class SerialParallel : public Parallel {
 public:
  int threads() const override { return 1; }
  void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
    for (std::int64_t i = 0; i < n; ++i) body(i);
  }
};

}  // namespace troupe
