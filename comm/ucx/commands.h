// Commands of other threads for the progress thread: values, executed in the order of submission.
//
// Owned by the progress thread's inbox (progress_thread.h) until they are executed.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "comm/match.h"
#include "comm/transport.h"

namespace troupe::comm::ucx {

struct SendCommand {
  Rank to;
  Header header;
  std::span<const std::byte> data;
  SendDone done;
};

/// The UCX address of a peer.
struct PeerCommand {
  Rank rank;
  std::string address;
};

using Command = std::variant<SendCommand, Posted, PeerCommand>;

}  // namespace troupe::comm::ucx
