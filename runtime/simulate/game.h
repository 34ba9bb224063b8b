// The players of the token game: the places and their actors, the messages between these, when an exchange is over.
// Internal to token_game.cpp (the rules), game_places.cpp (which places are played), game_exchanges.cpp (messages
// between places), game_session.cpp (what carries the run's decisions out), game_state.cpp (the state by which the
// steady state is recognised), game_result.cpp (the results).
#pragma once

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "actors/control_channel.h"
#include "devices/sim/sim_device.h"
#include "runtime/session/decisions.h"
#include "runtime/simulate/area_watch.h"
#include "runtime/simulate/game_links.h"
#include "runtime/simulate/game_period.h"
#include "runtime/simulate/token_game.h"

namespace troupe::runtime {

using actors::ActContext;
using actors::ActDone;
using actors::ActorCore;
using actors::ControlChannel;
using actors::ProgramMask;
using actors::Token;

class Game;

struct Mail;

/// An actor at a place that is played: its core, and how long its acts take where.
class GameActor final : public actors::Outbox {
 public:
  GameActor(Game& game, std::int32_t place, std::int32_t index, const LocalActor& local, const PlanActor& plan,
            bool shared, actors::ActorSpec spec)
      : game_(game), place_(place), index_(index), local_(local), plan_(plan), core_(std::move(spec), *this, nullptr),
        shared_(shared) {}

  void arrive(std::int32_t actor, std::int32_t port, const Token& token) override;
  void ack(std::int32_t actor, std::int32_t port, std::int32_t slot) override;
  void submit(ActContext context) override;
  void step_closed(std::int64_t step) override;
  void failed(const Status& status) override;
  void on_start(std::uint64_t number);
  void on_done(std::uint64_t number, std::int64_t begin_ns, std::int64_t end_ns);
  /// Its stream begins a task of the act.
  void begin(std::uint64_t number);
  /// Adds what the act has received; posts `done` then.
  void add(Mail done);

  /// Acts once for each microbatch of a step.
  bool moves() const;
  /// Its acts are over when its peers have begun theirs: an exchange, or an update that gathers.
  bool meets() const { return plan_.kind == PlanActor::Kind::exchange || plan_.gathers(); }

  Game& game_;
  std::int32_t place_, index_;
  const LocalActor& local_;
  const PlanActor& plan_;
  ActorCore core_;
  const bool shared_;  // a part of a unit that all stages share
  double cost_s_ = 0;
  std::string stream_name_;
  Stream* stream_ = nullptr;
  std::vector<std::vector<std::int32_t>> peers_;    // per route: the other places that it meets, ascending
  std::vector<std::vector<GameMessage>> messages_;  // per route: by GameMessage::before
  std::int64_t hop_ns_ = 0;                         // where meets(): added to each act
  struct ActAt {
    std::uint64_t number = 0;
    std::int64_t step = 0;
    std::int32_t microbatch = -1, local = 0;
  };
  struct Flight : ActAt {  // an act that is submitted and not done
    AreaWatch::Uses uses;
  };
  std::vector<Flight> flights_;
  Flight& flight(std::uint64_t number) {
    return *std::find_if(flights_.begin(), flights_.end(), [&](const Flight& f) { return f.number == number; });
  }
  /// The act begins to use memory. Fails the game where another shift of a shared area is in use.
  void take_memory(const Flight& flight);
};

/// A message from an actor, or the conductor, to an actor at the same place. It arrives before virtual time goes on.
struct Mail {
  enum class Kind : std::uint8_t { begin, token, ack, control_ack, started, done, meet, carried, closed };
  Kind kind = Kind::begin;
  GameActor* to = nullptr;  // control_ack: from
  std::int32_t port = 0, slot = 0;
  std::uint64_t number = 0;
  std::int64_t begin_ns = 0, end_ns = 0, step = -1;
  Token token{};
};

struct Place {
  LocalPlan local;
  std::unique_ptr<SimDevice> device;
  std::map<std::string, std::unique_ptr<Stream>> streams;
  std::optional<GameLinks> links;
  std::vector<std::unique_ptr<GameActor>> actors;
  std::map<std::int32_t, ControlChannel> controls;                      // by local channel
  std::vector<std::pair<GameActor*, std::uint64_t>> submitted;          // and not started, in this order
  std::map<std::string, std::pair<GameActor*, GameActor::ActAt>> last;  // act that a stream chose, by stream
  // none where slots are unlimited: then no tenant takes turns
  std::unique_ptr<AreaWatch> areas;
};

/// One game: built, played to its end, measured. `run` is called once.
class Game final : private DecisionSink {
 public:
  /// Plays the first `microbatches` of each step at every place, and repeats them up to all.
  Game(const Plan& plan, const GameOptions& options, std::int64_t microbatches)
      : plan_(plan), options_(options), microbatches_(microbatches) {}

