#include "comm/route.h"

#include <algorithm>

#include "devices/base/check.h"
#include "placement/boxing.h"

namespace troupe::comm {

namespace {

std::int64_t reserve(Route& route, std::int64_t bytes) {
  const std::int64_t at = route.staging_bytes;
  route.staging_bytes += aligned(bytes);
  return at;
}

}  // namespace

const Move::Piece& Move::piece_of(const Transfer& t) const {
  for (const auto& p : have)
    if (p.term == t.term && p.extent.contains(t.extent)) return p;
  ASSERT(false, t.extent, t.term.lo, t.term.hi);
  return have.front();
}

std::int64_t Route::sent_bytes() const {
  std::int64_t n = 0;
  for (const auto& m : moves)
    for (const auto& p : m.sends) n += p.transfer.extent.elements() * size_of(m.wire());
  return n;
}

std::int64_t Route::received_bytes() const {
  std::int64_t n = 0;
  for (const auto& m : moves)
    for (const auto& p : m.receives) n += p.transfer.extent.elements() * size_of(m.wire());
  return n;
}

void add_move(Route& route, Rank self, const BoxingPlan& plan, DType from, DType to, MoveEnds ends,
              PartNumbers& numbers) {
  Move move;
  move.from = from;
  move.to = to;
  // P -> P: each place gets its own term, as it is
  move.terms = plan.to_terms > 1 || move.sums() ? 1 : plan.terms;
  move.port = ends.port;
  move.have = std::move(ends.have);
  move.want_offset = ends.want_offset;
  move.wants = ends.want != nullptr;
  move.exponent_port = ends.exponent_port;
  move.exponent_offset = ends.exponent_offset;
  if (ends.want) move.want = *ends.want;
  const std::int64_t item = size_of(move.wire());
  for (const auto& t : plan.transfers) {
    if (t.from != self && t.to != self) continue;
    Move::Part part{t, 0, -1};
    if (t.from == self && t.to == self) {
      move.locals.push_back(part);
      route.after |= !move.sums();
    } else if (t.from == self) {
      if (move.wire() != from || !contiguous_in(t.extent, move.piece_of(t).extent)) {
        // An extent that several places get is packed once.
        const auto same = std::find_if(move.sends.begin(), move.sends.end(), [&](const Move::Part& p) {
          return p.transfer.extent == t.extent && p.transfer.term == t.term;
        });
        part.packs = same == move.sends.end();
        part.staging = part.packs ? reserve(route, t.extent.elements() * item) : same->staging;
        route.before = true;
      }
      part.id = numbers.sent[t.to]++;
      move.sends.push_back(part);
    } else {
      if (move.sums() || move.terms > 1 || !contiguous_in(t.extent, move.want)) {
        part.staging = reserve(route, t.extent.elements() * item);
        route.after |= !move.sums();
      }
      part.id = numbers.received[t.from]++;
      move.receives.push_back(part);
    }
  }
  if (move.sums()) {
    route.sums = true;
    for (const Move& before : route.moves)
      if (before.wants && before.want_offset == move.want_offset && !before.want.empty()) move.begins = false;
  } else {
    const bool told = std::all_of(move.receives.begin(), move.receives.end(),
                                  [](const Move::Part& p) { return p.transfer.extent.empty(); });
    move.zero = move.wants && !move.want.empty() && move.locals.empty() && told;  // no value comes
    route.after |= move.zero;
  }
  route.moves.push_back(std::move(move));
}

}  // namespace troupe::comm
