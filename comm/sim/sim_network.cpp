#include "comm/sim/sim_network.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/link.h"
#include "comm/match.h"
#include "devices/base/check.h"
#include "devices/base/philox.h"

namespace troupe::comm {

struct SimNetwork::Impl {
  using Action = std::function<void(std::int64_t at_ns)>;
  struct Event {
    int link = -1;  ///< the way it travels; -1: none
    Action run;
  };
  struct Way {
    SimLink link;
    std::int64_t free_at_ns = 0;
    std::int64_t clogged_until_ns = 0;
    std::uint64_t announcements = 0;
    bool cut = false;
    std::vector<Event> parked;
  };

  Impl(const Clock& c, const SimNetworkOptions& o)
      : clock(c), options(o), jitter_key(philox_key(o.seed, "sim_network.jitter")),
        ways(static_cast<std::size_t>(o.ranks) * static_cast<std::size_t>(o.ranks)) {
    for (Way& way : ways) way.link = o.link;
  }

  const Clock& clock;
  SimNetworkOptions options;
  std::uint64_t jitter_key;
  std::vector<Way> ways;  ///< [from * ranks + to]
  std::map<std::pair<std::int64_t, std::uint64_t>, Event> events;
  std::uint64_t next_sequence = 0;
  std::map<std::uint64_t, End*> alive;    ///< by the end's id; closures hold ids, never pointers
  std::map<Rank, std::uint64_t> current;  ///< which end a rank has now
  std::uint64_t next_id = 1;

  int index(Rank from, Rank to) const {
    REQUIRE(from >= 0 && from < options.ranks && to >= 0 && to < options.ranks, from, to, options.ranks);
    return from == to ? -1 : from * options.ranks + to;
  }
  Way& way(int link) { return ways[static_cast<std::size_t>(link)]; }
  std::int64_t latency_ns(int link) { return link < 0 ? 0 : way(link).link.latency_ns; }
  std::int64_t ack_ns(int link) {
    return link < 0 || way(link).link.ack_ns < 0 ? latency_ns(link) : way(link).link.ack_ns;
  }

  void at(std::int64_t due_ns, int link, Action run) {
    events.emplace(std::pair(due_ns, next_sequence++), Event{link, std::move(run)});
  }
  End* find(std::uint64_t id) const {
    const auto it = alive.find(id);
    return it == alive.end() ? nullptr : it->second;
  }
  bool blocked(int link, std::int64_t now_ns) {
    return link >= 0 && (way(link).cut || now_ns < way(link).clogged_until_ns);
  }
  void release(int link, std::int64_t now_ns) {
    if (link < 0 || blocked(link, now_ns)) return;
    for (Event& e : std::exchange(way(link).parked, {})) at(now_ns, link, std::move(e.run));
  }
  void tell_down(const End& lost, std::int64_t due_ns, bool over_link, const std::string& why);
};

class SimNetwork::End final : public Transport {
 public:
  End(Impl& net, Rank rank, std::uint64_t job, std::uint32_t generation)
      : net_(net), id_(net.next_id++), rank_(rank), job_(job), generation_(generation), table_(job, generation) {
    const auto [it, fresh] = net.current.emplace(rank, id_);
    REQUIRE(fresh, rank);
    net.alive.emplace(id_, this);
  }
  ~End() override { shutdown(); }

  Rank rank() const override { return rank_; }
  void on_peer_down(std::function<void(Rank, Status)> f) override { peer_down_ = std::move(f); }
  TransportStats stats() const override {
    TransportStats s = stats_;
    s.stale_dropped = table_.stale_dropped();
    s.unexpected_max = table_.announced_most();
    return s;
  }
  std::uint64_t id() const { return id_; }
  bool same_generation(const End& other) const { return job_ == other.job_ && generation_ == other.generation_; }

  void send(Rank to, Header header, std::span<const std::byte> data, SendDone done) override {
    const int link = net_.index(rank_, to);
    if (!alive()) return;
    const std::int64_t now = net_.clock.now_ns();
    header.bytes = data.size();
    const std::uint64_t send_id = net_.next_id++;
    sends_.emplace(send_id, Send{to, data.size(), std::move(done)});
    if (header.job != job_ || header.generation != generation_)
      return end_send_at(now, -1, send_id, invalid("a message of another job or generation cannot be sent"));
    if (const auto it = down_.find(to); it != down_.end()) return end_send_at(now, -1, send_id, it->second);
    std::int64_t due = now + net_.latency_ns(link);
    if (link >= 0 && net_.options.jitter_ns > 0) {
      const Philox4 r = philox(net_.jitter_key, net_.way(link).announcements++, static_cast<std::uint64_t>(link));
      const std::uint64_t random = static_cast<std::uint64_t>(r[1]) << 32 | r[0];
      due += static_cast<std::int64_t>(random % (static_cast<std::uint64_t>(net_.options.jitter_ns) + 1));
    }
    net_.at(due, link, [net = &net_, from = rank_, from_end = id_, send_id, to, header, data](std::int64_t at_ns) {
      const auto it = net->current.find(to);
      End* sender = net->find(from_end);
      if (it == net->current.end() || sender == nullptr) return;
      net->find(it->second)->announced(at_ns, {from, header, 0}, {from_end, send_id, data});
    });
  }

