// AgentLink: the job's end of the link between it and an agent. A seam: a Connection (connection.h), or a simulation.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/agents/agent_messages.h"

namespace troupe::runtime {

/// Not thread-safe. Messages arrive whole, once and in order, or the link breaks.
class AgentLink {
 public:
  virtual ~AgentLink() = default;
  /// What to poll, and for what; -1: nothing can be polled, and `on_readable` is told.
  virtual int fd() const = 0;
  virtual short events() const = 0;
  /// `read` is to be called as something has come to serve().
  virtual void on_readable(std::function<void()> read) { (void)read; }
  /// Appends the messages that have come. Error (`unavailable`): the link is broken; `invalid`: the peer is not one
  /// that it may be. Then the link is of no use any more.
  virtual Status serve(std::deque<std::vector<std::byte>>& messages) = 0;
  /// Sends a message, or queues it. Error (`unavailable`): the link is broken.
  virtual Status post(std::span<const std::byte> message) = 0;
};

/// An agent that has proved that it may join, and said who it is.
struct JoinedAgent {
  std::unique_ptr<AgentLink> connection;
  std::string peer;
  Joins joins;
};

}  // namespace troupe::runtime
