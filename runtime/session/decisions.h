// Decisions: what a run does next. Which programs read which version, when a step is voted, what its commit begins,
// which microbatch of a feed goes out. No clock, no thread, no socket, and no number that a place computes: a Session
// carries the decisions out with messages, the token game with tokens (runtime/simulate/game.h), so that what the
// verifier plays is what a run decides.
//
//   SE-1  (one commit) a step commits once, after the vote of every place that votes;
//   SE-2  (versions) version v + 1 is made from version v and the commit of step v; step v + 2 begins after that
//         commit;
//   CO-6  (readers) where updates leave the version before whole, step s is committed only when the programs that read
//         versions before s have closed, but snapshots: a version whose reader a dead place has interrupted lies whole
//         at every place, and is read again. So it is where places keep copies (CO-7 copies, actors/copy.h), and there
//         the copies of versions up to s have closed as well;
//   SE-4  (snapshots) whether a version is snapshotted is decided once, with the commit that makes it, and only if
//         every place's arena has a free slot for it: each place holds the versions whose writers have not all closed.
//         The last version always is: no later version waits for its slot.
//
// A place votes when all its actors that close the step have ended it. A step is open from its begin until the last
// vote. Whether it is void (SE-5 void steps) is not decided here, but in sum_scale.h. At most feed_window microbatches
// of a feed are on their way to places that have not taken them into their slots.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/report.h"
#include "actors/token.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

/// Most microbatches of a feed that are sent and that a place has not taken into their slots.
inline constexpr std::size_t feed_window = 16;

/// A step of a program: one run of it. A step of the step program ends with a vote of the places, a commit and an
/// update; where several programs train it is that of all of them (Plan::begun_as).
struct ProgramStep {
  std::int32_t program = 0;
  std::int64_t step = 0;
  auto operator<=>(const ProgramStep&) const = default;
};

/// A feed of a plan.
struct PlanFeed {
  const PlanChannel* channel = nullptr;
  std::int32_t stage = 0;
};

/// What a Decisions asks, and what carries its decisions out. No function may call the Decisions that calls it.
class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  /// The programs besides the step program that are to read a version, each once. Asked once for each version. `last`:
  /// the run ends with it.
  virtual Expected<std::vector<std::int32_t>> readers(std::int64_t version, bool last) = 0;
  /// The arenas have no room for a snapshot of a version, which `readers` has named (SE-4).
  virtual void snapshot_skipped(std::int64_t version) = 0;
  /// Every place begins a step.
  virtual void go(ProgramStep step) = 0;
  /// A microbatch of a feed goes to the places that run it, each of which says later that it has taken it; returns
  /// them, as voters. `last`: the report that it has waited for; null where it waits for none. Error: ends the run.
  virtual Expected<std::vector<std::int32_t>> feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                                   const actors::Report* last) = 0;
};

/// By program and rank: whether the rank closes steps of the program.
std::vector<std::vector<bool>> votes(const Plan& plan);

/// Not thread-safe. Voters are numbered: a session's are its ranks, a game's the places that it plays.
class Decisions {
 public:
  /// Of a run of steps [first, last) of the step program. `votes`: by program and voter, whether the voter closes
  /// steps of the program. REQUIRES: `plan` has passed check_structure (verify.h); it and `sink` outlive this object.
  Decisions(const Plan& plan, std::int64_t first, std::int64_t last, std::vector<std::vector<bool>> votes,
            DecisionSink& sink);
  Decisions(const Decisions&) = delete;

  /// Returns the programs that read the first version. REQUIRES: called once; then begin_due().
  Expected<actors::ProgramMask> begin();
  /// The step that has all its votes and that no reader holds up (CO-6 readers); nullopt: none. Of a plan that trains.
  std::optional<std::int64_t> due_commit() const;
  /// The step that is due has been voted: commits it, and returns the programs that read the version that it makes.
  /// REQUIRES: its last vote is in; then begin_due().
  Expected<actors::ProgramMask> commit();
  /// Begins what the newest version allows: the programs that read it, then steps up to two ahead of the commits.
  /// Error: of DecisionSink::feed. A program that no voter closes stays open (the verifier refuses it).
  Status begin_due();

