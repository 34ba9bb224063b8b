#include "runtime/token_game.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "actors/control_port.h"
#include "devices/base/check.h"
#include "devices/sim/sim_device.h"
#include "placement/tree.h"
#include "runtime/verify.h"

namespace troupe::runtime {

namespace {

using actors::ActContext;
using actors::ActDone;
using actors::ActorCore;
using actors::ControlPort;
using actors::ProgramMask;
using actors::Token;

std::int64_t to_ns(double s) { return static_cast<std::int64_t>(std::llround(s * 1e9)); }

class Game;

class GameActor final : public actors::Outbox {
 public:
  GameActor(Game& game, std::int32_t place, std::int32_t index, const LocalActor& local, const PlanActor& plan,
            actors::ActorSpec spec)
      : game_(game), place_(place), index_(index), local_(local), plan_(plan), core_(std::move(spec), *this, nullptr) {}

  void arrive(std::int32_t actor, std::int32_t port, const Token& token) override;
  void ack(std::int32_t actor, std::int32_t port, std::int32_t slot) override;
  void submit(ActContext context) override;
  void step_closed(std::int64_t step) override;
  void failed(const Status& status) override;

  Game& game_;
  std::int32_t place_, index_;
  const LocalActor& local_;
  const PlanActor& plan_;
  ActorCore core_;
  double cost_s_ = 0;
};

struct Place {
  LocalPlan local;
  std::unique_ptr<SimDevice> device;
  std::map<std::string, std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<GameActor>> actors;
  std::map<std::int32_t, ControlPort> controls;     // by local channel
};

class Game {
 public:
  Game(const Plan& plan, const GameOptions& options) : plan_(plan), options_(options) {}

  Expected<GameResult> run() {
    choose_places();
    for (Rank r : result_.places) TROUPE_TRY(build(r));
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(places_.size()); ++p) begin(p);
    while (failure_.ok() && loop_.run_one()) {
    }
    if (!failure_.ok()) return failure_;
    TROUPE_TRY(check_finished());
    measure();
    return std::move(result_);
  }

 private:
  friend class GameActor;

  /// One place for all that behave alike.
  void choose_places() {
    bool same = true;
    for (std::int32_t s = 1; s < plan_.stages; ++s) same &= plan_.dp_width(s) == plan_.dp_width(0);
    for (std::int32_t s = 0; s < plan_.stages; ++s) {
      std::set<std::int64_t> seen;
      const Mesh& mesh = plan_.meshes[s];
      const bool dp = dp_axis(mesh) >= 0;
      for (Rank r : mesh.ranks) {
        // Without a dp axis every place is played: nothing says that they behave alike.
        const std::int64_t key = !dp ? r : same ? 0 : plan_.dp_index(r);
        if (seen.insert(key).second) {
          representative_[{s, key}] = static_cast<std::int32_t>(result_.places.size());
          result_.places.push_back(r);
        }
      }
    }
    collapse_dp_ = same;
  }

  std::int32_t place_of(Rank rank) const {
    const std::int32_t s = plan_.stage_of(rank);
    const bool dp = dp_axis(plan_.meshes[s]) >= 0;
    return representative_.at({s, !dp ? rank : collapse_dp_ ? 0 : plan_.dp_index(rank)});
  }

  Status build(Rank rank) {
    auto made = local_plan(plan_, rank);
    if (!made.ok()) return made.status();
    const auto index = static_cast<std::int32_t>(places_.size());
    places_.push_back(std::make_unique<Place>());
    Place& place = *places_.back();
    place.local = *std::move(made);
    place.device = std::make_unique<SimDevice>(loop_);
    const PlanRole& role = plan_.roles[place.local.stage];
    double forward = 0, backward = 0;
    std::int64_t forwards = 0, backwards = 0;
    for (const auto& l : place.local.actors) {
      const PlanActor& a = role.actors[l.actor];
      if (a.kind != PlanActor::Kind::segment || a.program != 0) continue;
      (a.backward ? backward : forward) += a.cost_s;
      ++(a.backward ? backwards : forwards);
    }
    for (std::size_t i = 0; i < place.local.actors.size(); ++i) {
      const LocalActor& l = place.local.actors[i];
      const PlanActor& a = role.actors[l.actor];
      auto spec = l.spec;
      if (options_.unlimited_slots)
        for (auto& o : spec.out)
          if (o.every == 1) o.slots = std::max(o.slots, 1024);
      auto actor = std::make_unique<GameActor>(*this, index, static_cast<std::int32_t>(i), l, a, std::move(spec));
      actor->cost_s_ = a.cost_s;
      if (options_.forward_s >= 0) {
        actor->cost_s_ = 0;
        if (a.kind == PlanActor::Kind::segment && a.program == 0) {
          const double all = a.backward ? options_.backward_s : options_.forward_s;
          const double sum = a.backward ? backward : forward;
          actor->cost_s_ = sum > 0 ? all * a.cost_s / sum : all / static_cast<double>(a.backward ? backwards : forwards);
        }
      }
      place.actors.push_back(std::move(actor));
      if (const auto stream = stream_name(a); !place.streams.count(stream)) place.streams[stream] = place.device->create_stream(stream, 1);
    }
    for (std::size_t c = 0; c < place.local.channels.size(); ++c) {
      const LocalChannel& l = place.local.channels[c];
      if (role.channels[l.channel].writer < 0)
        place.controls.emplace(static_cast<std::int32_t>(c),
                               ControlPort(role.channels[l.channel].name, l.slots, l.readers, {}));
    }
    result_.memory.push_back(place.local.memory);
    return {};
  }

