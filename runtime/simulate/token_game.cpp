#include "runtime/simulate/token_game.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "devices/base/check.h"
#include "devices/base/text_table.h"
#include "runtime/simulate/game.h"

namespace troupe::runtime {

Expected<GameResult> Game::run() {
  choose_places();
  // In a shortened game each place counts its own microbatches from 0: those of two classes would be taken for one.
  const bool several_classes = *std::max_element(dp_class_.begin(), dp_class_.end()) > 0;
  const bool shortens = microbatches_ < plan_.step_spec().microbatches;
  if (shortens && several_classes) return Status(Code::not_found, "no steady state: dp coordinates differ");
  if (options_.forward_s < 0) handover_ns_ = to_ns(plan_.costs.handover_s);
  for (Rank r : result_.places) TROUPE_TRY(build(r));
  for (const auto& place : places_) resolve_peers(*place);
  if (const double s = longest_s(); !(s < game_s_max))
    return Status(Code::exhausted, fmt::format("all acts and messages of {}, one after the other, take {:.3g} s, and "
                                               "simulated time ends at {:.3g} s: lower their times, or the number of "
                                               "microbatches",
                                               counted(options_.steps, "step"), s, game_s_max));
  make_decisions();
  TROUPE_TRY(begin());
  do {
    deliver();
    if (shortened() && loop_.next_due_ns() != loop_.now_ns()) detect_cycle();
  } while (failure_.ok() && loop_.run_one());
  if (!failure_.ok()) {
    for (const auto& place : places_)  // while the actors of the tasks under way are still there
      for (const auto& [name, stream] : place->streams) stream->quiesce();
    return failure_;
  }
  TROUPE_TRY(check_finished());
  commits_ns_.push_back(loop_.now_ns());
  if (shortened() && !repeat(search_.cycles(), options_.steps, left_out_, plan_.step_program(), acts_, commits_ns_))
    return Status(Code::not_found, "no steady state");
  end_ns_ = commits_ns_.back();
  commits_ns_.pop_back();
  measure();
  for (const auto& place : places_) result_.locals.push_back(std::move(place->local));
  return std::move(result_);
}

double Game::given_s(Pass pass, const std::array<double, 3>& predicted) const {
  const double backward = predicted[static_cast<std::size_t>(Pass::backward)],
               weights = predicted[static_cast<std::size_t>(Pass::weights)];
  const double weights_s = weights == 0              ? 0
                           : options_.weights_s >= 0 ? options_.weights_s
                                                     : options_.backward_s * weights / (backward + weights);
  return pass == Pass::forward   ? options_.forward_s
         : pass == Pass::weights ? weights_s
                                 : options_.backward_s - weights_s;
}

Status Game::build(Rank rank) {
  auto made = local_plan(plan_, rank);
  if (!made.ok()) return made.status();
  const auto index = static_cast<std::int32_t>(places_.size());
  places_.push_back(std::make_unique<Place>());
  Place& place = *places_.back();
  place.local = *std::move(made);
  place.device = std::make_unique<SimDevice>(loop_);
  place.links.emplace(plan_.costs, rank);
  const PlanRole& role = plan_.roles[place.local.stage];
  // virtual_stage and pass -> cost, segments.
  std::map<std::pair<std::int32_t, Pass>, std::pair<double, std::int64_t>> passes;
  // of the whole stage, by pass
  std::array<double, 3> predicted{};
  for (const auto& l : place.local.actors) {
    const PlanActor& a = role.actors[l.actor];
    if (a.kind != PlanActor::Kind::segment || !plan_.is_step_program(a.program)) continue;
    auto& [cost, segments] = passes[{a.virtual_stage, a.pass}];
    cost += a.cost_s;
    ++segments;
    predicted[static_cast<std::size_t>(a.pass)] += a.cost_s;
  }
  for (std::size_t i = 0; i < place.local.actors.size(); ++i) {
    const LocalActor& l = place.local.actors[i];
    const PlanActor& a = role.actors[l.actor];
    auto spec = l.spec;
    if (plan_.is_step_program(a.program) && a.rate == Rate::microbatch) {
      shorten(spec);
      result_.played_microbatches = std::max(result_.played_microbatches,
                                             static_cast<std::int64_t>(spec.microbatches.size()));
    }
    if (options_.unlimited_slots)
      for (auto& o : spec.out)
        if (o.every == 1)
          o.slots = std::max(o.slots, static_cast<std::int32_t>(plan_.programs[a.program].spec.microbatches));
    if (options_.unlimited_slots)  // then channels do not take turns in a buffer either
      for (std::size_t p = 0; p < spec.in.size() + spec.out.size(); ++p) {
        const bool in = p < spec.in.size();
        const auto channel = in ? a.in[p] : a.out[p - spec.in.size()];
        if (role.channels[channel].kind == PlanChannel::Kind::turn)
          (in ? spec.in[p].cycle : spec.out[p - spec.in.size()].cycle) = {actors::Phase::skip};
      }
    auto actor = std::make_unique<GameActor>(*this, index, static_cast<std::int32_t>(i), l, a, plan_.shared(a),
                                             std::move(spec));
    actor->cost_s_ = a.cost_s;
    if (options_.forward_s >= 0) {
      actor->cost_s_ = 0;
      if (a.kind == PlanActor::Kind::segment && plan_.is_step_program(a.program)) {
        const double all = given_s(a.pass, predicted) / plan_.pipeline.chunks;
        const auto& [cost, segments] = passes[{a.virtual_stage, a.pass}];
        actor->cost_s_ = cost > 0 ? all * a.cost_s / cost : all / static_cast<double>(segments);
      }
    }
    actor->stream_name_ = stream_name(a);
    auto& stream = place.streams[actor->stream_name_];
    if (!stream) stream = place.device->create_stream(actor->stream_name_, 1);
    actor->stream_ = stream.get();
    if (actor->meets()) put_on_links(place, *actor);
    place.actors.push_back(std::move(actor));
  }
  for (std::size_t c = 0; c < place.local.channels.size(); ++c) {
    const LocalChannel& l = place.local.channels[c];
    if (role.channels[l.channel].writer < 0)
      place.controls.emplace(static_cast<std::int32_t>(c),
                             ControlChannel(role.channels[l.channel].name, l.slots, l.readers, {}));
  }
  if (!options_.unlimited_slots) place.areas = std::make_unique<AreaWatch>(role, place.local);
  result_.memory.push_back(place.local.memory);
  return {};
}

std::string Game::stream_name(const PlanActor& a) const {
  return options_.unlimited_streams && a.stream != "compute" ? a.stream + "." + a.name : a.stream;
}

void Game::shorten(actors::ActorSpec& spec) {
  const auto all = static_cast<std::int64_t>(spec.microbatches.size());
  if (microbatches_ >= all) return;
  left_out_ = all - microbatches_;
  const auto acts = static_cast<std::int32_t>(microbatches_);
  spec.microbatches.resize(static_cast<std::size_t>(acts));
  // The place counts its own microbatches, in the order in which it runs them: two moments of the steady state then
  // look the same to the game. The game plays only places of one dp coordinate then (see run).
  std::iota(spec.microbatches.begin(), spec.microbatches.end(), 0);
  for (auto& in : spec.in)
    if (in.hold > 1) in.hold = acts;
  for (auto& out : spec.out)
    if (out.every > 1) out.every = acts;
}

void Game::deliver() {
  while (!mail_.empty() && failure_.ok()) {
    const Mail m = mail_.front();
    mail_.pop_front();
    ActorCore& core = m.to->core_;
    switch (m.kind) {
      case Mail::Kind::begin: core.begin(0, first_readers_); break;
      case Mail::Kind::token: core.arrive(m.port, m.token); break;
      case Mail::Kind::ack: core.ack(m.port, m.slot); break;
      case Mail::Kind::control_ack: {
        const auto p = m.to->place_;
        places_[p]->controls.at(m.port).ack(m.slot, deliver(p, m.port));
        break;
      }
      case Mail::Kind::started: core.started(m.number); break;
      case Mail::Kind::done: finished(*m.to, m); break;
      case Mail::Kind::carried: carried(m); break;
      case Mail::Kind::meet: meet(*m.to, m.number); break;
      case Mail::Kind::closed: step_closed(m.to->place_, {m.to->plan_.program, m.step}); break;
    }
  }
}

void Game::over(const GameActor& a, std::uint64_t number) {
  const auto is_it = [&](const UnderWay& u) { return u.actor == &a && u.number == number; };
  const auto it = std::find_if(under_way_.begin(), under_way_.end(), is_it);
  ASSERT(it != under_way_.end(), a.plan_.name, number);
  under_way_.erase(it);
}

void Game::end_act(const Mail& done) {
  if (const auto& areas = places_[done.to->place_]->areas) areas->end(done.to->flight(done.number).uses.end);
  if (handover_ns_ == 0) return post(done);
  const std::int64_t at_ns = loop_.now_ns() + handover_ns_;
  under_way_.push_back({done.to, done.number, at_ns, Mail::Kind::done});
  loop_.at(at_ns, [this, done] {
    over(*done.to, done.number);
    post(done);
  });
}

void Game::finished(GameActor& a, const Mail& m) {
  if (!awaited_.empty() && !a.plan_.ops.empty()) reported(a, a.flight(m.number));
  std::erase_if(a.flights_, [&](const GameActor::Flight& f) { return f.number == m.number; });
  a.core_.done(m.number, ActDone{{}, m.begin_ns, m.end_ns, m.step});
}

void GameActor::arrive(std::int32_t actor, std::int32_t port, const Token& token) {
  game_.post(
      {.kind = Mail::Kind::token, .to = game_.places_[place_]->actors[actor].get(), .port = port, .token = token});
}

void GameActor::ack(std::int32_t actor, std::int32_t port, std::int32_t slot) {
  if (actor >= 0)
    game_.post({.kind = Mail::Kind::ack, .to = game_.places_[place_]->actors[actor].get(), .port = port, .slot = slot});
  else game_.post({.kind = Mail::Kind::control_ack, .to = this, .port = port, .slot = slot});
}

void GameActor::submit(ActContext c) {
  const auto number = c.act.number;
  const auto& areas = game_.places_[place_]->areas;
  flights_.push_back({{number, c.step, c.microbatch, c.local}, areas ? areas->uses(index_, c.act) : AreaWatch::Uses{}});
  if (plan_.kind == PlanActor::Kind::exchange) {
    take_memory(flights_.back());
    game_.post({.kind = Mail::Kind::started, .to = this, .number = number});
    game_.post({.kind = Mail::Kind::meet, .to = this, .number = number});
    return;
  }
  game_.places_[place_]->submitted.push_back({this, number});
  Task task;
  task.order = {plan_.priority, c.step, c.microbatch, plan_.run, c.turn};
  task.cost_s = cost_s_;
  task.on_start = [this, number] { on_start(number); };
  task.on_done = [this, number](std::int64_t begin, std::int64_t end) { on_done(number, begin, end); };
  stream_->submit(std::move(task));
}

void GameActor::begin(std::uint64_t number) {
  Place& place = *game_.places_[place_];
  std::erase(place.submitted, std::pair(this, number));
  if (plan_.priority >= 0) place.last[stream_name_] = {this, flight(number)};  // RQ-3 (urgency)
  game_.under_way_.push_back({this, number, game_.loop_.now_ns() + to_ns(cost_s_), Mail::Kind::started});
}

void GameActor::take_memory(const Flight& f) {
  const auto& areas = game_.places_[place_]->areas;
  if (!areas || areas->begin(f.uses.begin)) return;
  failed(Status(
      Code::internal,
      fmt::format("takes memory of a shared area, in step {}, while a tenant of another shift is live there", f.step)));
}

void GameActor::on_start(std::uint64_t number) {
  take_memory(flight(number));
  begin(number);
  game_.post({.kind = Mail::Kind::started, .to = this, .number = number});
}

void GameActor::on_done(std::uint64_t number, std::int64_t begin, std::int64_t end) {
  const Flight& f = flight(number);
  game_.over(*this, number);
  if (plan_.stream == "compute")
    game_.acts_.push_back({game_.places_[place_]->local.rank, &plan_, shared_, f.step, f.microbatch, begin, end});
  if (plan_.gathers()) game_.post({.kind = Mail::Kind::meet, .to = this, .number = number});
  else game_.end_act({.kind = Mail::Kind::done, .to = this, .number = number, .begin_ns = begin, .end_ns = end});
}

void GameActor::step_closed(std::int64_t step) { game_.post({.kind = Mail::Kind::closed, .to = this, .step = step}); }

void GameActor::failed(const Status& status) {
  if (game_.failure_.ok()) game_.failure_ = status.in(plan_.name);
}

}  // namespace troupe::runtime
