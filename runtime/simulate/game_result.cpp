// The result of a game: the places that did not finish, and why; makespan, bubble, stash.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/simulate/game.h"

namespace troupe::runtime {

Status Game::check_finished() {
  if (const auto missing = decisions_->first_missing()) {
    // One place of each stage first: the other places of a stage mostly wait for the same.
    std::vector<const Place*> places, others;
    std::set<std::int32_t> stages;
    for (const auto& place : places_)
      (stages.insert(place->local.stage).second ? places : others).push_back(place.get());
    places.insert(places.end(), others.begin(), others.end());
    std::string waits;
    int lines = 0;
    for (const Place* place : places)
      for (const auto& a : place->actors) {
        const auto& ports = a->core_.ports();
        // A gather may have no token, no lack of slots and no act under way: it waits for the parameters.
        if (lines < 160 && (!ports.missing_credits().empty() || !a->core_.idle() || has_token(ports) ||
                            a->plan_.rate == Rate::round || waits_for_first_version(*place, *a))) {
          waits += fmt::format("\n  rank {}: {}", place->local.rank, a->core_.explain());
          ++lines;
        }
      }
    const auto& [step, place] = *missing;
    return invalid(fmt::format("deadlock: program '{}' does not finish step {} on rank {}; waiting:{}",
                               plan_.programs[step.program].name, step.step, places_[place]->local.rank, waits));
  }
  for (const auto& place : places_)
    for (const auto& a : place->actors)
      for (std::size_t i = 0; i < a->core_.ports().in_specs().size(); ++i)
        // A buffer that is free at the end was free at the beginning.
        if (a->core_.ports().queued(static_cast<int>(i)) > (a->core_.ports().in_specs()[i].any_step ? 1u : 0u))
          return invalid(
              fmt::format("imbalance: channel '{}' still holds tokens for '{}' on rank {} when every step is done",
                          a->core_.ports().in_specs()[i].name, a->core_.spec().name, place->local.rank));
  return {};
}

bool Game::waits_for_first_version(const Place& place, const GameActor& a) const {
  const actors::Ports& ports = a.core_.ports();
  if (ports.acts() > 0 || !plan_.is_step_program(a.plan_.program)) return false;
  const PlanRole& role = plan_.roles[static_cast<std::size_t>(place.local.stage)];
  for (std::size_t i = 0; i < a.plan_.in.size(); ++i)
    if (role.channels[static_cast<std::size_t>(a.plan_.in[i])].kind == PlanChannel::Kind::parameter &&
        ports.queued(static_cast<int>(i)) == 0)
      return true;
  return false;
}

bool Game::has_token(const actors::Ports& ports) {
  for (std::size_t i = 0; i < ports.in_specs().size(); ++i)
    if (ports.queued(static_cast<int>(i)) > 0) return true;
  return false;
}

double Game::busiest_s() const {
  std::int64_t most_ns = 0;
  for (const auto& place : places_) {
    std::vector<std::int64_t> busy_ns(place->links->size());
    for (const auto& a : place->actors) {
      if (!a->meets() || !plan_.is_step_program(a->plan_.program)) continue;  // other programs are no part of a step
      const auto& routes = a->local_.route_of;
      // An actor whose input is a message begins acts of the step behind the last one, too.
      const auto of_step = std::max<std::int64_t>(1, std::ssize(a->local_.spec.microbatches));
      const auto acts = std::min(
          static_cast<std::int64_t>(a->core_.ports().acts()) + (a->moves() ? left_out_ * options_.steps : 0),
          options_.steps * of_step);
      for (std::int64_t k = 0; k < std::ssize(routes); ++k) {
        const std::int64_t times = (acts + std::ssize(routes) - 1 - k) / std::ssize(routes);
        for (const GameMessage& m : a->messages_[routes[k]]) {
          busy_ns[m.interface] += times * m.interface_ns;
          busy_ns[m.link] += times * m.link_ns;
        }
      }
    }
    for (const std::int64_t ns : busy_ns) most_ns = std::max(most_ns, ns);
  }
  return static_cast<double>(most_ns) * 1e-9;
}

void Game::measure() {
  std::sort(acts_.begin(), acts_.end(), [](const PlayedAct& a, const PlayedAct& b) {
    return std::tie(a.begin_ns, a.end_ns, a.rank, a.step, a.microbatch, a.actor) <
           std::tie(b.begin_ns, b.end_ns, b.rank, b.step, b.microbatch, b.actor);
  });
  // A shortened step is played with the microbatches of each place numbered from 0.
  const auto number = [&](const PlayedAct& a) {
    if (!shortened() || !plan_.is_step_program(a.actor->program) || a.microbatch < 0) return a.microbatch;
    return plan_.owners_of(plan_.step_program(), plan_.stage_of(a.rank))
        .microbatch_at(plan_.dp_index(a.rank), a.microbatch);
  };
  result_.acts.reserve(acts_.size());
  for (const auto& a : acts_)
    result_.acts.push_back({a.rank, a.actor->name, a.actor->pass, a.actor->virtual_stage, a.shared, a.actor->program,
                            a.step, number(a), static_cast<double>(a.begin_ns) * 1e-9,
                            static_cast<double>(a.end_ns) * 1e-9});
  double first = 1e300, last = 0, busy = 0;
  std::map<Rank, double> per_place;
  std::map<Rank, std::array<double, 3>> per_pass;
  // Program, virtual stage, microbatch -> forward begins, backward ends.
  using Held = std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::pair<double, double>>;
  std::map<Rank, Held> held;
  for (const auto& a : result_.acts) {
    if (!plan_.is_step_program(a.program) || a.step != 0 || a.microbatch < 0) continue;
    first = std::min(first, a.begin_s);
    last = std::max(last, a.end_s);
    busy += a.end_s - a.begin_s;
    per_place[a.rank] += a.end_s - a.begin_s;
    per_pass[a.rank][static_cast<std::size_t>(a.pass)] += a.end_s - a.begin_s;
    if (a.shared) continue;
    auto [it, fresh] = held[a.rank].try_emplace({a.program, a.virtual_stage, a.microbatch},
                                                std::pair(a.begin_s, a.end_s));
    it->second.second = std::max(it->second.second, a.end_s);
  }
  if (last > first) {
    result_.makespan_s = last - first;
    result_.bubble = 1 - busy / (result_.makespan_s * static_cast<double>(places_.size()));
  }
  for (const auto& [rank, s] : per_place)
    if (s > result_.compute_s) {
      const auto count = static_cast<double>(
          plan_.owners_of(plan_.step_program(), plan_.stage_of(rank)).acts(Rate::microbatch, plan_.dp_index(rank)));
      const auto& [f, b, w] = per_pass[rank];
      result_.compute_s = s;
      if (!plan_.has_one_step_program()) continue;  // schedules are published for one
      const double waits = published_bubble_s(plan_.pipeline, plan_.stages, f / count, b / count, w / count);
      result_.published_bubble = waits / (s + waits);
    }
  result_.messages_s = busiest_s() / static_cast<double>(std::max<std::int64_t>(1, options_.steps));
  if (commits_ns_.size() >= 2)
    result_.step_s = static_cast<double>(commits_ns_.back() - commits_ns_[commits_ns_.size() - 2]) * 1e-9;
  else result_.step_s = static_cast<double>(end_ns_) * 1e-9;
  result_.peak_stash.assign(plan_.stages, 0);
  for (const auto& [rank, microbatches] : held) {
    std::vector<double> begins, ends;
    for (const auto& [m, interval] : microbatches) begins.push_back(interval.first), ends.push_back(interval.second);
    std::sort(begins.begin(), begins.end());
    std::sort(ends.begin(), ends.end());
    auto& peak = result_.peak_stash[plan_.stage_of(rank)];
    for (const double s : begins) {  // alive: those that have begun, without those that have ended
      const auto before = [s](const std::vector<double>& times) {
        return std::upper_bound(times.begin(), times.end(), s) - times.begin();
      };
      peak = std::max(peak, static_cast<std::int32_t>(before(begins) - before(ends)));
    }
  }
}

}  // namespace troupe::runtime