  std::string stream_name(const PlanActor& a) const {
    return options_.unlimited_streams && a.stream != "compute" ? a.stream + "." + a.name : a.stream;
  }

  // ---- the conductor and the session ----------------------------------------------------------

  ProgramMask readers_of(std::int64_t version) const {
    ProgramMask mask = 0;
    if (version < options_.steps) mask |= 1;
    if (version == 0 && options_.every_program)
      for (std::size_t p = 1; p < plan_.programs.size(); ++p)
        if (plan_.programs[p] != "digest") mask |= ProgramMask{1} << p;
    if (version == options_.steps && options_.every_program && plan_.trains) mask |= ProgramMask{1} << plan_.program("digest");
    return mask;
  }

  void push(std::int32_t p, std::int32_t channel, const Token& token) {
    places_[p]->controls.at(channel).push(token, {}, [this, p](const actors::Reader& r, const Token& t) {
      post([this, p, r, t] { places_[p]->actors[r.actor]->core_.arrive(r.port, t); });
    });
  }

  void begin(std::int32_t p) {
    Place& place = *places_[p];
    for (auto& a : place.actors) {
      ActorCore* core = &a->core_;
      post([this, core] { core->begin(0, readers_of(0)); });
    }
    for (std::int32_t program = 0; program < static_cast<std::int32_t>(plan_.programs.size()); ++program) {
      if (program > 0 && !options_.every_program) continue;
      const std::int64_t runs = program == 0 ? options_.steps : 1;
      for (std::int64_t s = 0; s < std::min<std::int64_t>(2, runs); ++s) go(p, program, s);
    }
  }

  void go(std::int32_t p, std::int32_t program, std::int64_t step) {
    const Place& place = *places_[p];
    const PlanRole& role = plan_.roles[place.local.stage];
    for (std::size_t c = 0; c < place.local.channels.size(); ++c) {
      const PlanChannel& pc = role.channels[place.local.channels[c].channel];
      if (!pc.control() || pc.kind == PlanChannel::Kind::commit || pc.program != program) continue;
      Token t;
      t.step = step;
      if (pc.rate == Rate::step) push(p, static_cast<std::int32_t>(c), t);
      else
        for (auto m : plan_.microbatches(program, place.local.stage, place.local.dp_index)) {
          t.microbatch = m;
          push(p, static_cast<std::int32_t>(c), t);
        }
    }
  }

  void step_closed(std::int32_t p, std::int32_t program, std::int64_t step) {
    auto& count = closed_[{program, step}][p];
    ++count;
    if (count < places_[p]->local.closers[program]) return;
    for (const auto& place : places_)
      if (const auto i = &place - places_.data(); place->local.closers[program] > 0) {
        const auto it = closed_[{program, step}].find(static_cast<std::int32_t>(i));
        if (it == closed_[{program, step}].end() || it->second < place->local.closers[program]) return;
      }
    if (program != 0) return;
    loop_.at(loop_.now_ns() + to_ns(options_.control_s), [this, step] { commit(step); });
  }

  void commit(std::int64_t step) {
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
  }

  // ---- exchanges: an act is over when every peer has begun it ------------------------------------

  struct Link {
    std::int64_t free_at_ns = 0;
    double busy_s = 0;
  };
  struct Meeting {
    std::map<std::int32_t, std::pair<GameActor*, ActContext>> present;   // by place
    std::int64_t step = -1;
  };

