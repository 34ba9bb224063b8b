#include "comm/throttled/throttled_transport.h"

#include <utility>

#include "comm/link.h"

namespace troupe::comm {

bool Throttle::concerns(Rank x, Rank y) const {
  const auto fits = [](Rank pattern, Rank rank) { return pattern < 0 || pattern == rank; };
  return (fits(a, x) && fits(b, y)) || (fits(a, y) && fits(b, x));
}

ThrottledTransport::ThrottledTransport(std::unique_ptr<Transport> inner, std::unique_ptr<Alarm> alarm,
                                       std::vector<Throttle> links)
    : links_(std::move(links)), alarm_(std::move(alarm)), inner_(std::move(inner)) {}

ThrottledTransport::~ThrottledTransport() { shutdown(); }

std::int64_t ThrottledTransport::left_ns(Ways& ways, Rank peer, std::uint64_t bytes, std::int64_t& latency_ns) {
  const std::int64_t now_ns = alarm_->clock().now_ns();
  if (peer == rank()) return now_ns;
  std::lock_guard lock(mutex_);
  const auto [it, fresh] = ways.try_emplace(peer);
  Way& way = it->second;
  if (fresh)
    for (const Throttle& t : links_)
      if (t.concerns(rank(), peer)) way.link = t;
  latency_ns = way.link.latency_ns;
  return occupy(way.free_at_ns, now_ns, bytes, way.link.bytes_per_second);
}

void ThrottledTransport::send(Rank to, Header header, std::span<const std::byte> data, SendDone done) {
  inner_->send(to, header, data, [this, to, bytes = data.size(), done = std::move(done)](Status status) mutable {
    std::int64_t latency_ns = 0;
    const std::int64_t due_ns = status.ok() ? left_ns(out_, to, bytes, latency_ns) : alarm_->clock().now_ns();
    alarm_->at(due_ns, [done = std::move(done), status = std::move(status)] {
      if (done) done(status);
    });
  });
}

void ThrottledTransport::recv(Rank from, Key key, std::span<std::byte> into, RecvDone done) {
  inner_->recv(from, key, into, [this, from, done = std::move(done)](Status status, const Header& header) mutable {
    std::int64_t latency_ns = 0;
    std::int64_t due_ns = alarm_->clock().now_ns();
    if (status.ok()) due_ns = left_ns(in_, from, header.bytes, latency_ns) + latency_ns;
    alarm_->at(due_ns, [done = std::move(done), status = std::move(status), header] {
      if (done) done(status, header);
    });
  });
}

void ThrottledTransport::on_peer_down(std::function<void(Rank, Status)> f) {
  inner_->on_peer_down([this, f = std::move(f)](Rank peer, Status why) {
    if (f) alarm_->at(alarm_->clock().now_ns(), [f, peer, why = std::move(why)] { f(peer, why); });
  });
}

void ThrottledTransport::shutdown() {
  inner_->shutdown();  // no new callback comes
  alarm_->quiesce();   // delayed callbacks are forgotten
}

void ThrottledTransport::abort() {
  inner_->abort();
  alarm_->quiesce();
}

}  // namespace troupe::comm
