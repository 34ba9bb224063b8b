// The state of a game, by which a steady state is recognised: all that the rest of the game depends on, counted from
// the microbatch at hand.
#include <algorithm>
#include <limits>

#include "devices/base/philox.h"
#include "runtime/simulate/game.h"

namespace troupe::runtime {

void Game::detect_cycle() {
  const GameActor* first = nullptr;
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0;
  for (const auto& place : places_)
    for (const auto& a : place->actors)
      if (a->moves()) {
        if (!first) first = a.get();
        const auto acts = static_cast<std::int64_t>(a->core_.ports().acts());
        if (first == a.get() && acts == seen_) return;
        least = std::min(least, acts);
        most = std::max(most, acts);
      }
  if (!first) return;
  seen_ = static_cast<std::int64_t>(first->core_.ports().acts());
  const std::int64_t step = least / microbatches_;
  if (step >= options_.steps || search_.has_found(step)) return;
  if (most > (step + 1) * microbatches_ || !others_rest()) return;
  search_.see(step, seen_, loop_.now_ns(), state());
}

bool Game::others_rest() const {
  for (const auto& place : places_)
    for (const auto& a : place->actors) {
      if (a->moves() || a->core_.idle()) continue;
      for (const auto& b : place->actors)
        if (b->moves() && b->stream_ == a->stream_ && b->plan_.priority == a->plan_.priority) return false;
    }
  return true;
}

std::vector<std::int64_t> Game::state() const {
  std::vector<std::int64_t> out = {static_cast<std::int64_t>(commits_ns_.size()), closings_};
  auto append_state = [&](const GameActor& a, std::uint64_t number) {
    out.insert(out.end(), {a.place_, a.index_, static_cast<std::int64_t>(number) - (a.moves() ? seen_ : 0)});
  };
  for (const auto& place : places_) {
    for (const auto& a : place->actors) a->core_.append_state(a->moves() ? seen_ : 0, out);
    for (const auto& [channel, port] : place->controls) {
      const PlanChannel& c = plan_.roles[place->local.stage].channels[place->local.channels[channel].channel];
      const bool moves = plan_.is_step_program(c.program) && c.rate == Rate::microbatch;
      out.push_back(static_cast<std::int64_t>(port.waiting()) + (moves ? seen_ : 0));
    }
    for (std::size_t w = 0; w < place->links->size(); ++w)
      out.push_back(std::max<std::int64_t>(0, place->links->free_at_ns(w) - loop_.now_ns()));
    for (const auto& [actor, number] : place->submitted) append_state(*actor, number);
    for (const auto& [stream, last] : place->last) {
      append_state(*last.first, last.second.number);
      out.insert(out.end(), {last.second.step, last.second.microbatch - (last.first->moves() ? seen_ : 0)});
    }
  }
  decisions_->append_state(out);
  for (const auto& h : told_)
    out.insert(out.end(), {h.due_ns - loop_.now_ns(), h.step.program, h.step.step, h.microbatch, h.voter,
                           h.taken    ? static_cast<std::int64_t>(name_hash(h.taken->name))
                           : h.report ? static_cast<std::int64_t>(name_hash(*h.report))
                                      : 0});
  for (const auto& u : under_way_) {
    append_state(*u.actor, u.number);
    out.insert(out.end(), {u.end_ns - loop_.now_ns(), static_cast<std::int64_t>(u.phase)});
  }
  for (const auto& [key, table] : peer_tables_) {
    const PlanExchange& x = plan_.exchanges[key.first];
    const bool moves = plan_.is_step_program(x.program) && x.rate == Rate::microbatch;
    const auto total = plan_.owners_of(x).acts_of_job(x.rate);
    out.insert(out.end(), {key.first, key.second / total, key.second % total - (moves ? seen_ : 0), table.step});
    for (const auto& g : table.arrivals)
      out.insert(out.end(),
                 {g.place, g.waits != nullptr, g.waits ? std::max<std::int64_t>(0, g.end_ns - loop_.now_ns()) : 0});
  }
  return out;
}

}  // namespace troupe::runtime
