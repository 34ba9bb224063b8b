// GenerationFence: which control messages are taken, before they are decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/session/control.h"

namespace troupe::runtime {

/// An encoded message and the generation in which its sender made it.
struct ControlFrame {
  JobGeneration of;
  std::vector<std::byte> message;
  bool operator==(const ControlFrame&) const = default;
};

///   CL-1  (one generation) a message of another generation than the one that its receiver is in when it takes it is
///         dropped before it is decoded, and counted; so is one that names no generation. The coordinator says when a
///         generation begins; a worker follows it: the first message of a newer one of the same job takes it there.
class GenerationFence {
 public:
  void enter(JobGeneration generation) { generation_ = generation; }
  /// {0, 0} before the first.
  JobGeneration generation() const { return generation_; }
  /// Whether the coordinator takes a message of `of`.
  bool admits(JobGeneration of) { return count(of == generation_ && of != JobGeneration{}); }
  /// Whether a worker takes a message of `of`; enters that generation. The link delivers in order, so the coordinator
  /// has left the generations before.
  bool follows(JobGeneration of) {
    const bool first = generation_ == JobGeneration{} && of != JobGeneration{};
    const bool taken = first || (of.job == generation_.job && of.number >= generation_.number && of != JobGeneration{});
    if (taken) enter(of);
    return count(taken);
  }
  std::int64_t dropped() const { return dropped_; }

 private:
  bool count(bool taken) {
    dropped_ += taken ? 0 : 1;
    return taken;
  }
  JobGeneration generation_;
  std::int64_t dropped_ = 0;
};

}  // namespace troupe::runtime
