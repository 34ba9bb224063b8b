// Exchanges in the token game: an act is over when every peer has begun it, its messages are through, and what has
// arrived is added.
#include <algorithm>

#include "runtime/simulate/game.h"

namespace troupe::runtime {

void Game::put_on_links(Place& place, GameActor& actor) {
  ++places_of_exchange_[actor.plan_.exchange];
  actor.hop_ns_ = to_ns(options_.hop_s);
  for (const auto& route : actor.local_.routes) {
    auto& messages = actor.messages_.emplace_back(place.links->messages(route));
    if (options_.forward_s < 0) continue;
    for (auto& m : messages) m.interface_ns = m.link_ns = m.latency_ns = 0;
  }
}

void Game::resolve_peers(Place& place) {
  for (auto& a : place.actors)
    for (const auto& ranks : a->local_.peers) {
      auto& peers = a->peers_.emplace_back();
      for (Rank r : ranks) peers.push_back(place_of(r));
      std::sort(peers.begin(), peers.end());
      peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
      std::erase(peers, a->place_);
    }
  for (auto& a : place.actors)
    for (auto& messages : a->messages_) {
      for (auto& m : messages) m.place = place_of(m.peer);
      std::stable_sort(messages.begin(), messages.end(), GameMessage::before);
    }
}

void Game::meet(GameActor& actor, std::uint64_t number) {
  const GameActor::Flight& f = actor.flight(number);
  // A shortened step has fewer microbatches than the routes know.
  const auto per_step = shortened() && actor.moves() ? actor.core_.spec().microbatches.size()
                                                     : actor.local_.route_of.size();
  const auto total = actor.local_.acts_per_run;
  const auto sequence = static_cast<std::int64_t>(number / per_step) * total + std::max(0, f.microbatch);
  const auto at = peer_tables_.try_emplace({actor.plan_.exchange, sequence}).first;
  PeerTable& table = at->second;
  if (f.step >= 0) table.step = f.step;
  table.here.resize(places_.size());
  const bool fresh = !table.here[actor.place_];
  table.here[actor.place_] = true;
  const auto& own = actor.peers_[actor.local_.route_of[f.local]];
  const auto missing = std::count_if(own.begin(), own.end(), [&](std::int32_t p) { return !table.here[p]; });
  table.arrivals.push_back({actor.place_, &actor, number, &own, missing, loop_.now_ns()});
  carry_all(table, fresh);
  bool all_told = true;
  for (auto& arrival : table.arrivals) {
    if (!arrival.waits) continue;
    if (fresh && std::binary_search(arrival.peers->begin(), arrival.peers->end(), actor.place_)) --arrival.missing;
    if (arrival.missing > 0) {
      all_told = false;
      continue;
    }
    GameActor* met = std::exchange(arrival.waits, nullptr);
    std::int64_t end_ns = arrival.end_ns + met->hop_ns_;
    if (links_differ_) {  // the slowest place, for which this one stands in, has at least this time
      const double adding_s = met->plan_.gathers() ? 0 : met->plan_.cost_s;
      end_ns = std::max(end_ns, loop_.now_ns() + to_ns(plan_.exchanges[met->plan_.exchange].seconds - adding_s));
    }
    loop_.at(end_ns, [this, met, n = arrival.number, begin_ns = loop_.now_ns(), step = table.step] {
      post({.kind = Mail::Kind::carried,
            .to = met,
            .number = n,
            .begin_ns = begin_ns,
            .end_ns = loop_.now_ns(),
            .step = step});
    });
    under_way_.push_back({met, arrival.number, end_ns, Mail::Kind::carried});
  }
  if (all_told && static_cast<std::int32_t>(table.arrivals.size()) == places_of_exchange_[actor.plan_.exchange])
    peer_tables_.erase(at);
}

void Game::carry_all(PeerTable& table, bool fresh) {
  PeerTable::Arrival& own = table.arrivals.back();
  const auto each_here = [&](const auto& carry_to) {  // of the places that it has messages with, ascending
    auto p = own.peers->begin();
    for (; p != own.peers->end() && *p < own.place; ++p)
      if (table.here[*p]) carry_to(*p);
    carry_to(own.place);
    for (; p != own.peers->end(); ++p)
      if (table.here[*p]) carry_to(*p);
  };
  const auto each_other = [&](const auto& carry_from) {
    for (auto& other : table.arrivals)
      if (fresh && &other != &own && other.waits) carry_from(other);
  };
  // When messages are through the links of their senders, by the other place: no place receives them earlier.
  to_others_ns_.assign(places_.size(), 0);
  from_others_ns_.assign(places_.size(), 0);
  each_here([&](std::int32_t p) { to_others_ns_[p] = carry(own, p, true, 0); });
  each_other([&](auto& other) {
    from_others_ns_[other.place] = std::max(from_others_ns_[other.place], carry(other, own.place, true, 0));
  });
  from_others_ns_[own.place] = to_others_ns_[own.place];
  each_here([&](std::int32_t p) { carry(own, p, false, from_others_ns_[p]); });
  each_other([&](auto& other) { carry(other, own.place, false, to_others_ns_[other.place]); });
}

std::int64_t Game::carry(PeerTable::Arrival& arrival, std::int32_t place, bool sent, std::int64_t sent_ns) {
  GameActor& a = *arrival.waits;
  const auto& messages = a.messages_[a.local_.route_of[a.flight(arrival.number).local]];
  const auto [first, last] = std::equal_range(messages.begin(), messages.end(),
                                              GameMessage{.sent = sent, .place = place}, GameMessage::before);
  std::int64_t through_ns = 0;
  for (auto m = first; m != last; ++m) {
    through_ns = std::max({through_ns, sent_ns, places_[a.place_]->links->carry(*m, loop_.now_ns())});
    arrival.end_ns = std::max(arrival.end_ns, through_ns + m->latency_ns);
  }
  return through_ns;
}

void Game::carried(const Mail& m) {
  GameActor& a = *m.to;
  over(a, m.number);
  Mail done = m;
  done.kind = Mail::Kind::done;
  if (a.plan_.kind != PlanActor::Kind::exchange || a.cost_s_ == 0) return end_act(done);
  const auto& moves = a.local_.routes[a.local_.route_of[a.flight(m.number).local]].moves;
  const bool adds = std::any_of(moves.begin(), moves.end(), [](const comm::Move& move) { return move.adds(); });
  if (!adds) return end_act(done);
  a.add(done);
}

void GameActor::add(Mail done) {
  const Flight& f = flight(done.number);
  const auto& route = local_.routes[local_.route_of[f.local]];
  game_.places_[place_]->submitted.push_back({this, done.number});
  Task task;
  task.order = {plan_.priority, f.step, route.sums ? -1 : f.microbatch, 0};  // as in Communicator
  task.cost_s = cost_s_;
  task.on_start = [this, number = done.number] { begin(number); };
  task.on_done = [this, done](std::int64_t, std::int64_t end_ns) mutable {
    game_.over(*this, done.number);
    done.end_ns = end_ns;
    game_.end_act(done);
  };
  stream_->submit(std::move(task));
}

}  // namespace troupe::runtime
