// The control link of a worker and the coordinator: messages over a stream socket (runtime/session/control.h says
// which).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "devices/base/status.h"
#include "runtime/elastic/generation_fence.h"

namespace troupe::runtime {

/// The bytes of a message that are never changed: the links to several workers share them.
using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

/// Frames over a stream socket, each with its size. Owns the descriptor.
class ControlLink {
 public:
  explicit ControlLink(int fd) : fd_(fd) {}
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  /// Whether receive() would not wait: there are bytes, or the link has closed.
  bool is_readable() const;
  int fd() const { return fd_; }
  /// Writes a message of a generation; blocks until it is written. Error: the peer is gone; `invalid`, and nothing is
  /// written: it exceeds control_bytes_max.
  Status send(JobGeneration of, const std::vector<std::byte>& message);
  /// Queues a message and writes as much as the socket takes without blocking; `flush` writes more. Error: the peer is
  /// gone, and what is queued is dropped; `invalid`, and this message is not queued: it exceeds control_bytes_max. The
  /// link holds the message until the socket has taken all of it. REQUIRES: not null.
  Status post(JobGeneration of, SharedBytes message);
  Status flush();
  bool unsent() const { return !out_.empty(); }
  /// Reads the bytes that have come (blocks until some have) and appends whole frames, of whatever generation. Error:
  /// the link is closed; `invalid`: a message exceeds control_bytes_max.
  Status receive(std::deque<ControlFrame>& frames);

 private:
  struct Head {  // travels first
    std::uint32_t size = 0, generation = 0;
    std::uint64_t job = 0;
  };
  struct Queued {
    Head head;
    SharedBytes message;
  };
  int fd_;
  /// Not on the stack, which a user may have made small.
  std::vector<std::byte> chunk_ = std::vector<std::byte>(std::size_t{1} << 16);
  std::vector<std::byte> buffer_;
  std::deque<Queued> out_;
  std::size_t sent_ = 0;  // bytes of the first that the socket has taken, its head included
};

}  // namespace troupe::runtime