  bool open(ProgramStep step) const { return open_.count(step) > 0; }
  /// Error: the step is not open, the voter does not vote for it, or has done so; or an earlier step of the step
  /// program waits for it.
  Status check_vote(ProgramStep step, std::int32_t voter) const;
  /// Returns whether it was the step's last vote: the step is open no longer. REQUIRES: check_vote has passed.
  bool vote(ProgramStep step, std::int32_t voter);
  /// A report of a place that leads (Plan::leads): sends the next microbatch of each feed that waits for it. `step`: of
  /// the program whose actor reports. Error: it is not open.
  Status reported(ProgramStep step, const actors::Report& report);
  /// A voter has taken a microbatch of a feed of this program into its slot. Error: no such microbatch is on its way to
  /// it, or the step is not open: a voter takes all of a step before it closes it.
  Status taken(ProgramStep step, std::int32_t voter, const std::string& feed, std::int32_t microbatch);

  /// The oldest version with which the run can still end: steps that have begun are finished.
  std::int64_t earliest_end() const { return std::min(last_, committed_ + 2); }
  /// The run ends with this version. No effect where it ends earlier. REQUIRES: begun; version >= earliest_end().
  void end_with(std::int64_t version);
  std::int64_t last() const { return last_; }
  /// The newest version.
  std::int64_t committed() const { return committed_; }
  /// Nothing is under way.
  bool idle() const { return open_.empty(); }
  /// Whether a program that reads a version before this one is under way.
  bool reads_before(std::int64_t version) const;
  /// The oldest version that a program under way reads, but a snapshot or a copy; nullopt: none does.
  std::optional<std::int64_t> oldest_read() const;
  /// Lists the open steps, with the voters that have not closed them and what their feeds wait for; "" where idle().
  std::string waits_for() const;
  /// The first open step that misses a vote, and a voter that has not closed it; nullopt where there is none.
  std::optional<std::pair<ProgramStep, std::int32_t>> first_missing() const;
  /// Appends all that later decisions depend on, except what ends the run.
  void append_state(std::vector<std::int64_t>& out) const;

 private:
  /// A feed in an open step.
  struct Fed {
    PlanFeed feed;
    std::int32_t sent = 0;                                   ///< microbatches
    std::map<std::int32_t, std::set<std::int32_t>> untaken;  ///< by microbatch sent: voters that have not taken it
    /// By microbatch: reports that it waits for, whose next microbatch has not been sent. Of several places one may be
    /// ahead of those that run the microbatches before.
    std::map<std::int32_t, actors::Report> reports;
  };
  struct Open {
    std::vector<bool> closed;  ///< by voter
    std::int32_t missing = 0;  ///< voters that have not closed it
    std::vector<Fed> feeds;
  };
  /// Asks the sink which programs read a version. Leaves the snapshot out, and tells the sink, where admits_snapshot()
  /// is false (SE-4). Returns those programs, and the step program unless the run ends with the version.
  Expected<actors::ProgramMask> choose_readers(std::int64_t version);
  bool admits_snapshot(std::int64_t version) const;
  bool copies_up_to(std::int64_t version) const;
  Status go(ProgramStep step);
  /// The step as which one of a program is open.
  ProgramStep begun(ProgramStep step) const { return {plan_.begun_as(step.program), step.step}; }
  std::int32_t microbatches(std::int32_t program) const {
    return static_cast<std::int32_t>(plan_.programs[static_cast<std::size_t>(program)].spec.microbatches);
  }
  /// Sends the microbatches of a program's feeds that wait for no report, one step after the other, within the window;
  /// and those whose reports have come.
  Status feed_more(std::int32_t program);
  Status feed_one(Fed& fed, ProgramStep step, const actors::Report* last);

  const Plan& plan_;
  DecisionSink& sink_;
  std::int64_t last_, committed_;
  std::int64_t begun_;           // steps of the step program that have begun, and those before the first
  const bool recoverable_;       // Plan::recoverable
  const std::int32_t copy_;      // the program; -1: none
  const std::int32_t snapshot_;  // the program; -1: none
  const std::int32_t arena_slots_;
  std::vector<std::vector<bool>> votes_;  // by program, by voter
  std::vector<std::int32_t> voters_;      // by program
  std::vector<std::int32_t> due_;         // programs that read the newest version and have not begun
  std::map<ProgramStep, Open> open_;
};

}  // namespace troupe::runtime