  void recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) override {
    net_.index(from, rank_);
    if (!alive()) return;
    const std::int64_t now = net_.clock.now_ns();
    Posted receive{from, key, into, std::move(done)};
    if (const auto it = down_.find(from); it != down_.end()) return end_receive_at(now, std::move(receive), it->second);
    if (const auto message = table_.post(receive)) {
      auto node = sources_.extract(message->token);
      transfer(now, *message, node.mapped(), std::move(receive));
    }
  }

  void shutdown() override {
    if (!alive()) return;
    leave();
    net_.tell_down(*this, net_.clock.now_ns(), true, name_of(rank_) + " has shut down");
  }

  /// Takes this end out of the network: closures no longer find it, so none calls back or touches a buffer.
  void leave() {
    net_.alive.erase(id_);
    net_.current.erase(rank_);
    table_.take_all();
    sends_.clear();
    sources_.clear();
    receiving_.clear();
  }

  void lose(std::int64_t at_ns, Rank peer, const Status& why) {
    if (!down_.emplace(peer, why).second) return;
    MatchTable::Taken taken = table_.take(peer);
    for (const Announced& message : taken.announced) sources_.erase(message.token);
    for (Posted& receive : taken.posted) end_receive_at(at_ns, std::move(receive), why);
    for (auto it = receiving_.begin(); it != receiving_.end();) {
      if (it->second.receive.from != peer) {
        ++it;
        continue;
      }
      end_receive_at(at_ns, std::move(it->second.receive), why);
      it = receiving_.erase(it);
    }
    for (const auto& [send_id, s] : sends_)
      if (s.to == peer) end_send_at(at_ns, -1, send_id, why);
    if (const auto f = peer_down_) f(peer, why);  // last: it may destroy this end
  }

 private:
  struct Send {
    Rank to;
    std::size_t bytes;
    SendDone done;
  };
  /// Where an announced message's payload is.
  struct Source {
    std::uint64_t end, send_id;
    std::span<const std::byte> data;
  };
  struct Receiving {
    Posted receive;
    Header header;
  };

  bool alive() const { return net_.find(id_) != nullptr; }

  void announced(std::int64_t at_ns, Announced message, const Source& source) {
    if (!table_.admit(message.from, std::as_bytes(std::span(&message.header, 1)))) return;
    if (down_.contains(message.from)) return;
    message.token = net_.next_id++;
    bool full = false;
    if (auto receive = table_.announce(message, full)) return transfer(at_ns, message, source, std::move(*receive));
    if (full)
      return lose(
          at_ns, message.from,
          {Code::unavailable, name_of(message.from) + " is given up: too many of its messages wait for a receive"});
    sources_.emplace(message.token, source);
  }

  void transfer(std::int64_t at_ns, const Announced& message, const Source& source, Posted receive) {
    const int link = net_.index(message.from, rank_), back = net_.index(rank_, message.from);
    End* sender = net_.find(source.end);
    if (const Status fits = check_size(message.from, message.header, receive.into.size()); !fits.ok()) {
      if (sender != nullptr) sender->end_send_at(at_ns + net_.ack_ns(back), back, source.send_id, {});
      return end_receive_at(at_ns, std::move(receive), fits, message.header);
    }
    std::int64_t end_ns = at_ns;
    if (link >= 0) {
      Impl::Way& way = net_.way(link);
      end_ns = occupy(way.free_at_ns, at_ns, message.header.bytes, way.link.bytes_per_second);
    }
    const std::uint64_t receive_id = net_.next_id++;
    receiving_.emplace(receive_id, Receiving{std::move(receive), message.header});
    net_.at(end_ns, link, [net = &net_, to_end = id_, receive_id, source, back](std::int64_t now_ns) {
      End* receiver = net->find(to_end);
      End* from = net->find(source.end);
      // a dead sender's bytes are gone; lose() ends the receive
      if (receiver == nullptr || from == nullptr) return;
      auto node = receiver->receiving_.extract(receive_id);
      if (node.empty()) return;
      auto& [posted, header] = node.mapped();
      if (!source.data.empty()) std::memcpy(posted.into.data(), source.data.data(), source.data.size());
      if (net->options.on_delivery)
        net->options.on_delivery({now_ns, posted.from, receiver->rank_, header, source.data});
      from->end_send_at(now_ns + net->ack_ns(back), back, source.send_id, {});
      receiver->finish(posted, {}, header);
    });
  }

