// Channel: a connection inside a place, from one writer to some readers, with a number of slots. What a plan says of
// it; at run time actors/slots.h counts its slots, and runtime/place/ gives it memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/graph/graph.h"

namespace troupe::runtime {

/// An actor that takes the tokens of a channel. (A reader of a version is a program: SessionOptions::readers.)
struct PlanReader {
  std::int32_t actor = 0, port = 0;
  bool operator==(const PlanReader&) const = default;
};

/// A channel inside a place: one writer, some readers, `slots` buffers.
struct PlanChannel {
  enum class Kind : std::uint8_t {
    activation,
    stash,
    boundary,
    /// a place's own sums of gradients: over its microbatches of a step; with ZeRO 2 and 3 over one microbatch
    gradient,
    /// exact sums over dp, a place's share: before or after model axes are added
    reduced,
    rounded,  ///< the sums over dp, gathered from all shares and rounded to f32
    parameter,
    go,
    commit,
    feed,      ///< control: written by the worker's conductor
    gathered,  ///< ZeRO 3: parameters while a unit, or a user-defined actor, needs them
    turn,      ///< no bytes: a buffer of a ring is free for its next channel
    /// what a place saves of a group: its slots lie in the host arena (LocalPlan)
    snapshot,
    delayed,  ///< a microbatch is read by a later one (Graph::delay); no token goes from one step to the next
    kept      ///< what a place's microbatches of a step leave for those of a later one (Graph::step_delay)
  };
  Kind kind = Kind::activation;
  std::string name;  ///< feed: the name that the session knows
  /// feed: the report of microbatch m for which microbatch m + 1 waits; empty: none
  std::string after;
  std::int64_t at_once = 1;  ///< feed: the number of first microbatches that wait for no report
  std::int32_t program = 0;
  std::int32_t writer = -1;  ///< actor of the role; -1: the worker's conductor
  std::int32_t writer_port = 0;
  std::vector<PlanReader> readers;
  std::vector<std::int32_t> tensors;
  std::vector<std::int64_t> offsets;  ///< bytes into a slot, 64-byte aligned
  std::int64_t bytes = 0;             ///< of one slot, at the largest place of the role
  std::int32_t slots = 1;
  Rate rate = Rate::microbatch;
  std::int32_t lag = 0;  ///< delayed: microbatch m is read by microbatch m + lag of its step
  bool initial = false;  ///< holds a token before the first act
  /// of the role: its channels take turns in few buffers; -1: memory of its own
  std::int32_t ring = -1;
  std::int32_t buffer = 0;  ///< of that ring
  /// bytes into the buffer: channels that are needed together lie side by side
  std::int64_t buffer_offset = 0;
  /// A shared area of the role: its shifts take turns in the same memory (lifetimes.h), and tenants of one shift lie
  /// side by side; -1: none.
  std::int32_t area = -1;
  std::int32_t shift = 0;
  bool control() const { return kind == Kind::go || kind == Kind::commit || kind == Kind::feed; }
  /// Whether its readers act after its writer in each microbatch, or step, before the step is over.
  bool passes_on() const { return kind != Kind::turn && kind != Kind::delayed && kind != Kind::kept; }
  bool operator==(const PlanChannel&) const = default;
};
const char* to_string(PlanChannel::Kind kind);

}  // namespace troupe::runtime
