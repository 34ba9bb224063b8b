#include "runtime/elastic/stragglers.h"

#include <algorithm>
#include <optional>

namespace troupe::runtime {

namespace {

/// The lower one of two middle values; nullopt: there are none.
std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void push(std::deque<double>& window, double value) {
  window.push_back(value);
  if (std::ssize(window) > Stragglers::window) window.pop_front();
}

}  // namespace

Stragglers::Stragglers(const Plan& plan, std::set<Rank> slow) : slow_(std::move(slow)) {
  for (Rank r = 0; r < plan.workers(); ++r) {
    Place place;
    place.stage = plan.stage_of(r);
    const auto owners = plan.owners_of(plan.step_program, place.stage);
    place.microbatches = std::max(1, owners.acts(Rate::microbatch, plan.dp_index(r)));
    places_.push_back(std::move(place));
  }
}

double Stragglers::now(const Place& place) const {
  return median({place.recent.begin(), place.recent.end()}).value_or(0);
}

double Stragglers::times(Rank rank) const {
  const Place& place = places_[static_cast<std::size_t>(rank)];
  if (place.first <= 0) return 0;
  std::vector<double> peers, growth;
  for (const Place& other : places_) {
    if (&other == &place || other.first <= 0) continue;
    if (other.stage == place.stage) peers.push_back(now(other));
    growth.push_back(now(other) / other.first);
  }
  double times = 0;
  if (const auto p = median(peers); p && *p > 0) times = now(place) / *p;
  // Others that were slow at first, and are slow no more, make none slow.
  if (const auto g = median(growth)) times = std::max(times, now(place) / place.first / std::max(1.0, *g));
  return times;
}

std::vector<Stragglers::Change> Stragglers::voted(Rank rank, std::int64_t busy_ns, std::int64_t now_ns) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  if (++place.votes > cold) {
    push(place.recent, static_cast<double>(busy_ns) / place.microbatches);
    if (place.first <= 0 && std::ssize(place.recent) == window) place.first = now(place);
  }
  if (std::any_of(places_.begin(), places_.end(), [&](const Place& p) { return p.votes <= steps_; })) return {};
  ++steps_;
  if (last_ns_ > 0) push(step_ns_, static_cast<double>(now_ns - last_ns_));
  last_ns_ = now_ns;
  std::vector<Change> changes;
  for (Rank r = 0; r < static_cast<Rank>(places_.size()); ++r) {
    Place& p = places_[static_cast<std::size_t>(r)];
    const double times = this->times(r);
    if (times <= 0) continue;
    const double lost_ns = now(p) * p.microbatches * (1 - 1 / times);
    const bool was = slow_.count(r) > 0;
    const bool is = times >= named_at && lost_ns >= 0.1 * median({step_ns_.begin(), step_ns_.end()}).value_or(0);
    if (was ? times >= over_at : !is) {
      p.since_ns = -1;
      continue;
    }
    if (p.since_ns < 0) p.since_ns = now_ns;
    if (now_ns - p.since_ns < named_after_ns) continue;
    p.since_ns = -1;
    if (was) slow_.erase(r);
    else slow_.insert(r);
    changes.push_back({r, times, was});
  }
  return changes;
}

}  // namespace troupe::runtime
