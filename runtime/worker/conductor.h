// Conductor: the actor of a worker that speaks with the session. It writes the control channels (go,
// commit, feeds), collects what actors report, and sends Closed when a program's step is over at this place.
#pragma once

#include <atomic>

#include "actors/actor_shell.h"
#include "actors/caf_actor.h"
#include "actors/control_channel.h"
#include "actors/gradient_report.h"
#include "runtime/plan/plan.h"
#include "runtime/session/control.h"
#include "runtime/worker/session_order.h"

namespace troupe::runtime {

/// A control channel of the place, which the conductor writes.
struct ConductorChannel {
  PlanChannel::Kind kind = PlanChannel::Kind::go;  ///< go, commit or feed
  std::string name;                                ///< a feed's name
  std::int32_t program = 0;
  actors::ControlChannel control;
};

struct ConductorSpec {
  std::map<std::int32_t, ConductorChannel> channels;  ///< by local channel, as Ack::port names it
  OrderSpec order;
  /// per program: a feed waits for its reports, or microbatches read each other (Graph::delay): reports leave at once
  std::vector<bool> fed;
  std::shared_ptr<std::atomic<std::int64_t>> busy_ns;  ///< of the compute stream, ever growing
  std::size_t square_sums = 0, peaks = 0;              ///< that the place tells of the gradients of a step
  /// Called before any actor begins. May be empty.
  std::function<void(const BeginRun&)> on_begin;
  std::function<void(std::int64_t step)> on_commit;  ///< may be empty
  std::function<void(FromWorker)> send;
};

// Messages to the conductor, local only: of the session; a report of an actor; a peer that the transport has lost.
struct SessionSays {
  ToWorker message;
};
struct ActorReports {
  std::uint16_t program = 0;
  Report report;
};
struct PeerDown {
  Rank rank = 0;
  Status status;
};

/// Refuses messages of the session that are out of order (SessionOrder) with WorkerFailed.
class Conductor final : public actors::CafActor {
 public:
  Conductor(caf::actor_config& config, ConductorSpec spec);
  caf::behavior make_behavior() override;
  const char* name() const override { return "troupe.conductor"; }
  void on_exit() override { actors_.clear(); }  // actors refer to each other: see ActorShell

 private:
  void session_says(const ToWorker& message);
  void push(ConductorChannel& channel, const actors::Token& token, std::vector<std::byte> payload);
  void closed(const actors::StepClosed& m);
  void add(const actors::GradientPart& part);
  /// Sends a token to a reader of the channel; of a feed, tells the session that it is taken.
  std::function<void(const actors::Reader&, const actors::Token&)> deliver(const ConductorChannel& channel);

  ConductorSpec spec_;
  SessionOrder order_;
  std::vector<caf::actor> actors_;
  std::map<std::pair<std::int32_t, std::int64_t>, std::int32_t> closing_;
  struct Reported {
    std::vector<Report> reports;  // that leave when the step closes
    std::size_t bytes = 0;        // of all, those that have left among them
  };
  std::map<std::pair<std::int32_t, std::int64_t>, Reported> reports_;
  // of the step that trains: the next one's are made after its commit
  actors::GradientReport gradients_;
  std::int64_t busy_reported_ns_ = 0;
  std::size_t explanations_ = 0;
  std::string explained_;
};

}  // namespace troupe::runtime

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runtime::SessionSays)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runtime::ActorReports)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::runtime::PeerDown)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::GradientPart)
