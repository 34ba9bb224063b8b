// UserActor: what an application writes when an op is not enough. It has typed ports with SBP signatures, slots and
// credits like any other actor, on any worker.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/executor.h"
#include "kernels/op.h"

namespace troupe::actors {

/// What the factory of a user-defined actor gets: the actor's logical name, its place, the job's seed, its attributes.
struct UserActorInfo {
  std::string name;
  Rank rank = 0;
  std::uint64_t seed = 0;
  kernels::Attrs attrs;
};

/// One act of a user-defined actor. Views are this place's parts: see View::extent.
struct UserCall {
  std::vector<kernels::View> in;  ///< other actors read them too: the actor does not write into them
  std::vector<kernels::View> out;
  std::int64_t step = 0;
  std::int32_t microbatch = 0;
  std::int64_t samples_per_microbatch = 1;
  Parallel* par = nullptr;
  /// Sends numbers to the session under a name: Report::values. Of places that give the actor the same parts, the first
  /// one's report counts, so that an actor whose ports are B reports a microbatch once on any mesh; where a port is
  /// divided along a model axis, each place there reports of its part.
  std::function<void(std::string name, std::vector<double> values)> report;
  /// Likewise bytes, a text say: Report::bytes. More than report_bytes_max are an error of the act.
  std::function<void(std::string name, std::span<const std::byte> bytes)> report_bytes;
  /// The actor has nothing left to give at this place (its input has ended). When each actor that has the attribute
  /// "finishes" has said so wherever it acts, in step s at the latest, the run ends as it does after its last step:
  /// with step s + 1, which has begun. Until then it goes on to act, and fills its outputs; one that a job that
  /// recovers has made anew says it again. Without that attribute an error of the act.
  std::function<void()> finish;
};

/// What the outputs of an act follow from.
enum class ActsBy : std::uint8_t {
  call,    ///< from inputs, step and microbatch alone: it may be done again, by another object
  history  ///< from earlier acts of this object too: a job that recovers would not come out the same, and is refused
};

/// An application's actor: one object at each place that runs it.
class UserActor {
 public:
  virtual ~UserActor() = default;
  /// Called on the actor's stream, one act at a time: one for all actors of a place, and one of its own for an actor
  /// with the attribute "waits" (Graph::actor), which looks at call.par->stopping() while it waits. An error stops the
  /// job and names this actor; a job that recovers goes on once, and stops where the actor fails at the same step
  /// again.
  virtual Status act(UserCall& call) = 0;
};

/// Makes an actor of one kind; an error (a file that is missing, say) stops the job before it starts.
using UserActorFactory = std::function<Expected<std::unique_ptr<UserActor>>(const UserActorInfo&)>;
using UserActorSet = std::map<std::string, UserActorFactory>;

/// An argument of a user-defined actor: a port, an offset into its slot, and the view there.
struct UserOperand {
  std::int32_t port = 0;
  std::int64_t offset = 0;
  kernels::View view;
};

/// Runs a UserActor: resolves its operands to views of this act's slots, and calls it.
class UserBody final : public Body {
 public:
  UserBody(std::unique_ptr<UserActor> actor, std::vector<UserOperand> in, std::vector<UserOperand> out,
           std::vector<PortMemory> in_memory, std::vector<PortMemory> out_memory, std::int64_t samples_per_microbatch,
           ReportSink report, std::function<void(const ActContext&)> finished)
      : actor_(std::move(actor)), in_(std::move(in)), out_(std::move(out)), in_memory_(std::move(in_memory)),
        out_memory_(std::move(out_memory)), samples_(samples_per_microbatch), report_(std::move(report)),
        finished_(std::move(finished)) {}

  Status run(const ActContext& c, Parallel& parallel) override {
    UserCall call;
    for (auto o : in_) {
      o.view.data = in_memory_[o.port].at(c.act.in[o.port].token.slot) + o.offset;
      call.in.push_back(std::move(o.view));
    }
    for (auto o : out_) {
      o.view.data = out_memory_[o.port].at(c.act.out[o.port].slot) + o.offset;
      call.out.push_back(std::move(o.view));
    }
    call.step = c.step;
    call.microbatch = c.microbatch;
    call.samples_per_microbatch = samples_;
    call.par = &parallel;
    call.report = [&](std::string name, std::vector<double> values) {
      report_(c.program, {Report::Kind::value, std::move(name), c.step, c.microbatch, std::move(values), {}});
    };
    Status too_large;
    call.report_bytes = [&](std::string name, std::span<const std::byte> bytes) {
      if (bytes.size() > report_bytes_max)
        too_large = invalid("reports " + std::to_string(bytes.size()) + " bytes as '" + name + "': expected at most " +
                            std::to_string(report_bytes_max) + ", so send them in parts, or write a file");
      else
        report_(c.program,
                {Report::Kind::value, std::move(name), c.step, c.microbatch, {}, {bytes.begin(), bytes.end()}});
    };
    bool finished = false;
    call.finish = [&finished] { finished = true; };
    Status s = actor_->act(call);
    if (s.ok()) s = too_large;
    if (s.ok() && finished && !finished_)
      s = invalid(
          "calls finish(), which is for an actor with the attribute \"finishes\", of a program whose steps the run "
          "consists of: give it the attribute (1), or leave the call out");
    if (s.ok() && finished && !std::exchange(has_finished_, true)) finished_(c);
    // Of an application these say nothing of the job's peers, or of its checkpoints.
    const bool of_the_job = s.code() == Code::unavailable || s.code() == Code::damaged;
    return of_the_job ? Status(Code::io, s.message()) : s;
  }

 private:
  std::unique_ptr<UserActor> actor_;
  std::vector<UserOperand> in_, out_;
  std::vector<PortMemory> in_memory_, out_memory_;
  std::int64_t samples_;
  ReportSink report_;
  std::function<void(const ActContext&)> finished_;  // null: it may not
  bool has_finished_ = false;
};

}  // namespace troupe::actors
