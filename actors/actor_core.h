// ActorCore: the life of an actor without CAF: ports, acts, and when to tell whom. The CAF shell
// (port_actor.h) and the simulator (runtime/token_game.h) run this same class.
//
//   PA-1  at most one act waits for its stream, so acts of one actor start in order;
//   PA-2  readers and writers on the actor's own stream are told when an act starts, all others when it
//         is done: the stream's order protects the former (what CUDA streams and events do);
//   PA-3  tokens go out in the order of acts, also where acts may finish out of order (the network); a failure
//         goes out at once, and nothing after it: the slots of all acts under way stay taken.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/act.h"
#include "devices/base/trace.h"

namespace troupe::actors {

/// One reader of an output port.
struct Reader {
  std::int32_t actor = 0;          ///< index within the place
  std::int32_t port = 0;
  std::uint16_t program = 0;
  bool same_stream = false;
};

/// The writer behind an input port.
struct Writer {
  std::int32_t actor = 0;          ///< index within the place; -1: the conductor
  std::int32_t port = 0;
  bool same_stream = false;
};

/// Everything the protocol needs to know of an actor. Plain data.
struct ActorSpec {
  std::string name;
  std::uint16_t program = 0;
  std::vector<InSpec> in;
  std::vector<OutSpec> out;
  std::vector<Writer> writers;                  ///< per input port
  std::vector<std::vector<Reader>> readers;     ///< per output port
  std::vector<std::int32_t> out_step;           ///< per output port: added to the act's step (a parameter: 1)
  std::vector<bool> initial;                    ///< per output port: a token before the first act
  std::vector<std::int32_t> microbatches;       ///< this place's, in order; empty: one act per step
  bool rounds = false;                          ///< those are numbers of rounds: which microbatch a token is of says nothing of its act
  std::vector<std::int32_t> turns;              ///< of its acts of a step among all `turns_per_step` of its stream; empty: none
  std::int32_t turns_per_step = 0;
  std::string trace_name;                       ///< unique in the job: names this actor's tokens in a trace
  bool closes_step = false;                     ///< tells the conductor when its last act of a step is done
};

/// How a core reaches the others. Calls only post: nothing comes back before the call returns.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void arrive(std::int32_t actor, std::int32_t port, const Token& token) = 0;
  virtual void ack(std::int32_t actor, std::int32_t port, std::int32_t slot) = 0;   ///< actor -1: the conductor
  virtual void submit(ActContext context) = 0;                                       ///< to the executor
  virtual void step_closed(std::int64_t step) = 0;
  virtual void failed(const Status& status) = 0;
};

class ActorCore {
 public:
  ActorCore(ActorSpec spec, Outbox& outbox, TraceSink* trace);

  /// Publishes initial tokens: version `step` for the programs in `readers`. From now on the actor acts.
  void begin(std::int64_t step, ProgramMask readers);
  void arrive(std::int32_t port, const Token& token);
  void ack(std::int32_t port, std::int32_t slot);
  void started(std::uint64_t act);
  void done(std::uint64_t act, ActDone done);

  const ActorSpec& spec() const { return spec_; }
  const Ports& ports() const { return ports_; }
  bool idle() const { return running_.empty(); }
  /// As Ports::tell: all that decides what this actor does from now on.
  void tell(std::int64_t origin, std::vector<std::int64_t>& out) const;
  /// What the actor is doing or waiting for, for people.
  std::string explain() const;

 private:
  struct Running {
    ActContext context;
    std::vector<std::uint32_t> sequence;   // per output port, once published
    bool started = false, done = false;
    bool initial = false;              // no act: it publishes what there is before the first
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
  std::map<std::uint64_t, Running> running_;   // by act number, oldest first
  bool begun_ = false;
  bool waiting_ = false;                       // an act is submitted and has not started (PA-1)
  bool failed_ = false;
};

}  // namespace troupe::actors
