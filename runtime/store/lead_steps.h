// LeadSteps: which call of its store a process makes next to take the lead of its job, to keep it and to claim
// generations, and what follows from each answer (CR-9 one leader, runtime/elastic/coordinator.h). Without store, clock
// or thread: Leadership makes the calls on its thread, a simulation (runtime/launch/sim_machines.h) in virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "devices/base/status.h"
#include "runtime/store/store.h"

namespace troupe::runtime {

struct LeadershipOptions {
  std::string run;           ///< for people: what the job is called in its store
  std::uint64_t leader = 0;  ///< Claim::leader of this process: a random number
  std::string record;        ///< Claim::record
  /// Takes the lead of the leader that has stored this revision, once the store has seen its lease end, and of no other
  /// one; 0: of the process that leads, or has led, as soon as its lease has ended.
  std::int64_t of_revision = 0;
  /// The job goes on for one whose leader is lost, as the user says: takes the lead where the store does not tell
  /// whether a leader lives.
  bool goes_on = false;
  /// For how long a leader that lives is waited for: it may have died a moment ago.
  std::int64_t patience_ms = 15'000;
  /// Asked of the claim that the store holds before the lead is taken. Error: it is of another run, of the same name.
  /// Null: of none.
  std::function<Status(const Claim&)> is_of_run;
};

/// Not thread-safe. A call and its answer may lie apart: calls of the first group may come between them.
class LeadSteps {
 public:
  /// Between two calls of a store that does not answer, and of one that says that a lease had ended.
  static constexpr std::int64_t retry_ms = 500, again_ms = 50;

  /// `store`: its name, for people.
  LeadSteps(LeadershipOptions options, std::string store) : options_(std::move(options)), store_(std::move(store)) {}

  // ---- taking the lead --------------------------------------------------------------------------------

  /// The process leads at `address`, once it has taken the lead.
  void begin(const std::string& address) { claim_ = {{}, options_.leader, address, options_.record}; }
  /// Whether this process takes the lead now, where the store holds `before`; false: it waits for the end of a lease.
  /// `tells`: Store::tells_of_loss. `patient`: it has waited for less than patience_ms. Error (`superseded`): another
  /// process leads the job.
  Expected<bool> may_take(const std::optional<StoredClaim>& before, bool tells, bool patient);
  /// Where may_take() says so: what is stored then, in place of `before`.
  const Claim& claim_to_take() const { return claim_; }
  void taken(std::int64_t revision) { revision_ = revision; }
  /// The newest generation that any process had claimed when may_take() was asked for the last time.
  std::uint32_t newest_generation() const { return newest_generation_; }

  // ---- what is wanted of a process that leads -----------------------------------------------------------

  /// The store is asked for this generation. A later call takes the place of one that is not answered.
  void ask(JobGeneration generation, const std::string& address);
  /// The job has begun under this leader: all its places have been ready.
  void went_on() { went_on_ = true; }
  /// The job has done a step under this leader, which counts in Claim::without_step no more.
  void made_step();
  /// The process leads at another address from now on. REQUIRES: it has claimed a generation.
  void moves(const std::string& address);
  /// It is time to renew the lease (Store::keep_every_ms).
  void keep() { keeps_ = true; }
  /// Looks once who leads; looks() until the store has answered a call that was made since, or has not.
  void look() { ++looks_; }
  bool looks() const { return looks_ > looked_; }
  /// Whether the store has said that this process leads, when it was read for the last time.
  bool is_sure() const { return sure_; }
  /// The store has said that this process does not lead, and who does is not known yet.
  bool doubts() const { return doubts_ || retakes_; }

  // ---- calls and answers ------------------------------------------------------------------------------

  struct Call {
    enum class Kind : std::uint8_t { none, read, advance, keep_lead };
    Kind kind = Kind::none;
    std::int64_t expected = 0;  ///< of `advance`, as what follows
    Claim next;
    bool takes_lead = false;
    std::uint64_t look = 0;  ///< the newest look() that its answer is for
  };
  bool has_call() const { return lost_.ok() && (retakes_ || looks() || doubts_ || asked_ || keeps_); }
  /// The call that is to be made next; none: there is nothing to do.
  Call next() const;
  /// The answers. They return how many ms pass before the next call.
  std::int64_t read(const Call& call, const Expected<std::optional<StoredClaim>>& now);
  std::int64_t advanced(const Call& call, const Expected<std::optional<std::int64_t>>& stored);
  std::int64_t kept(const Expected<bool>& kept);

  /// The newest generation that the store has given to this process; number 0: none yet.
  JobGeneration claimed() const { return claimed_; }
  /// Not ok (`superseded`): another process leads the job, which the text names. There are no further calls.
  const Status& lost() const { return lost_; }
  /// For people: another process leads, at `address`.
  Status led_by(const std::string& address) const;
  /// Whether the store forgets the job as this process ends in order. Not where it leads for one that was lost, and has
  /// not gone on: another machine may still do so.
  bool withdraws() const { return lost_.ok() && (options_.of_revision == 0 || went_on_); }
  const LeadershipOptions& options() const { return options_; }

 private:
  /// The store has said who leads, or could not be asked.
  void end_doubt(const Call& call) { doubts_ = retakes_ = false, looked_ = call.look; }

  const LeadershipOptions options_;
  const std::string store_;
  std::uint32_t newest_generation_ = 0;
  Claim claim_;               // as the store has it
  std::uint32_t before_ = 0;  // Claim::without_step of the leaders before this one
  bool made_step_ = false, went_on_ = false;
  std::int64_t revision_ = 0;   // of claim_
  std::optional<Claim> asked_;  // that is to be stored
  JobGeneration claimed_;
  Status lost_;
  bool keeps_ = false, sure_ = false;
  std::uint64_t looks_ = 0, looked_ = 0;  // that were asked for, and that have an answer
  bool doubts_ = false;                   // the store says that this process does not lead: reads who does
  bool retakes_ = false;                  // no other process does: takes the lead again
};

}  // namespace troupe::runtime