  Expected<GameResult> run();

  /// Fewer microbatches than there are.
  bool shortened() const { return left_out_ > 0; }

 private:
  friend class GameActor;

  /// Chooses one place for all that behave alike.
  void choose_places();
  /// Sets dp_class_ and plays_each_. Of one class are coordinates whose places have the same links among each other,
  /// and no odd link to another coordinate; where they are not `alike` otherwise, each is a class.
  void compare_links(bool alike);
  std::int32_t place_of(Rank rank) const { return place_of_[static_cast<std::size_t>(rank)]; }
  Status build(Rank rank);
  /// Seconds that GameOptions gives to one pass through a stage. `predicted`: the cost model's, by pass.
  double given_s(Pass pass, const std::array<double, 3>& predicted) const;

  std::string stream_name(const PlanActor& a) const;
  /// Sets what an actor with meets() sends and gets, and counts it.
  void put_on_links(Place& place, GameActor& actor);

  /// Leaves an actor the first `microbatches_` of each step only.
  void shorten(actors::ActorSpec& spec);

  /// Finds the places for which each act of an exchange waits.
  void resolve_peers(Place& place);

  /// The seconds of all acts, exchanges and waits for the session, one after the other, microbatches that are left out
  /// included. No game takes longer: at each moment one of them is under way.
  double longest_s() const;

  // ---- the conductors, and the session as the places hear it ------------------------------------

  /// Makes the decisions of a run whose voters are the places that are played.
  void make_decisions();
  void push(std::int32_t p, std::int32_t channel, const Token& token);
  void flush(std::int32_t p, const GameActor& reader, std::int32_t channel, std::int32_t slot);
  std::function<void(const actors::Reader&, const Token&)> deliver(std::int32_t p, std::int32_t channel);

  // DecisionSink
  Expected<std::vector<std::int32_t>> readers(std::int64_t version, bool last) override;
  void snapshot_skipped(std::int64_t) override {}
  void go(ProgramStep step) override;
  Expected<std::vector<std::int32_t>> feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                           const actors::Report* last) override;

  Status begin();
  Status commit(std::int64_t step);
  /// An actor of a place has closed a step: the last one at the place is its vote.
  void step_closed(std::int32_t p, ProgramStep step);
  /// An act has ended: the session hears what it reports, if a feed waits for such reports.
  void reported(const GameActor& actor, const GameActor::ActAt& act);
  /// What the session hears, GameOptions::control_s after a place has said it: that a feed's microbatch lies in its
  /// slot, a report, a vote.
  struct Hears {
    std::int64_t due_ns = 0;
    ProgramStep step;
    std::int32_t microbatch = 0, voter = 0;
    const PlanChannel* taken = nullptr;   // the feed ...
    const std::string* report = nullptr;  // ... or the report's name; else a vote
  };
  void tell(Hears hears);
  Status hear(const Hears& hears);

  // ---- exchanges: an act is over when every peer has begun it ------------------------------------

