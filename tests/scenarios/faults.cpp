#include "tests/scenarios/faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"
#include "devices/base/philox.h"

namespace troupe::scenarios {

namespace {

/// Events that a recovery takes, or more: every other fault hits within so many after the fault that it follows.
constexpr std::int64_t recovery_events = 200;
constexpr std::int64_t disk_operations_max = 40, disk_full_events_max = 1500;

FaultKind draw_kind(const Scenario& s, std::uint64_t seed, std::uint64_t what) {
  std::int64_t sum = 0;
  for (const std::int64_t w : s.weights) sum += w;
  std::int64_t at = draw_below(seed, what, sum);
  std::size_t kind = 0;
  while (at >= s.weights[kind]) at -= s.weights[kind++];
  return static_cast<FaultKind>(kind);
}

Fault draw_fault(const Scenario& s, std::uint64_t seed, std::uint64_t what) {
  Fault f;
  f.kind = draw_kind(s, seed, what);
  f.place =
      static_cast<Rank>(draw_below(seed, what + 1, f.kind == FaultKind::change ? std::ssize(s.changes) : s.places()));
  if (is_of_two(f.kind))
    f.peer = static_cast<Rank>((f.place + 1 + draw_below(seed, what + 2, s.places() - 1)) % s.places());
  f.operations = draw_below(seed, what + 3,
                            f.kind == FaultKind::disk_full ? disk_full_events_max : disk_operations_max);
  return f;
}

/// Whether both may take the same place: one that is of two places takes one of them.
bool meets(const Fault& f, const Fault& g) {
  const auto is_of = [](Rank place, const Fault& h) {
    return place == h.place || (is_of_two(h.kind) && place == h.peer);
  };
  return is_of(f.place, g) || (is_of_two(f.kind) && is_of(f.peer, g));
}

runtime::SimFault::Kind sim_kind(FaultKind kind) {
  using Kind = runtime::SimFault::Kind;
  switch (kind) {
    case FaultKind::kill: return Kind::kill;
    case FaultKind::crash: return Kind::crash;
    case FaultKind::hang: return Kind::hang;
    case FaultKind::cut_off: return Kind::cut_off;
    case FaultKind::cut: return Kind::cut;
    case FaultKind::cut_one_way: return Kind::cut_one_way;
    case FaultKind::fails: return Kind::fails;
    case FaultKind::blip: return Kind::blip;
    case FaultKind::pause: return Kind::pause;
    case FaultKind::stale_vote: return Kind::stale_vote;
    case FaultKind::stale_order: return Kind::stale_order;
    case FaultKind::change: return Kind::change;
    case FaultKind::interrupt: return Kind::interrupt;
    case FaultKind::machine:
    case FaultKind::disk_stop:
    case FaultKind::disk_full:
    case FaultKind::disk_error: break;
  }
  ASSERT(false, name_of(kind));
  return Kind::kill;
}

}  // namespace

std::int64_t draw_below(std::uint64_t seed, std::uint64_t what, std::int64_t below) {
  return static_cast<std::int64_t>(philox(philox_key(seed, "scenario"), what, 0)[0]) % below;
}

std::vector<Fault> draw_faults(const Scenario& s, std::uint64_t seed, int start, std::int64_t events) {
  const std::uint64_t own = 100 + 1000 * static_cast<std::uint64_t>(start);
  if (start == 0 && draw_below(seed, own, 16) == 0) return {};
  // A later start has fewer: a job whose machine stops again and again would take the whole run.
  const std::int64_t count = start == 0 ? 1 + draw_below(seed, own + 1, s.faults_most)
                                        : std::min<std::int64_t>(s.faults_most, draw_below(seed, own + 1, 3));
  std::int64_t losses_left = s.replace ? s.faults_most : s.places() - s.tp;
  std::vector<Fault> faults;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    const std::uint64_t what = own + 10 * (i + 1);
    Fault f = draw_fault(s, seed, what);
    const bool soon = i > 0 && draw_below(seed, what + 4, 2) == 0;
    f.at_event = soon ? faults.back().at_event + 1 + draw_below(seed, what + 5, recovery_events)
                      : draw_below(seed, what + 5, std::max<std::int64_t>(events, 1));
    if (takes_place(f.kind) && !s.replace) {  // each place is lost once, and enough are left
      const bool again = std::any_of(faults.begin(), faults.end(),
                                     [&](const Fault& g) { return takes_place(g.kind) && meets(f, g); });
      if (again || losses_left-- <= 0) continue;
    }
    faults.push_back(f);
  }
  std::stable_sort(faults.begin(), faults.end(),
                   [](const Fault& a, const Fault& b) { return a.at_event < b.at_event; });
  return faults;
}

std::vector<Fault> faults_of_job(const std::vector<Fault>& faults) {
  std::vector<Fault> of_job;
  for (const Fault& f : faults)
    if (!is_of_disk(f.kind)) of_job.push_back(f);
  return of_job;
}

std::vector<runtime::SimFault> simulated(const std::vector<Fault>& faults) {
  std::vector<runtime::SimFault> of_job;
  for (const Fault& f : faults) of_job.push_back({f.at_event, sim_kind(f.kind), f.place, f.peer});
  return of_job;
}

std::vector<Fault> faults_of_disk(const std::vector<Fault>& faults) {
  std::vector<Fault> of_disk;
  for (const Fault& f : faults)
    if (is_of_disk(f.kind)) of_disk.push_back(f);
  return of_disk;
}

std::string text(const Fault& f) {
  switch (f.kind) {
    case FaultKind::change: return fmt::format("change {} at event {}", f.place, f.at_event);
    case FaultKind::cut:
    case FaultKind::blip:
      return fmt::format("{} between places {} and {} at event {}", name_of(f.kind), f.place, f.peer, f.at_event);
    case FaultKind::cut_one_way:
      return fmt::format("cut of the way from place {} to {} at event {}", f.place, f.peer, f.at_event);
    case FaultKind::interrupt: return fmt::format("interrupt at event {}", f.at_event);
    case FaultKind::machine: return fmt::format("the machine stops at event {}", f.at_event);
    case FaultKind::disk_stop:
      return fmt::format("the machine stops {} disk operations after event {}", f.operations, f.at_event);
    case FaultKind::disk_full: return fmt::format("disk full at event {}, for {} events", f.at_event, f.operations);
    case FaultKind::disk_error: return fmt::format("disk error {} operations after event {}", f.operations, f.at_event);
    case FaultKind::kill:
    case FaultKind::crash:
    case FaultKind::hang:
    case FaultKind::cut_off:
    case FaultKind::fails:
    case FaultKind::pause:
    case FaultKind::stale_vote:
    case FaultKind::stale_order: break;
  }
  return fmt::format("{} of place {} at event {}", name_of(f.kind), f.place, f.at_event);
}

}  // namespace troupe::scenarios
