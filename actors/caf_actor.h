// CafActor: the class of CAF that actors derive from (what an actor does: actor_core.h). CAF's library is not
// instrumented: for ThreadSanitizer, CafActor says what a message orders.
#pragma once

#include <caf/event_based_actor.hpp>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

#include <utility>
#endif

namespace troupe::actors {

#ifdef __SANITIZE_THREAD__
/// By a message's address: what its sender did before happens before this message's handler, and no other's. By the
/// actor's address: all that threads did with the actor happens before it frees messages that it has not handled
/// (cleanup), and before it is destroyed. The order of an actor's turns on several threads ThreadSanitizer sees:
/// ActorScheduler's mutex lies between them.
class CafActor : public caf::event_based_actor {
 public:
  using caf::event_based_actor::event_based_actor;

  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* unit) override {
    __tsan_release(message.get());
    __tsan_release(this);
    caf::event_based_actor::enqueue(std::move(message), unit);
  }
  caf::invoke_message_result consume(caf::mailbox_element& message) override {
    __tsan_acquire(&message);
    return caf::event_based_actor::consume(message);
  }
  bool cleanup(caf::error&& reason, caf::execution_unit* unit) override {
    __tsan_acquire(this);
    return caf::event_based_actor::cleanup(std::move(reason), unit);
  }
  void intrusive_ptr_release_impl() override {  // the scheduler's reference, after the actor has run
    __tsan_release(this);
    caf::event_based_actor::intrusive_ptr_release_impl();
  }
  void on_destroy() override {
    __tsan_acquire(this);
    caf::event_based_actor::on_destroy();
  }
};
#else
using CafActor = caf::event_based_actor;
#endif

}  // namespace troupe::actors
