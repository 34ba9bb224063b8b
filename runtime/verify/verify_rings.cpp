// Rings: channels that share a buffer follow each other in one cycle, and one token goes round it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/verify/verify_parts.h"

namespace troupe::runtime {

namespace {

class RingCheck {
 public:
  RingCheck(const Plan& plan, std::int32_t stage)
      : plan_(plan), role_(plan.roles[stage]), where_(fmt::format("stage {}: ", stage)) {}

  Status run() {
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> buffers;
    for (std::size_t i = 0; i < role_.channels.size(); ++i) {
      const PlanChannel& c = role_.channels[i];
      if (c.ring < 0) continue;
      TROUPE_TRY(check_member(c));
      buffers[{c.ring, c.buffer}].push_back(static_cast<std::int32_t>(i));
    }
    for (const auto& [key, members] : buffers) TROUPE_TRY(check_buffer(members));
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> landings;
    for (std::size_t i = 0; i < role_.actors.size(); ++i)
      if (const PlanActor& a = role_.actors[i]; a.staging_ring >= 0)
        landings[{a.staging_ring, a.staging_buffer}].push_back(static_cast<std::int32_t>(i));
    for (const auto& [key, members] : landings) TROUPE_TRY(check_staging(members));
    return {};
  }

 private:
  using Kind = PlanChannel::Kind;
  const PlanChannel& channel(std::int32_t id) const { return role_.channels[id]; }
  Status refuse(const PlanChannel& c, const std::string& what) const {
    return invalid(where_ + "channel '" + c.name + "' " + what);
  }

  Status check_member(const PlanChannel& c) const {
    const bool kind = c.kind == Kind::gradient || c.kind == Kind::rounded || c.kind == Kind::gathered;
    if (!kind || c.slots != 1 || c.initial || c.readers.empty())
      return refuse(c, "is part of a ring, and is no gradient or gathered parameter with one slot");
    if (c.buffer_offset < 0 || c.buffer_offset > bytes_max || c.buffer_offset % tensor_alignment != 0)
      return refuse(c, "has no proper place in its buffer");
    return {};
  }

  std::int64_t end(const PlanChannel& c) const { return c.buffer_offset + c.bytes; }
  bool overlap(const PlanChannel& a, const PlanChannel& b) const {
    return a.buffer_offset < end(b) && b.buffer_offset < end(a);
  }

  bool overlap(const std::vector<std::int32_t>& members) const {
    for (auto a : members)
      for (auto b : members)
        if (a < b && overlap(channel(a), channel(b))) return true;
    return false;
  }

  /// The writers that wait until this channel's readers are done. Each reader sends them a turn; all turns have the
  /// same rate, and all or none an initial token.
  struct Turns {
    std::set<std::int32_t> next;  // writers
    bool initial = false;
  };
  Expected<Turns> turns_of(const PlanChannel& c) const {
    Turns out;
    bool first = true;
    for (const auto& r : c.readers) {
      Turns own;
      int found = 0;
      for (auto id : role_.actors[r.actor].out) {
        const PlanChannel& t = channel(id);
        if (t.kind != Kind::turn || t.rate != c.rate || !leads_to_buffer(t, c)) continue;
        own.initial = t.initial;
        for (const auto& w : t.readers) own.next.insert(w.actor);
        ++found;
      }
      if (found != 1 || (!first && (own.next != out.next || own.initial != out.initial)))
        return refuse(c, "shares its memory, and its reader '" + role_.actors[r.actor].name +
                             "' does not pass the turn to the next channel");
      out = own;
      first = false;
    }
    return out;
  }
  /// All that the turn's readers write into this ring is in the same buffer.
  bool leads_to_buffer(const PlanChannel& turn, const PlanChannel& c) const {
    bool some = false;
    for (const auto& w : turn.readers)
      for (auto id : role_.actors[w.actor].out)
        if (channel(id).ring == c.ring) {
          if (channel(id).buffer != c.buffer) return false;
          some = true;
        }
    return some;
  }

