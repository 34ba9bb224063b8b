// TransferEnv: by what a place exchanges parts of its state with others, before the first step of a generation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "comm/transport.h"
#include "devices/device.h"

namespace troupe::runtime {

/// The channels of these exchanges begin here, above those of any plan: no other message has one.
inline constexpr std::uint32_t first_transfer_channel = 1u << 31;

struct TransferEnv {
  comm::Transport& transport;
  Device& device;
  Stream& comm;
  comm::Header header;                                  ///< job and generation
  std::shared_ptr<std::atomic<std::int64_t>> progress;  ///< counts what has arrived; may be null
};

}  // namespace troupe::runtime
