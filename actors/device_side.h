// What the bodies of a place on a device with memory of its own work with. Such a body *issues* work on the stream's
// queue (Parallel::queue); what it makes for the host lands in pinned memory, and is read when the device has done the
// work (Parallel::after).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_ops.h"

namespace troupe::actors {

struct DeviceSide {
  const kernels::DeviceOps* ops = nullptr;  ///< null: the place is on the host's processor
  /// Of each act in flight, `bytes` bytes in memory of the device and in pinned memory of the host.
  std::byte *device = nullptr, *host = nullptr;
  std::int64_t bytes = 0;

  /// Acts of one actor that a device has at once, at most: more than any stream runs ahead (devices/cuda/).
  static constexpr std::int64_t acts = 8;
  std::byte* device_of(std::uint64_t act) const { return device + static_cast<std::int64_t>(act % acts) * bytes; }
  std::byte* host_of(std::uint64_t act) const { return host + static_cast<std::int64_t>(act % acts) * bytes; }
};

}  // namespace troupe::actors
