// Exchange: executes one place's part of a boxing. Every collective is an exchange with another plan: all-gather,
// reduce-scatter, all-to-all, broadcast, send/recv are transfers between extents.
//
// Floating-point terms of a partial sum are added along the fixed tree of placement/tree.h, whatever the order of
// arrival. Terms of an exact sum (sum64) are added as they arrive, in any order: integers do not round (NU-2
// topologies). An exact sum may take several acts: the first begins it, every later one adds to it.
//
// Direct exchange: each piece travels once, from its holder to the place that needs it, straight into the
// destination slot where the piece is contiguous there and complete; through staging memory otherwise. Where source and
// destination differ in type, the smaller of the two travels: an f32 term is converted where it arrives, an exact sum
// is rounded where it lies.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/route.h"
#include "comm/transport.h"
#include "devices/device.h"

namespace troupe::comm {

/// Identity and memory of one act.
struct ExchangeAct {
  Header header;                          ///< job, generation, program, channel, sequence, step, microbatch, slot
  std::vector<const std::byte*> sources;  ///< the input slots; none if this place only receives
  std::byte* destination = nullptr;       ///< the output slot; null if this place only sends
  std::byte* staging = nullptr;
  /// this act is the first that fills the output slot: it begins exact sums
  bool first = true;
  TaskOrder order;      ///< the same for all acts that add to one slot
  double adding_s = 0;  ///< predicted: of adding all that arrives (Task::cost_s)
};

/// Status, and the header of one received message (step and microbatch, for places that only receive); the act's own
/// header where this place received none.
using ExchangeDone = std::function<void(Status, const Header&)>;

/// Starts one act; `done` is called once, from the transport's or the stream's thread: with success when every part
/// has moved, with the first failure at once. `route` and all memory stay valid until then; after a failure until the
/// transport is shut down, because other parts may still be under way. Packing and adding run on `stream`.
void run_exchange(const Route& route, const ExchangeAct& act, Transport& transport, Stream& stream, ExchangeDone done);

}  // namespace troupe::comm