  void meet(GameActor& actor, ActContext c) {
    const PlanExchange& x = plan_.exchanges[actor.plan_.exchange];
    const auto per_step = static_cast<std::uint64_t>(actor.local_.route_of.size());
    const auto total = x.rate == Rate::microbatch ? plan_.program_specs[x.program].microbatches : 1;
    const auto sequence = static_cast<std::int64_t>(c.act.number / per_step) * total + std::max(0, c.microbatch);
    auto& meeting = meetings_[{actor.plan_.exchange, sequence}];
    if (c.step >= 0) meeting.step = c.step;
    meeting.present[actor.place_] = {&actor, std::move(c)};
    const bool priced = options_.forward_s < 0;
    const double latency_s = (priced ? x.latency_s : 0) + options_.hop_s, carried_s = priced ? x.seconds - x.latency_s : 0;
    const auto& ends = x.moves.front();
    const std::pair<std::int32_t, std::int32_t> way{plan_.tensors[ends.from].mesh, plan_.tensors[ends.to].mesh};
    for (auto it = meeting.present.begin(); it != meeting.present.end();) {
      auto [a, context] = it->second;
      if (!a) { ++it; continue; }
      bool complete = true;
      for (Rank r : a->local_.peers[a->local_.route_of[context.local]]) {
        const auto peer = place_of(r);
        complete &= peer == it->first || meeting.present.count(peer) != 0;
      }
      if (!complete) { ++it; continue; }
      const std::int64_t begin = loop_.now_ns(), step = meeting.step;
      const auto number = context.act.number;
      GameActor* done = a;
      Link& link = links_[{it->first, way}];
      link.free_at_ns = std::max(begin, link.free_at_ns) + to_ns(carried_s);
      link.busy_s += carried_s;
      loop_.at(link.free_at_ns + to_ns(latency_s), [done, number, begin, step, this] {
        done->core_.done(number, ActDone{{}, begin, loop_.now_ns(), step});
      });
      it->second.first = nullptr;   // present, and told
      ++it;
    }
  }

  void post(std::function<void()> f) { loop_.at(loop_.now_ns(), std::move(f)); }

  // ---- afterwards ---------------------------------------------------------------------------------

  Status check_finished() {
    std::string missing;
    for (std::int32_t program = 0; program < static_cast<std::int32_t>(plan_.programs.size()); ++program) {
      const bool digest = plan_.programs[program] == "digest";
      if (program > 0 && (!options_.every_program || (digest && !plan_.trains))) continue;
      const std::int64_t first = digest ? options_.steps : 0, count = program == 0 ? options_.steps : 1;
      for (std::int64_t s = first; s < first + count; ++s)
        for (std::size_t p = 0; p < places_.size(); ++p) {
          const auto want = places_[p]->local.closers[program];
          const auto& closed = closed_[{program, s}];
          const auto it = closed.find(static_cast<std::int32_t>(p));
          if (want > 0 && (it == closed.end() || it->second < want) && missing.empty())
            missing = "program '" + plan_.programs[program] + "' does not finish step " + std::to_string(s) + " on rank " +
                      std::to_string(places_[p]->local.rank);
        }
    }
    if (!missing.empty()) {
      // One place of each stage first: the others of a stage mostly wait for the same.
      std::vector<const Place*> places, others;
      std::set<std::int32_t> stages;
      for (const auto& place : places_) (stages.insert(place->local.stage).second ? places : others).push_back(place.get());
      places.insert(places.end(), others.begin(), others.end());
      std::string waits;
      int lines = 0;
      for (const Place* place : places)
        for (const auto& a : place->actors) {
          const auto& ports = a->core_.ports();
          if (lines < 64 && (!ports.missing_credits().empty() || !a->core_.idle() || has_token(ports))) {
            waits += "\n  rank " + std::to_string(place->local.rank) + ": " + a->core_.explain();
            ++lines;
          }
        }
      return invalid("deadlock: " + missing + "; waiting:" + waits);
    }
    for (const auto& place : places_)
      for (const auto& a : place->actors)
        for (std::size_t i = 0; i < a->core_.ports().in_specs().size(); ++i)
          if (a->core_.ports().queued(static_cast<int>(i)) > 0)
            return invalid("imbalance: channel '" + a->core_.ports().in_specs()[i].name + "' still holds tokens for '" +
                           a->core_.spec().name + "' on rank " + std::to_string(place->local.rank) + " when every step is done");
    return {};
  }

  static bool has_token(const actors::Ports& ports) {
    for (std::size_t i = 0; i < ports.in_specs().size(); ++i)
      if (ports.queued(static_cast<int>(i)) > 0) return true;
    return false;
  }

