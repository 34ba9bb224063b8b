// What an actor does in one act, apart from the protocol: Executor and Body.
//
// The shell (port_actor.h) knows tokens and slots only. An Executor runs an act (on a device stream, over
// the network) and says when the act has started and when it is done. A Body is the host function of an
// act that runs on a stream.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/report.h"
#include "actors/slots.h"
#include "devices/base/status.h"
#include "devices/device.h"

namespace troupe::actors {

/// Returns the exception's message as an error (Code::internal).
Status exception_status(const std::exception_ptr& exception);

/// One act with its place in the computation.
struct ActContext {
  Act act;
  std::uint16_t program = 0;
  std::int64_t step = 0;         ///< -1 for an actor without inputs: ActDone::step will say it
  std::int32_t microbatch = -1;  ///< index within the step, of the whole job; -1: once per step
  std::int32_t local = 0;        ///< index of this act among this actor's acts of the step
  std::int64_t turn = -1;        ///< TaskOrder::turn; -1: the act has none
};

/// How an act ended.
struct ActDone {
  Status status;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t step = -1;  ///< from the header of a received message; -1: ActContext::step holds
  std::int64_t rows = -1;  ///< Token::rows of the outputs
  /// Trace id of a message received, sent: the same at both places. 0: none.
  std::uint64_t flow_in = 0, flow_out = 0;
};

/// Runs the acts of one actor.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Begins to run the act. Calls `started` when the stream's order protects the act from later tasks, so
  /// that the actor may notify readers and writers on the same stream (PA-2), and `done` when the act has read its
  /// inputs and written its outputs. Calls each once, in this order, from any thread; an error is in ActDone::status.
  virtual void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) = 0;
};

/// Memory behind a port: slot i begins at base + i * slot_bytes.
struct PortMemory {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  std::byte* at(std::int32_t slot) const { return base + slot * slot_bytes; }
};

/// The host function of an act.
class Body {
 public:
  virtual ~Body() = default;
  /// Executes one act; `parallel` runs its loops on the stream's threads. An error or an exception fails the actor.
  virtual Status run(const ActContext& context, Parallel& parallel) = 0;
};

/// Runs a Body on a stream. `priority` and `run`: see TaskOrder. `cost_s`: predicted seconds of an act (Task::cost_s).
class StreamExecutor final : public Executor {
 public:
  StreamExecutor(std::string name, Stream& stream, std::unique_ptr<Body> body, std::int32_t priority, std::uint32_t run,
                 double cost_s);
  void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) override;

 private:
  std::string name_;
  Stream& stream_;
  std::shared_ptr<Body> body_;
  std::int32_t priority_;
  std::uint32_t run_;
  double cost_s_;
};

/// What a commit says to the updates of a step. A commit's payload is a Commit, then the exponents of the next step's
/// gradient sums: an int32 for each parameter of the plan.
struct Commit {
  double grad_scale = 1;    ///< clip factor
  double lr = 0;            ///< learning rate
  std::int64_t update = 1;  ///< 1-based number of the update (Adam's bias correction)
  bool void_step = false;   ///< the update stores the exponents and changes nothing else
};
/// Bytes of a commit's payload in a plan of `params` parameters.
inline std::int64_t commit_bytes(std::size_t params) {
  return static_cast<std::int64_t>(sizeof(Commit) + params * sizeof(std::int32_t));
}

}  // namespace troupe::actors
