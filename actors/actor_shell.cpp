#include "actors/actor_shell.h"

#include <caf/sec.hpp>
#include <caf/send.hpp>

#include "actors/actor_scheduler.h"
#include "actors/executor.h"

namespace troupe::actors {

void set_quiet_handlers(caf::scheduled_actor& self, std::function<void(const Status&)> failed) {
  self.set_down_handler([](caf::down_msg&) {});
  self.set_error_handler([](caf::error&) {});
  self.set_default_handler(caf::drop);
  self.set_exception_handler([failed = std::move(failed)](std::exception_ptr& exception) -> caf::error {
    failed(exception_status(exception));
    return caf::sec::runtime_error;
  });
}

namespace {

/// Tells an actor of its act, from the thread that runs it, which then runs the actors that this concerns.
template <class Message>
void tell(const caf::actor& to, Message message) {
  const LendThread lent;
  caf::anon_send(to, std::move(message));
}

}  // namespace

ActorShell::ActorShell(caf::actor_config& config, ActorSpec spec, std::shared_ptr<Executor> executor, TraceSink* trace)
    : CafActor(config), core_(std::move(spec), *this, trace), executor_(std::move(executor)) {
  set_quiet_handlers(*this, [this](const Status& status) { this->failed(status); });
}

void ActorShell::on_exit() {
  actors_.clear();
  conductor_ = nullptr;
  executor_.reset();
}

caf::behavior ActorShell::make_behavior() {
  return {
      [this](Wire& wire) {
        actors_ = std::move(wire.actors);
        conductor_ = std::move(wire.conductor);
      },
      [this](const Begin& m) { core_.begin(m.step, m.readers); },
      [this](const Arrive& m) { core_.arrive(m.port, m.token); },
      [this](const Ack& m) { core_.ack(m.port, m.slot); },
      [this](const Started& m) { core_.started(m.act); },
      [this](Done& m) { core_.done(m.act, std::move(m.done)); },
      [this](const Explain&) { send(conductor_, Explanation{core_.explain()}); },
  };
}

void ActorShell::arrive(std::int32_t actor, std::int32_t port, const Token& token) {
  send(actors_[actor], Arrive{port, token});
}

void ActorShell::ack(std::int32_t actor, std::int32_t port, std::int32_t slot) {
  send(actor < 0 ? conductor_ : actors_[actor], Ack{port, slot});
}

void ActorShell::submit(ActContext context) {
  auto self = caf::actor_cast<caf::actor>(this);
  const auto number = context.act.number;
  executor_->submit(
      std::move(context), [self, number] { tell(self, Started{number}); },
      [self, number](ActDone done) {
        tell(self, Done{number, std::move(done)});
      });
}

void ActorShell::step_closed(std::int64_t step) {
  send(conductor_, StepClosed{core_.spec().name, core_.spec().program, step});
}

void ActorShell::failed(const Status& status) { send(conductor_, Failed{core_.spec().name, status}); }

}  // namespace troupe::actors
