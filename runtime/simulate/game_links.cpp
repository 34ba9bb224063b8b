#include "runtime/simulate/game_links.h"

namespace troupe::runtime {

std::vector<GameMessage> GameLinks::messages(const comm::Route& route) {
  std::map<std::pair<Rank, bool>, std::int64_t> bytes;  // by peer and whether they are sent
  for (const comm::Move& m : route.moves) {
    const auto bytes_of = [&](const comm::Move::Part& p) { return p.transfer.extent.elements() * size_of(m.wire()); };
    for (const auto& p : m.sends) bytes[{p.transfer.to, true}] += bytes_of(p);
    for (const auto& p : m.receives) bytes[{p.transfer.from, false}] += bytes_of(p);
  }
  std::vector<GameMessage> out;
  for (const auto& [end, n] : bytes) {
    const auto [peer, sends] = end;
    const LinkCost& cost = costs_.link(self_, peer);
    const auto [link, fresh] = links_.try_emplace(end, free_at_ns_.size());
    if (fresh) free_at_ns_.push_back(0);
    GameMessage m;
    m.peer = peer;
    m.port = (costs_.on_one_node(self_, peer) ? 0 : 2) + (sends ? 0 : 1);
    m.link = link->second;
    m.port_ns = to_ns(static_cast<double>(n) / cost.bytes_per_s);
    m.link_ns = to_ns(static_cast<double>(n) / cost.pair_bytes_per_s);
    m.latency_ns = sends ? 0 : to_ns(cost.latency_s);  // a message is on its way while the next one is sent
    out.push_back(m);
  }
  return out;
}

std::int64_t GameLinks::carry(const GameMessage& m, std::int64_t now_ns) {
  const auto through = [&](std::size_t way, std::int64_t ready_ns, std::int64_t ns) {
    return free_at_ns_[way] = std::max(ready_ns, free_at_ns_[way]) + ns;
  };
  return through(m.link, through(m.port, now_ns, m.port_ns), m.link_ns) + m.latency_ns;
}

}  // namespace troupe::runtime
