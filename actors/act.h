// What an actor does in one act, apart from the protocol: Executor and Body.
//
// The shell (port_actor.h) knows tokens and slots only. An Executor runs an act somewhere (on a device
// stream, over the network) and says when it has started and when it is done. A Body is the host
// function of an act that runs on a stream.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/slots.h"
#include "devices/base/status.h"
#include "devices/device.h"

namespace troupe::actors {

/// What an exception says, as an error.
Status exception_status(const std::exception_ptr& exception);

/// One act with its place in the computation.
struct ActContext {
  Act act;
  std::uint16_t program = 0;
  std::int64_t step = 0;               ///< -1 for an actor without inputs: the message will tell
  std::int32_t microbatch = -1;        ///< index within the step, of the whole job; -1: once per step
  std::int32_t local = 0;              ///< index of this act among this actor's acts of the step
  std::int64_t turn = -1;              ///< on its stream: see TaskOrder
};

/// How an act ended.
struct ActDone {
  Status status;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t step = -1;              ///< where the executor learnt it (a receive); -1: as begun
  std::int64_t rows = -1;
  std::uint64_t flow_in = 0, flow_out = 0;   ///< where a message crossed places: its name at both ends
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs the act. `started`: from now on the stream's order protects it, so readers and writers on the
  /// same stream may be told. `done`: its outputs are written and its inputs read. Each is called once,
  /// in this order, from any thread.
  virtual void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) = 0;
};

/// Memory behind a port: slot i begins at base + i * slot_bytes.
struct PortMemory {
  std::byte* base = nullptr;
  std::int64_t slot_bytes = 0;
  std::byte* at(std::int32_t slot) const { return base + slot * slot_bytes; }
};

/// Numbers that a worker reports to the session.
struct Report {
  enum class Kind : std::uint8_t {
    value,                             ///< what the application reports, under a name of its own
    loss,                              ///< a microbatch's part of the loss that is minimised
    norm,                              ///< a parameter's gradient: [column, row lo, row hi, sum of squares] of tree nodes of its rows
    digest,                            ///< a parameter's bits, and whether all are finite (actors/optimizer.h); `name` is NAME|EXTENT
    shard,                             ///< a place's part of a checkpoint: see actors/writer.h
    saving,                            ///< how far it is: [stall in seconds, bytes of parameters, of moments] so far
    /// A parameter's gradient terms: [largest magnitude (inf and NaN too), microbatch + 1 of the first microbatch whose
    /// terms were not finite or beyond the range of their exact sum, 0: none].
    peak,
  };
  Kind kind = Kind::value;
  std::string name;
  std::int64_t step = 0;
  std::int32_t microbatch = -1;
  std::vector<double> values;
  std::vector<std::byte> bytes;        ///< shard only
};
using ReportSink = std::function<void(std::uint16_t program, Report)>;

/// The host function of an act.
class Body {
 public:
  virtual ~Body() = default;
  virtual Status run(const ActContext& context, Parallel& parallel) = 0;
};

/// Runs a Body on a stream.
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

/// What a step's update needs to know: the payload of a commit message begins with it. The exponents of the next step's
/// gradient sums follow, an int32 for each parameter of the plan.
struct Commit {
  double grad_scale = 1;               ///< clip factor
  double lr = 0;
  std::int64_t update = 1;             ///< 1-based number of the update (Adam's bias correction)
  bool void_step = false;              ///< void: the update changes nothing
};
/// Bytes of that payload in a plan of so many parameters.
inline std::int64_t commit_bytes(std::size_t params) { return static_cast<std::int64_t>(sizeof(Commit) + params * sizeof(std::int32_t)); }

}  // namespace troupe::actors
