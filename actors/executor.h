// Where an act runs and what it computes: Executor and Body.
//
// The shell (actor_shell.h) knows tokens and slots only. An Executor runs an act (on a device stream, over
// the network) and says when the act has started and when it is done. A Body is the host function of an
// act that runs on a stream.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/act.h"
#include "actors/report.h"
#include "devices/base/status.h"
#include "devices/device.h"

namespace troupe::actors {

/// Returns the exception's message as an error (Code::internal).
Status exception_status(const std::exception_ptr& exception);
/// The error of an act that has ended early because its stream is being quiesced (Parallel::stopping).
Status stopped();

/// Runs the acts of one actor.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Begins to run the act. Calls `started` when the stream's order protects the act from later tasks, so
  /// that the actor may notify readers and writers on the same stream (PA-2 notification), and `done` when the act has
  /// read its inputs and written its outputs. Calls each once, in this order, from any thread; an error is in
  /// ActDone::status.
  virtual void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) = 0;
};

/// Memory behind a port: slot i begins at base + i * slot_bytes.
struct PortMemory {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  /// Where the slots lie in memory of a device: where the host keeps what it reads and writes of them itself
  /// (exponents, versions), at the same offsets. Null: in the slots.
  std::byte* host = nullptr;
  bool whole_at_issue = false;  ///< the host can read its tokens when an act is issued: no work of a device makes them
  std::byte* at(std::int32_t slot) const { return base + slot * slot_bytes; }
  std::byte* words_at(std::int32_t slot) const { return (host ? host : base) + slot * slot_bytes; }
};

/// The host function of an act.
class Body {
 public:
  virtual ~Body() = default;
  /// Executes one act; `parallel` runs its loops on the stream's threads. An error or an exception fails the actor. A
  /// body that takes long returns stopped() between two of its pieces where parallel.stopping(), and never success with
  /// a piece left out: MarksVersion (version_word.h) would call what it wrote whole.
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

}  // namespace troupe::actors
