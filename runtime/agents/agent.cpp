#include "runtime/agents/agent.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "devices/base/overloaded.h"
#include "runtime/agents/launched_processes.h"
#include "runtime/plan/plan_io.h"
#include "runtime/worker/kept_state.h"

namespace troupe::runtime {

namespace {

std::string name_of(PlaceId place) { return fmt::format("worker {}", static_cast<std::int32_t>(place)); }

}  // namespace

Agent::MakeProcesses Agent::launched() {
  return [](ProcessObserver& observer) { return std::make_unique<LaunchedProcesses>(observer); };
}

Agent::Agent(std::function<void(FromAgent)> tell, const MakeProcesses& make)
    : tell_(std::move(tell)), processes_(make(*this)) {}

bool Agent::has(PlaceId place) {
  if (places_.count(place) > 0) return true;
  tell_(AgentFailed{Status(Code::internal, "the job names " + name_of(place) + ", which is not on this machine")});
  return false;
}

void Agent::take(const ToAgent& order) {
  std::visit(Overloaded{
                 [](const Welcome&) {},  // the process of the agent takes these
                 [](const Refused&) {},
                 [](const Beat&) {},
                 [](const Answer&) {},
                 [this](const Remember& o) {
                   states_.emplace_back(o.version, o.state);
                   if (states_.size() > states_kept) states_.pop_front();
                 },
                 [this](const Finish& o) { tell_(Finished{finish(o.grace_ms, o.killed_ms)}); },
                 [this](const StartPlace& o) { start(o); },
                 [this](const TellPlan& o) { tell_plan(o); },
                 [this](const RestartPlace& o) { restart(o); },
                 [this](const ToPlaces& o) {
                   of_ = o.of;
                   for (const PlaceId place : o.places)
                     if (has(place)) post(place, o.of, o.message);
                 },
                 [this](const KillPlace& o) {
                   if (has(o.place)) processes_->kill(o.place);
                 },
                 [this](const DismissPlace& o) {
                   if (places_.count(o.place) == 0) return;  // it could not be started, as the job is about to hear
                   log_debug(name_of(o.place) + " has no part in the job any more, and ends");
                   processes_->dismiss(o.place);
                 },
                 [this](const SettledPlaces& o) {
                   for (const auto& [id, place] : places_)
                     processes_->forget_memory(id, std::find(o.used.begin(), o.used.end(), id) != o.used.end());
                 },
             },
             order);
}

void Agent::start(const StartPlace& order) {
  const auto started = processes_->start(order.place, order.prefix, order.keeps_memory);
  if (!started.ok()) return tell_(PlaceEnded{order.place, {ProcessEnd::Kind::refused, started.status()}});
  places_[order.place] = {};
  tell_(PlaceStarted{order.place, *started, processes_->memory_name(order.place)});
}

void Agent::tell_plan(const TellPlan& order) {
  if (of_.job != order.of.job) states_.clear();
  of_ = order.of;
  for (const auto& [id, hello] : order.hellos) {
    if (!has(id)) return;
    Place& place = places_.at(id);
    place.plan = order.plan;
    place.run = order.run;
    place.widths = order.widths;
    place.hello = hello;
    if (order.renews_memory) {
      if (const Status s = processes_->renew_memory(id); !s.ok()) return tell_(AgentFailed{s});
      if (order.forgets_memory) processes_->forget_memory(id, true);
      place.hello.memory = processes_->memory_name(id);
      tell_(MemoryRenewed{id, place.hello.memory});
    }
  }
  for (const auto& [id, hello] : order.hellos) send_plan(id, order.of);
}

void Agent::send_plan(PlaceId id, JobGeneration of) {
  const Place& place = places_.at(id);
  post(id, of, place.plan);
  post(id, of, std::make_shared<const std::vector<std::byte>>(encode(ToWorker(place.hello))));
}

void Agent::restart(const RestartPlace& order) {
  if (!has(order.place)) return;
  of_ = order.of;
  Place& place = places_.at(order.place);
  if (order.afresh) place.garbled = false;
  const auto started = processes_->restart(order.place, order.afresh);
  if (!started.ok()) return tell_(AgentFailed{started.status().in(name_of(order.place) + " cannot be started again")});
  tell_(PlaceStarted{order.place, *started, processes_->memory_name(order.place)});
  place.hello.injections.clear();  // they have hit the place's first process
  place.hello.memory.clear();      // it has been given it
  send_plan(order.place, order.of);
}

void Agent::post(PlaceId to, JobGeneration of, SharedBytes message) {
  if (const Status s = processes_->post(to, of, std::move(message)); !s.ok()) tell_(AgentFailed{s.in(name_of(to))});
}

void Agent::garbled(PlaceId from, const Status& why) {
  if (const auto place = places_.find(from); place != places_.end()) place->second.garbled = true;
  tell_(Garbled{from, why});
}

void Agent::logged(PlaceId from, const std::string& line) {
  if (places_.count(from) > 0) tell_(PlaceLogged{from, line});  // else of a job before
}

void Agent::ended(PlaceId place, ProcessEnd end) {
  end.left = left_by(place);
  tell_(PlaceEnded{place, std::move(end)});
}

WholeVersions Agent::left_by(PlaceId id) {
  std::vector<std::int64_t> none;
  const auto place = places_.find(id);
  if (place == places_.end() || !place->second.plan) return none;
  const auto told = decode_to_worker(*place->second.plan);
  const auto plan = told.ok() ? read_plan(std::get<PlanBytes>(*told).bytes) : Expected<Plan>(told.status());
  ASSERT(plan.ok(), plan.status().message());
  const auto local = local_plan(*plan, place->second.hello.rank);
  ASSERT(local.ok(), local.status().message());
  WholeVersions left = none;
  processes_->look_at_memory(id, [&](std::span<std::byte> memory) {
    if (static_cast<std::int64_t>(memory.size()) >= local->kept_bytes())
      left = whole_versions(*plan, *local, memory.data());
  });
  return left;
}

Kept Agent::keep(int grace_ms, int killed_ms) {
  const Status ended = processes_->end_all(grace_ms, killed_ms);
  if (!ended.ok()) log_warn(ended.message());
  Kept kept{of_, {}, {}, {}, {states_.begin(), states_.end()}};
  const Place* first = nullptr;  // all have the plan that it has, or take no part
  for (auto& [id, place] : places_) {
    const auto how = processes_->how_it_ended(id);
    const bool usable = how && *how != ProcessEnd::Kind::suspect && !processes_->memory_name(id).empty() &&
                        place.plan && !place.garbled && (!first || *first->plan == *place.plan);
    if (!usable) {
      processes_->forget_memory(id, false);
      continue;
    }
    processes_->forget_memory(id, true);  // what it had before that holds nothing of the plan that is kept
    first = &place;
    kept.places.push_back({id, left_by(id), place.hello.rank});
  }
  if (first) kept.plan = first->run, kept.widths = first->widths;
  return kept;
}

void Agent::forget_kept(std::span<const PlaceId> but_for) {
  std::erase_if(places_, [&](const auto& p) {
    const bool forgets = std::find(but_for.begin(), but_for.end(), p.first) == but_for.end();
    if (forgets) processes_->forget_memory(p.first, false);
    return forgets;
  });
}

}  // namespace troupe::runtime
