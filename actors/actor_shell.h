// ActorShell: the CAF shell around ActorCore and an Executor. Every actor of a plan is an ActorShell: segments,
// exchanges, optimizers, writers and user-defined actors differ in their executor only.
#pragma once

#include <functional>
#include <memory>

#include "actors/actor_core.h"
#include "actors/caf_actor.h"
#include "actors/executor.h"

namespace troupe::actors {

// Messages. Local only: they never leave the process.
struct Wire {
  std::vector<caf::actor> actors;  ///< the place's actors, by index
  caf::actor conductor;
};
/// Publish initial tokens, act.
struct Begin {
  std::int64_t step = 0;
  ProgramMask readers = every_program;
};
struct Arrive {
  std::int32_t port = 0;
  Token token;
};
struct Ack {
  std::int32_t port = 0;
  std::int32_t slot = 0;
};
struct Started {
  std::uint64_t act = 0;
};
struct Done {
  std::uint64_t act = 0;
  ActDone done;
};
struct Explain {};  ///< the actor sends an Explanation
struct StepClosed {
  std::string actor;
  std::uint16_t program = 0;
  std::int64_t step = 0;
};
struct Failed {
  std::string actor;
  Status status;
};
struct Explanation {
  std::string text;
};

class ActorShell final : public CafActor, private Outbox {
 public:
  ActorShell(caf::actor_config& config, ActorSpec spec, std::shared_ptr<Executor> executor, TraceSink* trace);
  caf::behavior make_behavior() override;
  const char* name() const override { return "troupe.actor_shell"; }
  /// Actors refer to each other in circles: releases the references, so that the actors, their executors and the
  /// application's actors in them are destroyed.
  void on_exit() override;

 private:
  void arrive(std::int32_t actor, std::int32_t port, const Token& token) override;
  void ack(std::int32_t actor, std::int32_t port, std::int32_t slot) override;
  void submit(ActContext context) override;
  void step_closed(std::int64_t step) override;
  void failed(const Status& status) override;

  ActorCore core_;
  std::shared_ptr<Executor> executor_;
  std::vector<caf::actor> actors_;
  caf::actor conductor_;
};

/// Installs quiet handlers for down, error, unexpected message and exception: CAF's defaults print or end the actor. An
/// exception in a handler of the actor's messages ends the actor, after `failed` has been called with it.
void set_quiet_handlers(caf::scheduled_actor& self, std::function<void(const Status&)> failed);

}  // namespace troupe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Wire)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Begin)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Arrive)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Ack)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Started)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Explain)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::StepClosed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Failed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::Explanation)
