// Token: the message that a slot is filled. Published by Ports::publish (slots.h), one to each reader.
#pragma once

#include <cstdint>

namespace troupe::actors {

/// Programs (train, evaluate, ...) that read a token: bit p is program p.
using ProgramMask = std::uint32_t;
inline constexpr ProgramMask every_program = ~ProgramMask{0};

/// The message that a slot of the writer is filled; says what the slot holds.
struct Token {
  std::int32_t slot = 0;
  std::uint32_t sequence = 0;  ///< numbers the tokens of a channel
  std::int64_t step = 0;
  std::int32_t microbatch = -1;  ///< -1: once per step
  std::int64_t rows = -1;        ///< actual length of a ragged dim; -1: as planned
  /// programs whose readers get the tokens that an act makes of this token
  ProgramMask readers = every_program;
  std::uint64_t flow = 0;  ///< names this token in a trace
  /// counts the tokens that have arrived at its reader; set by Ports::arrive
  std::uint64_t arrival = 0;
};

}  // namespace troupe::actors
