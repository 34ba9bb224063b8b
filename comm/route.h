// Route: what one place does in one act of an exchange, computed once from the boxing plan.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

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
  DType from = DType::f32, to = DType::f32;  ///< they differ between f32 and sum64 only
  std::int32_t terms = 1;                    ///< leaves of the reduction tree
  std::int32_t port = 0;                     ///< which input slot has the source
  std::vector<Piece> have;                   ///< in that slot
  Extent want;                               ///< in the output slot; meaningful if wants
  std::int64_t want_offset = 0;
  bool wants = false;
  bool zero = false;   ///< B -> P at a place that keeps no value: zeros
  bool begins = true;  ///< exact sums: of the moves of a route into one destination, the first
  /// input slot that has the exponent (an int32) of the exact sum; -1: nothing is converted
  std::int32_t exponent_port = -1;
  std::int64_t exponent_offset = 0;

  struct Part {
    Transfer transfer;
    std::uint32_t id = 0;       ///< numbers the transfers of the exchange from one place to another
    std::int64_t staging = -1;  ///< byte offset in staging memory; -1: straight from or to a slot
    bool packs = false;         ///< of sends that share their staging memory, the one that fills it
  };
  std::vector<Part> sends, receives, locals;

  bool sums() const { return to == DType::sum64; }
  /// Whether what it receives is added, not copied.
  bool adds() const { return wants && !zero && (sums() || terms > 1); }
  /// The piece of the source that a transfer from this place is taken from. REQUIRES that there is one.
  const Piece& piece_of(const Transfer& t) const;
  /// The type that travels, the smaller one.
  DType wire() const { return size_of(from) <= size_of(to) ? from : to; }
};

/// Everything one act does at one place.
struct Route {
  std::vector<Move> moves;
  std::int64_t staging_bytes = 0;
  bool before = false;  ///< something to pack before the network
  bool after = false;   ///< something to unpack, copy or add after it
  /// exact sums: what this place has itself begins them, parts are added as they arrive
  bool sums = false;

  std::int64_t sent_bytes() const;
  std::int64_t received_bytes() const;
};

/// Where one place keeps its part of a tensor that moves.
struct MoveEnds {
  std::int32_t port = 0;
  std::vector<Move::Piece> have;  ///< empty: this place only receives
  const Extent* want = nullptr;   ///< null: this place only sends
  std::int64_t want_offset = 0;
  std::int32_t exponent_port = -1;  ///< see Move
  std::int64_t exponent_offset = 0;
};
/// How many transfers of an exchange go to, and come from, each other place so far.
struct PartNumbers {
  std::map<Rank, std::uint32_t> sent, received;
};
/// Adds to `route` the part of `self` in moving one tensor. Of `plan` it needs the transfers from and to `self` only;
/// it numbers them per peer, in the plan's order, which both ends know. REQUIRES that each transfer from `self` lies in
/// one piece of `ends.have` with its term.
void add_move(Route& route, Rank self, const BoxingPlan& plan, DType from, DType to, MoveEnds ends,
              PartNumbers& numbers);

}  // namespace troupe::comm