  struct PeerTable {
    struct Arrival {
      std::int32_t place = 0;
      GameActor* waits = nullptr;  // null: its act is over
      std::uint64_t number = 0;
      const std::vector<std::int32_t>* peers = nullptr;  // ascending
      std::int64_t missing = 0;                          // of these, how many have not begun
      std::int64_t end_ns = 0;                           // when its messages so far are carried
    };
    std::vector<Arrival> arrivals;
    std::vector<bool> here;  // by place
    std::int64_t step = -1;
  };
  void meet(GameActor& actor, std::uint64_t number);
  /// Carries the messages between the newest arrival and the places that are here; `fresh`: the first of its place.
  void carry_all(PeerTable& table, bool fresh);
  /// The peers of an act that are played at `place` have begun: carries what it sends them, or what they have sent and
  /// what is through their own links at `sent_ns`. Returns when all of it is through the links of this place.
  std::int64_t carry(PeerTable::Arrival& arrival, std::int32_t place, bool sent, std::int64_t sent_ns);
  std::vector<std::int64_t> to_others_ns_, from_others_ns_;  // of carry_all, by place
  /// All messages of an act are through: an exchange adds what has arrived, on its stream.
  void carried(const Mail& mail);

  // ---- mail ---------------------------------------------------------------------------------------

  void post(Mail mail) { mail_.push_back(std::move(mail)); }

  void deliver();
  void over(const GameActor& a, std::uint64_t number);
  /// An act has ended: frees its memory, and posts its end when it is handed over, CostModel::handover_s from now.
  void end_act(const Mail& done);

  void finished(GameActor& a, const Mail& m);

  // ---- the steady state ---------------------------------------------------------------------------

  /// Compares the state with earlier ones. REQUIRES: the end of an instant: no mail is left.
  void detect_cycle();

  /// Whether no act that is not of a microbatch competes for a stream with one that is: the order of such two would
  /// depend on the number of the microbatch.
  bool others_rest() const;

  /// All that the rest of the game depends on; microbatches are counted from act `seen_`.
  std::vector<std::int64_t> state() const;

  // ---- afterwards ---------------------------------------------------------------------------------

  Status check_finished();
  static bool has_token(const actors::Ports& ports);
  /// An actor that has not acted, because it has no version of its parameters to read.
  bool waits_for_first_version(const Place& place, const GameActor& a) const;

  void measure();
  /// Seconds in which the busiest interface or link carries, over the whole game, microbatches that were left out
  /// included.
  double busiest_s() const;

  const Plan& plan_;
  GameOptions options_;
  SimLoop loop_;
  GameResult result_;
  std::vector<std::int32_t> dp_class_;  // by dp coordinate; coordinates of one class behave alike
  std::vector<bool> plays_each_;        // by class: whether its places of a stage may have other links
  /// A place that is played stands in for others, whose links may be slower than its own: an exchange then takes at
  /// least the time that the plan predicts for its slowest place.
  bool links_differ_ = false;
  std::vector<std::int32_t> place_of_;  // by rank
  std::vector<std::unique_ptr<Place>> places_;
  std::optional<Decisions> decisions_;
  ProgramMask first_readers_ = 0;                                         // of the version that the run begins with
  std::map<std::pair<ProgramStep, std::int32_t>, std::int32_t> closing_;  // by place: actors that have closed the step
  std::list<Hears> told_;                                                 // and not heard
  std::map<std::pair<std::int32_t, std::int64_t>, PeerTable> peer_tables_;
  std::vector<std::pair<std::int32_t, std::string>> awaited_;  // reports for which feeds wait: program, name
  std::vector<std::int64_t> commits_ns_;
  std::int64_t end_ns_ = 0;       // time of the last event
  std::int64_t handover_ns_ = 0;  // CostModel::handover_s, where acts have their costs
  std::deque<Mail> mail_;
  std::vector<PlayedAct> acts_;  // on compute streams
  Status failure_;

  // For the steady state.
  struct UnderWay {
    GameActor* actor;
    std::uint64_t number;
    std::int64_t end_ns;
    Mail::Kind phase;  // started: on its stream; carried: its messages are on their way; done: it is handed on
  };
  std::int64_t microbatches_, left_out_ = 0;
  std::int64_t seen_ = -1;  // acts of the first actor that acts once per microbatch
  std::int64_t closings_ = 0;
  std::vector<UnderWay> under_way_;  // in the order of their begin
  // exchange -> number of its actors that are played
  std::map<std::int32_t, std::int32_t> places_of_exchange_;
  CycleSearch search_;
};

inline bool GameActor::moves() const {
  return game_.plan_.is_step_program(plan_.program) && plan_.rate == Rate::microbatch;
}

}  // namespace troupe::runtime
