// Communicator: the executor that runs one place's part of an exchange, act by act.
#pragma once

#include <memory>
#include <vector>

#include "actors/executor.h"
#include "comm/exchange.h"

namespace troupe::actors {

/// An exchange of one place, bound to its memory.
struct CommunicatorSpec {
  comm::Header header;  ///< job, generation, program, channel; each act sets the other fields
  std::vector<comm::Route> routes;
  std::vector<std::int32_t> route_of;      ///< per local act of a step: index into routes
  std::vector<std::int32_t> microbatches;  ///< per local act; empty: one act per step
  /// MicrobatchOwners::acts_of_job: both ends number message m of run r as r * acts_per_run + m
  std::int64_t acts_per_run = 1;
  std::vector<PortMemory> in;  ///< empty: this place only receives
  bool has_out = false;
  PortMemory out;
  std::vector<std::byte*> staging;  ///< one per act that may be in flight; further acts wait for one
  std::int32_t priority = 0;
  double adding_s = 0;  ///< predicted: of one act's adding
};

/// Starts acts in the order of `submit`, as staging memory permits; they may end out of order. Thread-safe. REQUIRES,
/// for that order: a caller submits an act when the act before has started (PA-1 one waits).
/// `transport`, `stream` and `clock` outlive its acts.
class Communicator final : public Executor {
 public:
  Communicator(CommunicatorSpec spec, comm::Transport& transport, Stream& stream, const Clock& clock);
  void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) override;

 private:
  struct Shared;  // outlives the executor while acts are in flight
  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::actors
