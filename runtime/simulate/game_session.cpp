// The run's decisions (runtime/session/decisions.h) in a game: carried out with tokens, as a conductor does with the
// session's messages; what the places say in return.
#include <algorithm>

#include "runtime/simulate/game.h"

namespace troupe::runtime {

void Game::make_decisions() {
  const auto of_ranks = votes(plan_);
  std::vector<std::vector<bool>> of_places(of_ranks.size());
  for (std::size_t program = 0; program < of_ranks.size(); ++program)
    for (const auto& place : places_) of_places[program].push_back(of_ranks[program][place->local.rank]);
  DecisionSink& sink = *this;  // a private base
  decisions_.emplace(plan_, 0, options_.steps, std::move(of_places), sink);
}

Expected<std::vector<std::int32_t>> Game::readers(std::int64_t version, bool last) {
  std::vector<std::int32_t> out;
  if (!options_.every_program) return out;
  for (std::int32_t p = 0; p < std::ssize(plan_.programs); ++p) {
    const bool due = plan_.programs[p].name == "digest" ? plan_.trains() && last : version == 0;
    if (due && !plan_.is_step_program(p)) out.push_back(p);
  }
  return out;
}

void Game::push(std::int32_t p, std::int32_t channel, const Token& token) {
  places_[p]->controls.at(channel).push(token, {}, deliver(p, channel));
}

std::function<void(const actors::Reader&, const Token&)> Game::deliver(std::int32_t p, std::int32_t channel) {
  return [this, p, channel](const actors::Reader& r, const Token& t) {
    const Place& place = *places_[p];
    post({.kind = Mail::Kind::token, .to = place.actors[r.actor].get(), .port = r.port, .token = t});
    const PlanChannel& c = plan_.roles[place.local.stage].channels[place.local.channels[channel].channel];
    if (c.kind == PlanChannel::Kind::feed && place.controls.at(channel).first_reader(r))
      tell({0, {c.program, t.step}, t.microbatch, p, &c, nullptr});
  };
}

Status Game::begin() {
  TROUPE_ASSIGN(first_readers_, decisions_->begin());
  for (const auto& place : places_)
    for (const auto& a : place->actors) post({.kind = Mail::Kind::begin, .to = a.get()});
  return decisions_->begin_due();
}

void Game::go(ProgramStep step) {
  Token t;
  t.step = step.step;
  for (std::int32_t p = 0; p < std::ssize(places_); ++p) {
    const LocalPlan& local = places_[p]->local;
    for (std::int32_t c = 0; c < std::ssize(local.channels); ++c) {
      const PlanChannel& channel = plan_.roles[local.stage].channels[local.channels[c].channel];
      if (channel.kind == PlanChannel::Kind::go && plan_.begun_as(channel.program) == step.program) push(p, c, t);
    }
  }
}

Expected<std::vector<std::int32_t>> Game::feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                               const actors::Report*) {
  Token t;
  t.step = step.step;
  t.microbatch = microbatch;
  const auto owner = plan_.owners_of(feed.channel->program, feed.stage).owner(microbatch);
  std::vector<std::int32_t> takers;
  for (std::int32_t p = 0; p < std::ssize(places_); ++p) {
    const LocalPlan& local = places_[p]->local;
    if (local.stage != feed.stage || local.dp_index != owner) continue;
    takers.push_back(p);
    for (std::int32_t c = 0; c < std::ssize(local.channels); ++c)
      if (&plan_.roles[feed.stage].channels[local.channels[c].channel] == feed.channel) push(p, c, t);
  }
  return takers;
}

void Game::reported(const GameActor& actor, const GameActor::ActAt& act) {
  if (!places_[actor.place_]->local.leads) return;
  for (const auto& [program, name] : awaited_)
    if (program == actor.plan_.program && actor.plan_.reports(name))
      tell({0, {program, act.step}, act.microbatch, actor.place_, nullptr, &name});
}

void Game::tell(Hears hears) {
  hears.due_ns = loop_.now_ns() + to_ns(options_.control_s);
  const auto it = told_.insert(told_.end(), hears);
  loop_.at(hears.due_ns, [this, it] {
    const Hears h = *it;
    told_.erase(it);
    if (Status s = hear(h); failure_.ok()) failure_ = std::move(s);
  });
}

Status Game::hear(const Hears& h) {
  if (h.taken) return decisions_->taken(h.step, h.voter, h.taken->name, h.microbatch);
  if (h.report) {
    actors::Report report;
    report.name = *h.report;
    report.microbatch = h.microbatch;
    return decisions_->reported(h.step, report);
  }
  TROUPE_TRY(decisions_->check_vote(h.step, h.voter));
  if (!decisions_->vote(h.step, h.voter)) return {};
  const auto due = decisions_->due_commit();
  return due ? commit(*due) : Status{};
}

void Game::step_closed(std::int32_t p, ProgramStep closed) {
  const ProgramStep step{plan_.begun_as(closed.program), closed.step};
  auto& count = closing_[{step, p}];
  ++closings_;
  if (++count < places_[p]->local.closers[step.program]) return;
  closing_.erase({step, p});
  tell({0, step, 0, p, nullptr, nullptr});
}

Status Game::commit(std::int64_t step) {
  commits_ns_.push_back(loop_.now_ns());
  Token t;
  t.step = step;
  TROUPE_ASSIGN(t.readers, decisions_->commit());
  for (std::int32_t p = 0; p < std::ssize(places_); ++p) {
    const LocalPlan& local = places_[p]->local;
    for (std::int32_t c = 0; c < std::ssize(local.channels); ++c)
      if (plan_.roles[local.stage].channels[local.channels[c].channel].kind == PlanChannel::Kind::commit) push(p, c, t);
  }
  return decisions_->begin_due();
}

}  // namespace troupe::runtime
