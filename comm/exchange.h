// Exchange: one place's share of a boxing, executed. Every collective is this class with another plan:
// all-gather, reduce-scatter, all-to-all, broadcast, send/recv are transfers between extents; terms of
// partial sums are added along the fixed tree of placement/tree.h, whatever the order of arrival (NU-2).
//
// Direct exchange: each piece travels once, from its holder to whoever needs it, straight into the
// destination slot where the piece is contiguous there and complete; through staging memory otherwise.
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
  DType dtype = DType::f32;
  std::int32_t terms = 1;              ///< leaves of the reduction tree
  std::int32_t port = 0;               ///< which input slot has the source
  std::vector<Piece> have;             ///< in that slot
  Extent want;                         ///< in the output slot; meaningful if wants
  std::int64_t want_offset = 0;
  bool wants = false;
  bool zero = false;                   ///< B -> P at a place that keeps no value: zeros

  struct Part {
    Transfer transfer;
    std::uint32_t id = 0;              ///< numbers the transfers of the exchange from one place to another
    std::int64_t staging = -1;         ///< byte offset in staging memory; -1: straight from or to a slot
  };
  std::vector<Part> sends, receives, locals;
};

/// Everything one act does at one place.
struct Route {
  std::vector<Move> moves;
  std::int64_t staging_bytes = 0;
  bool before = false;                 ///< something to pack before the network
  bool after = false;                  ///< something to unpack, copy or add after it

  std::int64_t sent_bytes() const;
  std::int64_t received_bytes() const;
};

/// Where one place keeps its part of a tensor that moves.
struct MoveEnds {
  std::int32_t port = 0;
  std::vector<Move::Piece> have;       ///< empty: this place only receives
  const Extent* want = nullptr;        ///< null: this place only sends
  std::int64_t want_offset = 0;
};
/// How many transfers of an exchange go to, and come from, each other place so far.
struct PartNumbers {
  std::map<Rank, std::uint32_t> sent, received;
};
/// Adds to `route` this place's part of moving one tensor. Of `plan` it needs the transfers from and to `self` only.
/// They are numbered link by link in their order, which both ends know.
void add_move(Route& route, Rank self, const BoxingPlan& plan, DType dtype, MoveEnds ends, PartNumbers& numbers);

/// Identity and memory of one act.
struct ExchangeAct {
  Header header;                       ///< job, generation, program, channel, sequence, step, microbatch, slot
  std::vector<const std::byte*> sources;   ///< the input slots; none if this place only receives
  std::byte* destination = nullptr;    ///< the output slot; null if this place only sends
  std::byte* staging = nullptr;
  TaskOrder order;
};

/// Status, and the header of a received message (step and microbatch, for places that only receive).
using ExchangeDone = std::function<void(Status, const Header&)>;

/// Starts one act; `done` is called once, from the transport's or the stream's thread: with success when every part
/// has moved, with the first failure at once. `route` and all memory stay valid until then; after a failure until the
/// transport is shut down, because other parts may still be under way. Packing and adding run on `stream`.
void run_exchange(const Route& route, const ExchangeAct& act, Transport& transport, Stream& stream, ExchangeDone done);

}  // namespace troupe::comm
