// ActorCore: the life of an actor without CAF: ports, acts, and when it notifies readers and writers. An actor waits
// for tokens and credits, acts, publishes what it has made, and acks what it has read (slots.h); what kinds of actors
// there are, and what an act of each does, the plan says (PlanActor::Kind, runtime/plan/actor_traits.h). The CAF shell
// (actor_shell.h) and the simulator (runtime/simulate/token_game.h) run this same class. Not thread-safe.
//
//   PA-1  (one waits) at most one act waits for its stream, so acts of one actor start in order;
//   PA-2  (notification) the actor notifies readers and writers on its own stream when an act starts, all others when
//         the act is done: the stream's order protects the data of an early token (what CUDA streams and events do);
//   PA-3  (act order) the actor sends tokens in the order of its acts, also where acts finish out of order (the
//         network); it reports a failure at once, and sends nothing after it: the slots of all acts under way stay
//         taken.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/slots.h"
#include "devices/base/trace.h"

namespace troupe::actors {

/// One reader of an output port.
struct Reader {
  std::int32_t actor = 0;  ///< index within the place
  std::int32_t port = 0;
  std::uint16_t program = 0;
  bool same_stream = false;
};

/// The writer behind an input port.
struct Writer {
  std::int32_t actor = 0;  ///< index within the place; -1: the conductor
  std::int32_t port = 0;
  bool same_stream = false;
};

/// Everything the protocol needs to know of an actor. Plain data.
struct ActorSpec {
  std::string name;
  std::uint16_t program = 0;
  std::vector<InSpec> in;
  std::vector<OutSpec> out;
  std::vector<Writer> writers;               ///< per input port
  std::vector<std::vector<Reader>> readers;  ///< per output port
  std::vector<std::int32_t> out_step;        ///< per output port: added to the act's step (a parameter: 1)
  std::vector<bool> initial;                 ///< per output port: a token before the first act
  std::int32_t first_slot = 0;               ///< that an initial token's slot has
  std::vector<std::int32_t> microbatches;    ///< this place's, in order; empty: one act per step
  bool rounds = false;                       ///< `microbatches` has numbers of rounds: tokens name others
  /// The turns of its acts of a step, among the `turns_per_step` turns of its stream (TaskOrder::turn); empty: none.
  std::vector<std::int32_t> turns;
  std::int32_t turns_per_step = 0;
  std::string trace_name;    ///< unique in the job: names this actor's tokens in a trace
  bool closes_step = false;  ///< tells the conductor when its last act of a step is done
};

/// How a core sends to other actors, its executor and the conductor. REQUIRES of an implementation: calls only post, so
/// that no call enters the core again before it returns.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void arrive(std::int32_t actor, std::int32_t port, const Token& token) = 0;
  virtual void ack(std::int32_t actor, std::int32_t port, std::int32_t slot) = 0;  ///< actor -1: the conductor
  virtual void submit(ActContext context) = 0;                                     ///< to the executor
  virtual void step_closed(std::int64_t step) = 0;
  virtual void failed(const Status& status) = 0;
};

class ActorCore {
 public:
  ActorCore(ActorSpec spec, Outbox& outbox, TraceSink* trace);

  /// Publishes initial tokens: version `step` for the programs in `readers`. The actor begins no act before.
  void begin(std::int64_t step, ProgramMask readers);
  /// A token has arrived on input port `port`; a reader of output port `port` has finished with `slot`.
  void arrive(std::int32_t port, const Token& token);
  void ack(std::int32_t port, std::int32_t slot);
  /// The executor has started act number `act`; has ended it. REQUIRES: started before done, each once for an act that
  /// was submitted.
  void started(std::uint64_t act);
  void done(std::uint64_t act, ActDone done);

  const ActorSpec& spec() const { return spec_; }
  const Ports& ports() const { return ports_; }
  bool idle() const { return running_.empty(); }
  /// Appends all that decides what this actor does from now on: see Ports::append_state.
  void append_state(std::int64_t origin, std::vector<std::int64_t>& out) const;
  /// Says in words what the actor does or waits for.
  std::string explain() const;

 private:
  struct Running {
    ActContext context;
    std::vector<std::uint32_t> sequence;  // per output port, once published
    bool started = false, done = false;
    bool initial = false;  // no act: it publishes what there is before the first
    ActDone result;
  };
  void pump();
  void finish(Running& running);
  void publish(Running& running, std::size_t port, bool same_stream);
  void record(const Running& running);
  /// The name of all tokens that an act publishes, in traces.
  std::uint64_t flow_of(std::uint64_t act) const;

  ActorSpec spec_;
  Ports ports_;
  Outbox& outbox_;
  TraceSink* trace_;
  std::map<std::uint64_t, Running> running_;  // by act number, oldest first
  bool begun_ = false;
  bool waiting_ = false;  // an act is submitted and has not started (PA-1)
  bool failed_ = false;
};

}  // namespace troupe::actors