  void end_send_at(std::int64_t due_ns, int link, std::uint64_t send_id, Status status) {
    net_.at(due_ns, link, [net = &net_, id = id_, send_id, status = std::move(status)](std::int64_t) {
      End* end = net->find(id);
      if (end == nullptr) return;
      auto node = end->sends_.extract(send_id);
      if (node.empty()) return;
      if (status.ok()) {
        ++end->stats_.sent_messages;
        end->stats_.sent_bytes += node.mapped().bytes;
      }
      if (node.mapped().done) node.mapped().done(status);
    });
  }

  void end_receive_at(std::int64_t due_ns, Posted receive, Status status, std::optional<Header> header = {}) {
    Header h = header.value_or(Header());
    if (!header) h.channel = receive.key.channel, h.part = receive.key.part, h.sequence = receive.key.sequence;
    net_.at(due_ns, -1,
            [net = &net_, id = id_, receive = std::move(receive), status = std::move(status), h](std::int64_t) mutable {
              if (End* end = net->find(id)) end->finish(receive, status, h);
            });
  }

  void finish(Posted& receive, const Status& status, const Header& header) {
    if (status.ok()) {
      ++stats_.received_messages;
      stats_.received_bytes += header.bytes;
    }
    if (receive.done) receive.done(status, header);
  }

  Impl& net_;
  const std::uint64_t id_;
  const Rank rank_;
  const std::uint64_t job_;
  const std::uint32_t generation_;
  MatchTable table_;
  std::map<std::uint64_t, Send> sends_;           ///< not done yet
  std::map<std::uint64_t, Source> sources_;       ///< of announced messages, by token
  std::map<std::uint64_t, Receiving> receiving_;  ///< matched, under way
  std::map<Rank, Status> down_;
  std::function<void(Rank, Status)> peer_down_;
  TransportStats stats_;
};

void SimNetwork::Impl::tell_down(const End& lost, std::int64_t due_ns, bool over_link, const std::string& why) {
  for (const auto& [id, end] : alive) {
    if (!end->same_generation(lost) || end->id() == lost.id()) continue;
    const int link = over_link ? index(lost.rank(), end->rank()) : -1;
    at(due_ns + latency_ns(link), link, [this, id = id, rank = lost.rank(), why](std::int64_t at_ns) {
      if (End* peer = find(id)) peer->lose(at_ns, rank, {Code::unavailable, why});
    });
  }
}

SimNetwork::SimNetwork(const Clock& clock, const SimNetworkOptions& options)
    : impl_(std::make_unique<Impl>(clock, options)) {}
SimNetwork::~SimNetwork() { ASSERT(impl_->alive.empty(), impl_->alive.size()); }

std::unique_ptr<Transport> SimNetwork::open(Rank rank, std::uint64_t job, std::uint32_t generation) {
  impl_->index(rank, rank);
  return std::make_unique<End>(*impl_, rank, job, generation);
}

std::optional<std::int64_t> SimNetwork::next_due_ns() const {
  if (impl_->events.empty()) return std::nullopt;
  return impl_->events.begin()->first.first;
}

bool SimNetwork::run_one(std::int64_t now_ns) {
  auto& events = impl_->events;
  if (events.empty() || events.begin()->first.first > now_ns) return false;
  auto node = events.extract(events.begin());
  Impl::Event& event = node.mapped();
  if (impl_->blocked(event.link, node.key().first)) impl_->way(event.link).parked.push_back(std::move(event));
  else event.run(node.key().first);
  return true;
}

void SimNetwork::run_due(std::int64_t now_ns) {
  while (run_one(now_ns)) {}
}

void SimNetwork::set_link(Rank from, Rank to, const SimLink& link) {
  if (const int i = impl_->index(from, to); i >= 0) impl_->way(i).link = link;
}

void SimNetwork::cut(Rank from, Rank to) {
  if (const int i = impl_->index(from, to); i >= 0) impl_->way(i).cut = true;
}

void SimNetwork::heal(Rank from, Rank to) {
  const int i = impl_->index(from, to);
  if (i < 0) return;
  impl_->way(i).cut = false;
  impl_->release(i, impl_->clock.now_ns());
}

void SimNetwork::clog(Rank from, Rank to, std::int64_t for_ns) {
  const int i = impl_->index(from, to);
  if (i < 0) return;
  auto& way = impl_->way(i);
  way.clogged_until_ns = std::max(way.clogged_until_ns, impl_->clock.now_ns() + for_ns);
  impl_->at(way.clogged_until_ns, -1, [net = impl_.get(), i](std::int64_t at_ns) { net->release(i, at_ns); });
}

void SimNetwork::kill(Rank rank) {
  const auto it = impl_->current.find(rank);
  if (it == impl_->current.end()) return;
  End* end = impl_->find(it->second);
  end->leave();
  impl_->tell_down(*end, impl_->clock.now_ns() + impl_->options.detect_ns, false, name_of(rank) + " is gone (killed)");
}

}  // namespace troupe::comm
