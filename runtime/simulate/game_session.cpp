// The run's decisions (runtime/session/decisions.h) in a game: carried out with tokens, as a conductor does with the
// session's messages; what the places say in return.
#include <algorithm>

#include "devices/base/check.h"
#include "runtime/simulate/game.h"

namespace troupe::runtime {

void Game::make_decisions() {
  std::vector<std::vector<bool>> votes(plan_.programs.size());
  for (std::size_t program = 0; program < votes.size(); ++program)
    for (const auto& place : places_) votes[program].push_back(place->local.closers[program] > 0);
  DecisionSink& sink = *this;  // a private base
  decisions_.emplace(plan_, 0, options_.steps, std::move(votes), sink);
}

Expected<std::vector<std::int32_t>> Game::readers(std::int64_t version) {
  std::vector<std::int32_t> out;
  if (!options_.every_program) return out;
  for (std::int32_t p = 0; p < std::ssize(plan_.programs); ++p) {
    const bool due = plan_.programs[p] == "digest" ? plan_.trains && version == options_.steps : version == 0;
    if (due && !plan_.steps(p)) out.push_back(p);
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

void Game::begin() {
  const auto readers = decisions_->begin();
  ASSERT(readers.ok(), readers.status().message());
  first_readers_ = *readers;
  for (const auto& place : places_)
    for (const auto& a : place->actors) post({.kind = Mail::Kind::begin, .to = a.get()});
  failure_ = decisions_->begin_due();
}

void Game::go(ProgramStep step) {
  Token t;
  t.step = step.step;
  for (std::int32_t p = 0; p < std::ssize(places_); ++p) {
    const LocalPlan& local = places_[p]->local;
    for (std::int32_t c = 0; c < std::ssize(local.channels); ++c) {
      const PlanChannel& channel = plan_.roles[local.stage].channels[local.channels[c].channel];
      if (channel.kind == PlanChannel::Kind::go && channel.program == step.program) push(p, c, t);
    }
  }
}

Expected<std::vector<std::int32_t>> Game::feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                               const actors::Report*) {
  Token t;
  t.step = step.step;
  t.microbatch = microbatch;
  const auto owner = plan_.schedule(step.program, feed.stage).owner(microbatch);
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
    Status s;
    if (h.taken) {
      s = decisions_->taken(h.step, h.voter, h.taken->name, h.microbatch);
    } else {
      actors::Report report;
      report.name = *h.report;
      report.microbatch = h.microbatch;
      s = decisions_->reported(h.step, report);
    }
    if (failure_.ok()) failure_ = s;
  });
}

void Game::step_closed(std::int32_t p, ProgramStep step) {
  auto& count = closing_[{step, p}];
  ++closings_;
  if (++count < places_[p]->local.closers[step.program]) return;
  closing_.erase({step, p});
  if (Status s = decisions_->check_vote(step, p); !s.ok()) {
    failure_ = std::move(s);
    return;
  }
  if (!decisions_->vote(step, p) || !plan_.steps(step.program)) return;
  commit_due_ns_ = loop_.now_ns() + to_ns(options_.control_s);
  loop_.at(commit_due_ns_, [this, step] { commit(step.step); });
}

void Game::commit(std::int64_t step) {
  commits_ns_.push_back(loop_.now_ns());
  const auto readers = decisions_->commit();
  ASSERT(readers.ok(), readers.status().message());
  Token t;
  t.step = step;
  t.readers = *readers;
  for (std::int32_t p = 0; p < std::ssize(places_); ++p) {
    const LocalPlan& local = places_[p]->local;
    for (std::int32_t c = 0; c < std::ssize(local.channels); ++c)
      if (plan_.roles[local.stage].channels[local.channels[c].channel].kind == PlanChannel::Kind::commit) push(p, c, t);
  }
  if (Status s = decisions_->begin_due(); failure_.ok()) failure_ = std::move(s);
}

}  // namespace troupe::runtime
