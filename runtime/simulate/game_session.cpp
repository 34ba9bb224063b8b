// The decisions of session and conductors in a game: go, feeds, commits, which programs read a version.
#include <algorithm>

#include "runtime/simulate/game.h"

namespace troupe::runtime {

ProgramMask Game::readers_of(std::int64_t version) const {
  ProgramMask mask = 0;
  if (version < options_.steps) mask |= 1;
  if (version == 0 && options_.every_program)
    for (std::size_t p = 1; p < plan_.programs.size(); ++p)
      if (plan_.programs[p] != "digest") mask |= ProgramMask{1} << p;
  if (version == options_.steps && options_.every_program && plan_.trains)
    mask |= ProgramMask{1} << plan_.program("digest");
  return mask;
}

void Game::push(std::int32_t p, std::int32_t channel, const Token& token) {
  places_[p]->controls.at(channel).push(token, {},
                                        [this, p](const actors::Reader& r, const Token& t) { hand_over(p, r, t); });
}

void Game::hand_over(std::int32_t p, const actors::Reader& r, const Token& t) {
  post({.kind = Mail::Kind::token, .to = places_[p]->actors[r.actor].get(), .port = r.port, .token = t});
}

void Game::begin(std::int32_t p) {
  Place& place = *places_[p];
  for (auto& a : place.actors) post({.kind = Mail::Kind::begin, .to = a.get()});
  for (std::int32_t program = 0; program < static_cast<std::int32_t>(plan_.programs.size()); ++program) {
    if (program > 0 && !options_.every_program) continue;
    const std::int64_t runs = program == 0 ? options_.steps : 1;
    for (std::int64_t s = 0; s < std::min<std::int64_t>(2, runs); ++s) go(p, program, s);
  }
}

void Game::go(std::int32_t p, std::int32_t program, std::int64_t step) {
  const Place& place = *places_[p];
  const PlanRole& role = plan_.roles[place.local.stage];
  for (std::size_t c = 0; c < place.local.channels.size(); ++c) {
    const PlanChannel& pc = role.channels[place.local.channels[c].channel];
    if (!pc.control() || pc.kind == PlanChannel::Kind::commit || pc.program != program || !pc.after.empty()) continue;
    Token t;
    t.step = step;
    if (pc.rate == Rate::step) push(p, static_cast<std::int32_t>(c), t);
    else {
      const bool shorter = program == 0 && shortened();
      std::int32_t index = 0;
      for (auto m : plan_.schedule(program, place.local.stage).microbatches(place.local.dp_index)) {
        if (shorter && index >= microbatches_) break;
        t.microbatch = shorter ? index++ : m;
        push(p, static_cast<std::int32_t>(c), t);
      }
    }
  }
}

std::int64_t Game::at_once(const PlanChannel& c) const {
  return std::min(plan_.program_specs[c.program].microbatches, c.at_once);
}

void Game::begin_feed(WaitingFeed& f) {
  while (f.sent < at_once(*f.channel)) feed(f, f.step, static_cast<std::int32_t>(f.sent++));
  if (f.sent == plan_.program_specs[f.channel->program].microbatches && f.step < f.begun) {
    ++f.step;
    f.sent = 0;
    begin_feed(f);
  }
}

void Game::begin_feeds(std::int32_t program, std::int64_t step) {
  for (auto& f : waiting_feeds_)
    if (f.channel->program == program) {
      f.begun = step;
      begin_feed(f);
    }
}

void Game::reported(const GameActor& actor, std::int64_t step, std::int32_t microbatch) {
  if (!places_[actor.place_]->local.leads) return;
  for (auto& f : waiting_feeds_) {
    const PlanChannel& c = *f.channel;
    if (c.program != actor.plan_.program || !actor.plan_.reports(c.after)) continue;
    if (f.due || f.step != step || f.sent != microbatch + 1 || f.sent < at_once(c) ||
        f.sent == plan_.program_specs[c.program].microbatches)
      continue;
    f.due = true;
    f.due_ns = loop_.now_ns() + to_ns(options_.control_s);
    loop_.at(f.due_ns, [this, &f] {
      f.due = false;
      feed(f, f.step, static_cast<std::int32_t>(f.sent++));
      begin_feed(f);
    });
  }
}

void Game::feed(const WaitingFeed& f, std::int64_t step, std::int32_t microbatch) {
  const auto owner = plan_.schedule(f.channel->program, f.stage).owner(microbatch);
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(places_.size()); ++p) {
    const Place& place = *places_[p];
    if (place.local.stage != f.stage || place.local.dp_index != owner) continue;
    for (std::size_t c = 0; c < place.local.channels.size(); ++c) {
      if (&plan_.roles[f.stage].channels[place.local.channels[c].channel] != f.channel) continue;
      Token t;
      t.step = step;
      t.microbatch = microbatch;
      push(p, static_cast<std::int32_t>(c), t);
    }
  }
}

void Game::step_closed(std::int32_t p, std::int32_t program, std::int64_t step) {
  auto& count = closed_[{program, step}][p];
  ++count;
  ++closings_;
  if (count < places_[p]->local.closers[program]) return;
  for (const auto& place : places_)
    if (const auto i = &place - places_.data(); place->local.closers[program] > 0) {
      const auto it = closed_[{program, step}].find(static_cast<std::int32_t>(i));
      if (it == closed_[{program, step}].end() || it->second < place->local.closers[program]) return;
    }
  if (program != 0) return;
  commit_due_ns_ = loop_.now_ns() + to_ns(options_.control_s);
  loop_.at(commit_due_ns_, [this, step] { commit(step); });
}

void Game::commit(std::int64_t step) {
  commits_ns_.push_back(loop_.now_ns());
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(places_.size()); ++p) {
    const Place& place = *places_[p];
    const PlanRole& role = plan_.roles[place.local.stage];
    for (std::size_t c = 0; c < place.local.channels.size(); ++c)
      if (role.channels[place.local.channels[c].channel].kind == PlanChannel::Kind::commit) {
        Token t;
        t.step = step;
        t.readers = readers_of(step + 1);
        push(p, static_cast<std::int32_t>(c), t);
      }
    if (step + 2 < options_.steps) go(p, 0, step + 2);
  }
  if (step + 2 < options_.steps) begin_feeds(0, step + 2);
}

}  // namespace troupe::runtime