  void measure() {
    std::sort(result_.acts.begin(), result_.acts.end(), [](const GameAct& a, const GameAct& b) {
      return std::tie(a.begin_s, a.end_s, a.rank) < std::tie(b.begin_s, b.end_s, b.rank);
    });
    double first = 1e300, last = 0, busy = 0;
    std::map<Rank, double> per_place;
    std::map<Rank, std::map<std::int32_t, std::pair<double, double>>> held;   // rank -> microbatch -> forward begins, backward ends
    for (const auto& a : result_.acts) {
      if (a.program != 0 || a.step != 0 || a.microbatch < 0) continue;
      first = std::min(first, a.begin_s);
      last = std::max(last, a.end_s);
      busy += a.end_s - a.begin_s;
      per_place[a.rank] += a.end_s - a.begin_s;
      auto [it, fresh] = held[a.rank].try_emplace(a.microbatch, a.begin_s, a.end_s);
      it->second.second = std::max(it->second.second, a.end_s);
    }
    if (last > first) {
      result_.makespan_s = last - first;
      result_.bubble = 1 - busy / (result_.makespan_s * static_cast<double>(places_.size()));
    }
    for (const auto& [key, link] : links_)
      result_.messages_s = std::max(result_.messages_s, link.busy_s / static_cast<double>(std::max<std::int64_t>(1, options_.steps)));
    for (const auto& [rank, s] : per_place) result_.compute_s = std::max(result_.compute_s, s);
    if (commits_ns_.size() >= 2) result_.step_s = static_cast<double>(commits_ns_.back() - commits_ns_[commits_ns_.size() - 2]) * 1e-9;
    else result_.step_s = static_cast<double>(loop_.now_ns()) * 1e-9;
    result_.peak_stash.assign(plan_.stages, 0);
    for (const auto& [rank, microbatches] : held)
      for (const auto& [m, interval] : microbatches) {
        std::int32_t alive = 0;
        for (const auto& [other, i] : microbatches) alive += i.first <= interval.first && i.second > interval.first;
        auto& peak = result_.peak_stash[plan_.stage_of(rank)];
        peak = std::max(peak, alive);
      }
  }

  const Plan& plan_;
  GameOptions options_;
  SimLoop loop_;
  GameResult result_;
  bool collapse_dp_ = true;
  std::map<std::pair<std::int32_t, std::int64_t>, std::int32_t> representative_;
  std::vector<std::unique_ptr<Place>> places_;
  std::map<std::pair<std::int32_t, std::int64_t>, std::map<std::int32_t, std::int32_t>> closed_;
  std::map<std::pair<std::int32_t, std::int64_t>, Meeting> meetings_;
  std::map<std::pair<std::int32_t, std::pair<std::int32_t, std::int32_t>>, Link> links_;   // by place and way
  std::vector<std::int64_t> commits_ns_;
  Status failure_;
};

void GameActor::arrive(std::int32_t actor, std::int32_t port, const Token& token) {
  GameActor* to = game_.places_[place_]->actors[actor].get();
  game_.post([to, port, token] { to->core_.arrive(port, token); });
}

void GameActor::ack(std::int32_t actor, std::int32_t port, std::int32_t slot) {
  if (actor >= 0) {
    GameActor* to = game_.places_[place_]->actors[actor].get();
    game_.post([to, port, slot] { to->core_.ack(port, slot); });
    return;
  }
  const auto place = place_;
  Game* game = &game_;
  game->post([game, place, port, slot] {
    game->places_[place]->controls.at(port).ack(slot, [game, place](const actors::Reader& r, const Token& t) {
      game->post([game, place, r, t] { game->places_[place]->actors[r.actor]->core_.arrive(r.port, t); });
    });
  });
}

void GameActor::submit(ActContext c) {
  const auto number = c.act.number;
  if (plan_.kind == PlanActor::Kind::exchange) {
    game_.post([this, number] { core_.started(number); });
    game_.post([this, c = std::move(c)]() mutable { game_.meet(*this, std::move(c)); });
    return;
  }
  Task task;
  task.name = plan_.name;
  task.order = {plan_.priority, c.step, c.microbatch, plan_.run};
  task.cost_s = cost_s_;
  task.on_start = [this, number] { game_.post([this, number] { core_.started(number); }); };
  task.on_done = [this, c, number, step = c.step, microbatch = c.microbatch](std::int64_t begin, std::int64_t end) {
    if (plan_.stream == "compute")
      game_.result_.acts.push_back({game_.places_[place_]->local.rank, plan_.name, plan_.backward, plan_.program, step,
                                    microbatch, static_cast<double>(begin) * 1e-9, static_cast<double>(end) * 1e-9});
    if (plan_.gathers()) return game_.post([this, c]() mutable { game_.meet(*this, std::move(c)); });
    game_.post([this, number, begin, end] { core_.done(number, ActDone{{}, begin, end}); });
  };
  game_.places_[place_]->streams.at(game_.stream_name(plan_))->submit(std::move(task));
}

void GameActor::step_closed(std::int64_t step) {
  game_.post([this, step] { game_.step_closed(place_, plan_.program, step); });
}

void GameActor::failed(const Status& status) {
  if (game_.failure_.ok()) game_.failure_ = status.in(plan_.name);
}

}  // namespace

Expected<GameResult> play(const Plan& plan, const GameOptions& options) {
  TROUPE_TRY(check_structure(plan));
  return Game(plan, options).run();
}

}  // namespace troupe::runtime
