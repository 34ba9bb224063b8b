// Exchange: executes one place's part of a boxing. Every collective is an exchange with another plan: all-gather,
// reduce-scatter, all-to-all, broadcast, send/recv are transfers between extents.
//
// Floating-point terms of a partial sum are added along the fixed tree of placement/tree.h, whatever the order of arrival.
// Terms of an exact sum (sum64) are added as they arrive, in any order: integers do not round (NU-2). An exact sum may
// take several acts: the first begins it, every later one adds to it.
//
// Direct exchange: each piece travels once, from its holder to the place that needs it, straight into the
// destination slot where the piece is contiguous there and complete; through staging memory otherwise. Where source and
// destination differ in type, the smaller of the two travels: an f32 term is converted where it arrives, an exact sum is
// rounded where it lies.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "comm/transport.h"
#include "devices/device.h"
#include "placement/boxing.h"

namespace troupe::comm {

/// One tensor of an exchange, as one place sees it. Offsets are bytes into the slots.
struct Move {
  /// What this place holds of the source: several entries only for partial sums.
  struct Piece {
    Extent extent;
    Term term;
    std::int64_t offset = 0;
  };
  DType from = DType::f32, to = DType::f32;   ///< they differ between f32 and sum64 only
  std::int32_t terms = 1;              ///< leaves of the reduction tree
  std::int32_t port = 0;               ///< which input slot has the source
  std::vector<Piece> have;             ///< in that slot
  Extent want;                         ///< in the output slot; meaningful if wants
  std::int64_t want_offset = 0;
  bool wants = false;
  bool zero = false;                   ///< B -> P at a place that keeps no value: zeros
  bool begins = true;                  ///< exact sums: of the moves of a route into one destination, the first
  std::int32_t exponent_port = -1;     ///< input slot that has the exponent (an int32) of the exact sum; -1: nothing is converted
  std::int64_t exponent_offset = 0;

  struct Part {
    Transfer transfer;
    std::uint32_t id = 0;              ///< numbers the transfers of the exchange from one place to another
    std::int64_t staging = -1;         ///< byte offset in staging memory; -1: straight from or to a slot
    bool packs = false;                ///< of sends that share their staging memory, the one that fills it
  };
  std::vector<Part> sends, receives, locals;

  bool sums() const { return to == DType::sum64; }
  /// The type that travels, the smaller one.
  DType wire() const { return size_of(from) <= size_of(to) ? from : to; }
};

/// Everything one act does at one place.
struct Route {
  std::vector<Move> moves;
  std::int64_t staging_bytes = 0;
  bool before = false;                 ///< something to pack before the network
  bool after = false;                  ///< something to unpack, copy or add after it
  bool sums = false;                   ///< exact sums: what this place has itself begins them, parts are added as they arrive

  std::int64_t sent_bytes() const;
  std::int64_t received_bytes() const;
};

/// Where one place keeps its part of a tensor that moves.
struct MoveEnds {
  std::int32_t port = 0;
  std::vector<Move::Piece> have;       ///< empty: this place only receives
  const Extent* want = nullptr;        ///< null: this place only sends
  std::int64_t want_offset = 0;
  std::int32_t exponent_port = -1;     ///< see Move
  std::int64_t exponent_offset = 0;
};
/// How many transfers of an exchange go to, and come from, each other place so far.
struct PartNumbers {
  std::map<Rank, std::uint32_t> sent, received;
};
/// Adds to `route` the part of `self` in moving one tensor. Of `plan` it needs the transfers from and to `self` only;
/// it numbers them per peer, in the plan's order, which both ends know. REQUIRES that each transfer from `self` lies in
/// one piece of `ends.have` with its term.
void add_move(Route& route, Rank self, const BoxingPlan& plan, DType from, DType to, MoveEnds ends, PartNumbers& numbers);

/// Identity and memory of one act.
struct ExchangeAct {
  Header header;                       ///< job, generation, program, channel, sequence, step, microbatch, slot
  std::vector<const std::byte*> sources;   ///< the input slots; none if this place only receives
  std::byte* destination = nullptr;    ///< the output slot; null if this place only sends
  std::byte* staging = nullptr;
  bool first = true;                   ///< this act is the first that fills the output slot: it begins exact sums
  TaskOrder order;                     ///< the same for all acts that add to one slot
};

/// Status, and the header of one received message (step and microbatch, for places that only receive); the act's own
/// header where this place received none.
using ExchangeDone = std::function<void(Status, const Header&)>;

/// Starts one act; `done` is called once, from the transport's or the stream's thread: with success when every part
/// has moved, with the first failure at once. `route` and all memory stay valid until then; after a failure until the
/// transport is shut down, because other parts may still be under way. Packing and adding run on `stream`.
void run_exchange(const Route& route, const ExchangeAct& act, Transport& transport, Stream& stream, ExchangeDone done);

}  // namespace troupe::comm
