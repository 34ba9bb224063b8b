#include "runtime/simulate/game_links.h"

namespace troupe::runtime {

GameMessage GameLinks::message(Rank peer, bool sent, std::int64_t bytes) {
  const LinkCost& cost = costs_.link(self_, peer);
  const std::int64_t way = 2 * std::int64_t{peer} + (sent ? 1 : 0);
  auto link = std::lower_bound(links_.begin(), links_.end(), std::pair(way, std::size_t{0}));
  if (link == links_.end() || link->first != way) {
    link = links_.insert(link, {way, free_at_ns_.size()});
    free_at_ns_.push_back(0);
  }
  GameMessage m;
  m.peer = peer;
  m.sent = sent;
  m.interface = (costs_.on_one_node(self_, peer) ? 0 : 2) + (sent ? 0 : 1);
  m.link = link->second;
  m.interface_ns = to_ns(static_cast<double>(bytes) / cost.bytes_per_s);
  m.link_ns = to_ns(static_cast<double>(bytes) / cost.link_bytes_per_s);
  m.latency_ns = sent ? 0 : to_ns(cost.delivery_s(bytes));
  return m;
}

std::vector<GameMessage> GameLinks::messages(const comm::Route& route) {
  std::vector<GameMessage> out;
  std::size_t n = 0;
  for (const comm::Move& m : route.moves) n += m.receives.size() + m.sends.size();
  out.reserve(n);
  for (const comm::Move& m : route.moves) {
    const auto bytes_of = [&](const comm::Move::Part& p) { return p.transfer.extent.elements() * size_of(m.wire()); };
    for (const auto& p : m.receives) out.push_back(message(p.transfer.from, false, bytes_of(p)));
    for (const auto& p : m.sends) out.push_back(message(p.transfer.to, true, bytes_of(p)));
  }
  return out;
}

std::int64_t GameLinks::carry(const GameMessage& m, std::int64_t now_ns) {
  const auto through = [&](std::size_t way, std::int64_t ready_ns, std::int64_t ns) {
    return free_at_ns_[way] = std::max(ready_ns, free_at_ns_[way]) + ns;
  };
  return through(m.link, through(m.interface, now_ns, m.interface_ns), m.link_ns);
}

}  // namespace troupe::runtime
