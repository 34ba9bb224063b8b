// One act: an actor takes a token from each input that is due, runs once, and fills a slot of each output. Some acts
// take turns: they begin in the order of the plan's pipeline (PlanActor::takes_turns). When an act may begin: SL-2
// (readiness) of slots.h. Where it runs: executor.h. Who is notified when: actor_core.h.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/token.h"
#include "devices/base/status.h"

namespace troupe::actors {

/// One act: which tokens it reads and which slots it writes.
struct Act {
  struct In {
    Token token;
    bool last = false;  ///< ack after this act
    bool read = true;   ///< false: the port takes no part in this act
  };
  struct Out {
    std::int32_t slot = 0;
    bool first = false;   ///< first act into this slot
    bool last = false;    ///< publish after this act
    bool unread = false;  ///< no reader gets it
  };
  std::uint64_t number = 0;  ///< counts the acts of this actor
  std::vector<In> in;
  std::vector<Out> out;
};

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

}  // namespace troupe::actors