  Status check_buffer(const std::vector<std::int32_t>& members) const {
    // Groups the buffer's channels by the writers that their readers pass the turn to: the channels of one station are
    // in use at the same time, so they have to lie side by side.
    struct Station {
      std::set<std::int32_t> writers;
      std::vector<std::int32_t> channels;
    };
    if (!overlap(members)) return {};  // no two channels share memory
    std::map<std::pair<std::set<std::int32_t>, bool>, Station> stations;
    const PlanChannel& any = channel(members.front());
    const std::int32_t program = role_.actors[any.writer].program;
    for (auto id : members) {
      const PlanChannel& c = channel(id);
      if (c.rate != any.rate || role_.actors[c.writer].program != program)
        return refuse(c, "shares its memory with '" + any.name + "', which is of another rate or program");
      TROUPE_ASSIGN(const Turns turns, turns_of(c));
      Station& station = stations[{turns.next, turns.initial}];
      station.writers.insert(c.writer);
      station.channels.push_back(id);
    }
    for (const auto& [turn, station] : stations)
      if (overlap(station.channels))
        return refuse(channel(station.channels.front()), "lies where another channel is at the same time");
    return check_cycle(stations, any);
  }

  /// From one station every other is reached, each once, and one of the turns on the way has a token to begin with.
  template <class Stations>
  Status check_cycle(const Stations& stations, const PlanChannel& any) const {
    auto at = stations.begin();
    int tokens = 0;
    for (std::size_t n = 0; n < stations.size(); ++n) {
      tokens += at->first.second;
      const auto next = std::find_if(stations.begin(), stations.end(),
                                     [&](const auto& s) { return s.second.writers == at->first.first; });
      if (next == stations.end() || (next == stations.begin()) != (n + 1 == stations.size()))
        return refuse(channel(at->second.channels.front()),
                      "does not pass its memory on to another, in one cycle of all that share it");
      at = next;
    }
    if (tokens != 1) return refuse(any, fmt::format("shares its memory in a cycle of {} tokens: it needs one", tokens));
    return {};
  }

  /// Exchanges that land in one buffer pass one token round: each act has the buffer for itself.
  Status check_staging(const std::vector<std::int32_t>& members) const {
    if (members.size() == 1 && role_.actors[members[0]].kind == PlanActor::Kind::exchange) return {};
    const std::set<std::int32_t> all(members.begin(), members.end());
    std::int32_t at = members[0], tokens = 0;
    for (std::size_t n = 0; n < members.size(); ++n) {
      const PlanActor& a = role_.actors[at];
      const PlanChannel* turn = nullptr;
      int found = 0;
      for (auto id : a.out)
        if (const PlanChannel& c = channel(id);
            c.kind == Kind::turn && c.rate == a.rate && c.readers.size() == 1 && all.count(c.readers[0].actor))
          turn = &c, ++found;
      if (a.kind != PlanActor::Kind::exchange || a.rate != role_.actors[members[0]].rate || found != 1)
        return invalid(where_ + "actor '" + a.name +
                       "' shares its staging memory and does not pass the turn to one other of those that do");
      tokens += turn->initial ? 1 : 0;
      at = turn->readers[0].actor;
      if ((at == members[0]) != (n + 1 == members.size()))
        return invalid(where_ + "actor '" + a.name +
                       "' shares its staging memory and is in no one cycle with all others that do");
    }
    if (tokens == 1) return {};
    return invalid(fmt::format("{}actor '{}' shares its staging memory in a cycle of {} tokens: it needs one", where_,
                               role_.actors[members[0]].name, tokens));
  }

  const Plan& plan_;
  const PlanRole& role_;
  const std::string where_;
};

}  // namespace

Status check_rings(const Plan& plan, std::int32_t stage) { return RingCheck(plan, stage).run(); }

}  // namespace troupe::runtime
