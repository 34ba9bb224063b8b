// LinkWatch: whether messages pass between a place and its peers. Every two of them send each other pings, messages of
// no bytes like any other, so what stops tensors stops pings: a cut network, a progress thread that hangs. The control
// links do not tell: a place may reach the job's process and not its peer (as in SWIM, 2002, whose members are asked of
// each other, not only the centre of each member).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/transport.h"
#include "devices/base/clock.h"

namespace troupe::comm {

/// Both ends of a link must have a watch, of the same generation: a ping is done when the other end has received it.
class LinkWatch {
 public:
  /// Listens to `peers`, none of which is the own rank. `clock` and `transport` outlive the calls of this object, and
  /// the transport may outlive the object. `job`, `generation`: the transport's.
  LinkWatch(Transport& transport, const Clock& clock, std::vector<Rank> peers, std::uint64_t job,
            std::uint32_t generation);
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

  /// Pings each peer to which the last ping has come through. Called every `beat_ns`, by one thread. Where the last
  /// call was more than two beats ago, this process was stopped, and no peer counts as unheard for that time.
  void beat(std::int64_t beat_ns);
  /// Peers of which no ping has come for `limit_ns` or longer, or which have not received one for as long, in ascending
  /// order: so both ends of a way that is cut in one direction say so.
  std::vector<Rank> unheard(std::int64_t limit_ns) const;

 private:
  struct Links;
  const std::shared_ptr<Links> links_;  // shared with the transport's callbacks
};

}  // namespace troupe::comm
