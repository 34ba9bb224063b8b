#include "comm/link_watch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

namespace troupe::comm {

namespace {

/// No plan has as many boxings.
constexpr std::uint32_t ping_channel = std::numeric_limits<std::uint32_t>::max();

}  // namespace

struct LinkWatch::Links : std::enable_shared_from_this<Links> {
  struct Link {
    std::int64_t heard_ns = 0, sent_ns = 0;  // the last pings
    std::uint32_t received = 0, sent = 0;    // pings
    bool under_way = false;                  // the last ping that was sent
  };

  Links(Transport& transport, const Clock& clock, std::uint64_t job, std::uint32_t generation)
      : transport(transport), clock(clock), job(job), generation(generation) {}

  /// A transport may call back at once: the mutex is not held.
  void listen(Rank from) {
    Key key{ping_channel, 0, 0};
    {
      std::lock_guard lock(mutex);
      key.sequence = links.at(from).received;
    }
    transport.recv(from, key, {}, [self = shared_from_this(), from](const Status& s, const Header&) {
      if (!s.ok()) return;  // the peer is down: the transport has told whom it concerns
      {
        std::lock_guard lock(self->mutex);
        Link& heard = self->links.at(from);
        heard.heard_ns = self->clock.now_ns();
        ++heard.received;
      }
      self->listen(from);
    });
  }

  void ping(Rank to) {
    Header header;
    header.job = job;
    header.generation = generation;
    header.channel = ping_channel;
    {
      std::lock_guard lock(mutex);
      Link& link = links.at(to);
      if (std::exchange(link.under_way, true)) return;
      header.sequence = link.sent++;
      link.sent_ns = clock.now_ns();
    }
    transport.send(to, header, {}, [self = shared_from_this(), to](const Status& s) {
      std::lock_guard lock(self->mutex);
      self->links.at(to).under_way = !s.ok();  // a peer that is down gets no more
    });
  }

  Transport& transport;
  const Clock& clock;
  const std::uint64_t job;
  const std::uint32_t generation;
  std::mutex mutex;
  std::map<Rank, Link> links;  // none is added or removed once the first is listened to
  std::int64_t beat_ns = -1;   // when the last beat was
};

LinkWatch::LinkWatch(Transport& transport, const Clock& clock, std::vector<Rank> peers, std::uint64_t job,
                     std::uint32_t generation)
    : links_(std::make_shared<Links>(transport, clock, job, generation)) {
  for (const Rank peer : peers) links_->links[peer].heard_ns = clock.now_ns();
  for (const Rank peer : peers) links_->listen(peer);
}

LinkWatch::~LinkWatch() = default;

void LinkWatch::beat(std::int64_t beat_ns) {
  const std::int64_t now_ns = links_->clock.now_ns();
  const std::int64_t last_ns = std::exchange(links_->beat_ns, now_ns);
  std::vector<Rank> peers;
  {
    std::lock_guard lock(links_->mutex);
    for (auto& [peer, link] : links_->links) {
      peers.push_back(peer);
      if (last_ns >= 0 && now_ns - last_ns > 2 * beat_ns) link.heard_ns = link.sent_ns = now_ns;
    }
  }
  for (const Rank peer : peers) links_->ping(peer);
}

std::vector<Rank> LinkWatch::unheard(std::int64_t limit_ns) const {
  const std::int64_t now_ns = links_->clock.now_ns();
  std::vector<Rank> peers;
  std::lock_guard lock(links_->mutex);
  for (const auto& [peer, link] : links_->links)
    if (now_ns - link.heard_ns >= limit_ns || (link.under_way && now_ns - link.sent_ns >= limit_ns))
      peers.push_back(peer);
  return peers;
}

}  // namespace troupe::comm
