#include "runtime/elastic/stragglers.h"

#include <algorithm>
#include <map>
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

/// The same, of sorted values without one of them.
std::optional<double> median_without(const std::vector<double>& sorted, double one) {
  if (sorted.size() < 2) return std::nullopt;
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), one) - sorted.begin();
  const auto middle = (std::ssize(sorted) - 2) / 2;
  return sorted[static_cast<std::size_t>(middle < at ? middle : middle + 1)];
}

/// Of a step at a place. Where several programs train: as many of the one that takes longest there as take as long as
/// those of all, as the plan predicts.
double microbatches_of(const Plan& plan, Rank rank) {
  const std::int32_t stage = plan.stage_of(rank);
  std::map<std::int32_t, double> act_s;  // by program
  for (const PlanActor& a : plan.roles[static_cast<std::size_t>(stage)].actors)
    if (a.kind == PlanActor::Kind::segment && a.rate == Rate::microbatch && plan.is_step_program(a.program))
      act_s[a.program] += a.cost_s;
  double longest_s = 0, all = 0;
  for (const auto& [program, s] : act_s) longest_s = std::max(longest_s, s);
  for (const auto& [program, s] : act_s)
    all += plan.owners_of(program, stage).acts(Rate::microbatch, plan.dp_index(rank)) *
           (longest_s > 0 ? s / longest_s : 1);
  return all;
}

void push(std::deque<double>& window, double value) {
  window.push_back(value);
  if (std::ssize(window) > Stragglers::window) window.pop_front();
}

}  // namespace

Stragglers::Stragglers(const Plan& plan) {
  for (Rank r = 0; r < plan.workers(); ++r) {
    Place place;
    place.stage = plan.stage_of(r);
    place.microbatches = std::max(1.0, microbatches_of(plan, r));
    places_.push_back(std::move(place));
  }
}

void Stragglers::begin_generation() {
  for (Place& p : places_) {
    p.votes = 0;
    p.recent.clear();
    p.since_ns = -1;
    p.times = 0;
  }
  votes_ = last_ns_ = looked_ns_ = 0;
  step_ns_.clear();
}

bool Stragglers::forget(Rank rank) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  place.first = place.times = 0;
  return slow_.erase(rank) > 0;
}

void Stragglers::look() {
  std::map<std::int32_t, std::vector<double>> stages;
  std::vector<double> growth;
  for (Place& p : places_) {
    p.now = p.first > 0 && std::ssize(p.recent) == window ? median({p.recent.begin(), p.recent.end()}).value_or(0) : 0;
    if (p.now <= 0) continue;
    stages[p.stage].push_back(p.now);
    growth.push_back(p.now / p.first);
  }
  for (auto& [stage, all] : stages) std::sort(all.begin(), all.end());
  std::sort(growth.begin(), growth.end());
  for (Place& p : places_) {
    p.times = 0;
    if (p.now <= 0) continue;
    if (const auto peers = median_without(stages[p.stage], p.now); peers && *peers > 0) p.times = p.now / *peers;
    // Others that were slow at first, and are slow no more, make none slow.
    const double grown = p.now / p.first;
    if (const auto g = median_without(growth, grown)) p.times = std::max(p.times, grown / std::max(1.0, *g));
  }
}

std::vector<Stragglers::Change> Stragglers::voted(Rank rank, std::int64_t busy_ns, std::int64_t now_ns) {
  Place& place = places_[static_cast<std::size_t>(rank)];
  if (++place.votes > cold) {
    push(place.recent, static_cast<double>(busy_ns) / place.microbatches);
    if (place.first <= 0 && std::ssize(place.recent) == window)
      place.first = *median({place.recent.begin(), place.recent.end()});
  }
  if (++votes_ % std::ssize(places_) != 0) return {};  // a step has the vote of each before the next one has any
  if (last_ns_ > 0) push(step_ns_, static_cast<double>(now_ns - last_ns_));
  last_ns_ = now_ns;
  if (now_ns - looked_ns_ < look_ns) return {};
  looked_ns_ = now_ns;
  look();
  const double step_ns = median({step_ns_.begin(), step_ns_.end()}).value_or(0);
  std::vector<Change> changes;
  for (Rank r = 0; r < static_cast<Rank>(places_.size()); ++r) {
    Place& p = places_[static_cast<std::size_t>(r)];
    if (p.times <= 0) continue;
    const double lost_ns = p.now * p.microbatches * (1 - 1 / p.times);
    const bool was = slow_.count(r) > 0, is = p.times >= named_at && lost_ns >= 0.1 * step_ns;
    if (was ? p.times >= over_at : !is) {
      p.since_ns = -1;
      continue;
    }
    if (p.since_ns < 0) p.since_ns = now_ns;
    if (now_ns - p.since_ns < named_after_ns) continue;
    p.since_ns = -1;
    if (was) slow_.erase(r);
    else slow_.insert(r);
    changes.push_back({r, p.times, was});
  }
  return changes;
}

}  // namespace troupe::runtime
