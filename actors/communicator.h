// Communicator: the executor that runs an exchange (a boxing) of one place, act by act.
#pragma once

#include <memory>
#include <vector>

#include "actors/act.h"
#include "comm/exchange.h"

namespace troupe::actors {

struct CommunicatorSpec {
  comm::Header header;                  ///< job, generation, program, channel; the rest is set per act
  std::vector<comm::Route> routes;
  std::vector<std::int32_t> route_of;   ///< per local act of a step: index into routes
  std::vector<std::int32_t> microbatches;   ///< per local act; empty: one act per step
  std::int64_t acts_per_run = 1;        ///< microbatches of the program: numbers messages the same at both ends
  std::vector<PortMemory> in;           ///< none: this place only receives
  bool has_out = false;
  PortMemory out;
  std::vector<std::byte*> staging;      ///< one per act that may be in flight
  std::int32_t priority = 0;
};

class Communicator final : public Executor {
 public:
  Communicator(CommunicatorSpec spec, comm::Transport& transport, Stream& stream, const Clock& clock);
  void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) override;

 private:
  struct Shared;                        // outlives the executor while acts are in flight
  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::actors
