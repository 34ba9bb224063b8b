// Session: a run, as the job's own process sees it. It carries the decisions out (decisions.h) with messages to the
// places, and combines what these report: losses, norms, exponents, digests. A plain class: it sends through a
// callback, so that processes, a simulation and tests drive the same code.
//
//   SE-3  (fixed order) numbers that many places report are combined in an order that no topology changes (NU-2
//         topologies);
//   SE-5  (void steps) whether a step of a program is void (a gradient term is beyond the range of its exact sum) is
//         decided once, after the vote of every place, and for all of them: version v + 1 of its parameters is then
//         version v, with coarser exponents (runtime/session/sum_scale.h). No other program's step is void by that.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/session/control.h"
#include "runtime/session/decisions.h"
#include "runtime/session/final_parameters.h"
#include "runtime/session/gradient_totals.h"
#include "runtime/session/plan_sums.h"
#include "runtime/session/reductions.h"

namespace troupe::runtime {

/// What a committed step is to a program that trains.
struct ProgramResult {
  std::string program;
  double loss = 0;       ///< sum over microbatches in index order, over the divisor
  double grad_norm = 0;  ///< before clipping; 0 where the step is void
  double lr = 0;
  bool void_step = false;             ///< no parameter of the program is updated
  std::string void_parameter;         ///< a gradient term of it was beyond the range of its sum
  std::int32_t void_microbatch = -1;  ///< the first with such a term; -1: no place has reported it
};

/// One committed step, as the session saw it: what it is to the program that trains; of several, to the first.
struct StepResult : ProgramResult {
  std::int64_t step = 0;
  std::int64_t busy_ns = 0;  ///< of the compute streams, mean over the places
  /// What actors and ops of the programs that train report (UserCall::report, Graph::report) but losses, ordered by
  /// (name, program, microbatch); under tp each place of a model axis has sent its own.
  std::vector<Report> reports;
  std::vector<ProgramResult> others;  ///< of the other programs that train, in the order of the graph
};

/// What a program that trains does with its gradients.
struct TrainingOptions {
  double clip = 0;  ///< global norm, of the program's parameters; 0: off
  /// Tokens of a step: ProgramResult::loss is divided by it. Gradients are not: the loss op's `scale` must agree.
  double loss_divisor = 1;
  std::function<double(std::int64_t step)> lr;  ///< of each step; null: always AdamW::lr of Graph::minimize
};

struct SessionOptions {
  std::int64_t first_step = 0;  ///< version of the parameters that the places begin with
  /// State of the gradient sums at the first version; parameters without an entry begin at first_exponent. nullopt: no
  /// entries and first_step updates; App::run then takes the state of the checkpoint that the job begins from.
  std::optional<SumState> sums;
  std::int64_t steps = 1;  ///< run steps [first_step, steps): none if steps <= first_step
  /// Of a plan that keeps copies (CompileOptions::keeps_copies): the first version and each whose number is a multiple
  /// of this is copied; 0: none is.
  std::int64_t copy_every = 0;
  // Of the programs that train, but those of `programs`: as in TrainingOptions.
  double clip = 0;
  double loss_divisor = 1;
  /// Parameters, by name, whose values JobResult::parameters has where the run has come to its last version, of a plan
  /// that trains; together at most final_parameters_bytes_max. A run without kernels (JobOptions::run_kernels) has
  /// none.
  std::vector<std::string> parameters;
  std::function<double(std::int64_t step)> lr;      ///< as in TrainingOptions
  std::map<std::string, TrainingOptions> programs;  ///< by name: of programs that train with options of their own
  /// Programs besides training that read version v (made by v commits): evaluation, samples. A job asks once for each
  /// version, of a plan that trains. Session::begin or Session::handle returns an error that names a program that the
  /// plan does not have, that is named twice, or that the session begins by itself: one that trains, "digest",
  /// "snapshot" and "copy".
  std::function<std::vector<std::string>(std::int64_t version)> readers;
  /// a program of `readers` begins
  std::function<void(const std::string& program, std::int64_t version)> on_started;
  /// All places have voted for a step, and its commit is about to be sent.
  std::function<void(std::int64_t step)> on_voted;
  /// each committed step, void ones too; not the step that diverges
  std::function<void(const StepResult&)> on_step;
  /// A program other than training has closed: its reports, ordered by (name, microbatch).
  std::function<void(const std::string& program, std::int64_t step, const std::vector<Report>&)> on_closed;
  /// A report of a program with a delay (Graph::delay), or with a feed that waits for reports, as soon as it comes:
  /// from the places that lead (Plan::leads). on_closed has it as well. A run of the program that begins again tells
  /// again.
  std::function<void(const std::string& program, const Report&)> on_report;
  /// Before each of on_started, on_step and on_closed of a job that recovers (JobOptions::recovers), which tells late:
  /// when it happened, by the clock of the job's process, and in which generation.
  std::function<void(std::int64_t at_ns, std::uint32_t generation)> on_event;
  /// The payload of microbatch m of a feed; `last` is the report of microbatch m - 1 that the feed waits for
  /// (see Graph::feed), null for the first and where it waits for none. Session::begin or Session::handle returns an
  /// error where the payload has not the size of the feed's tensor.
  std::function<std::vector<std::byte>(const std::string& feed, std::int64_t step, std::int32_t microbatch,
                                       const Report* last)>
      feed;
};

/// Ok where the numbers of `options` can be of a run of the plan. Error: `invalid`, names the option, its value and its
/// range; or a program of `options.programs` that the plan does not train.
Status check_numbers(const Plan& plan, const SessionOptions& options);

/// What a session asks, and tells, of the checkpoints of its run.
class SnapshotObserver {
 public:
  virtual ~SnapshotObserver() = default;
  /// Whether a checkpoint of this version is due. Asked once for each version, of a plan that can take any.
  virtual bool wants(std::int64_t version) const = 0;
  /// Whether it may be taken now: the disk keeps up. Not asked of the last version.
  virtual bool has_room() const { return true; }
  /// The places take it.
  virtual void begun(std::int64_t) {}
  /// It is due and is not taken: the arenas (SE-4 snapshots) or has_room() have no room for it.
  virtual void skipped(std::int64_t) {}
  /// A place's progress with its shard: a Report::Kind::saving.
  virtual void saving(std::int64_t version, Rank place, const Report&) { (void)version, (void)place; }
  /// All places have written their shards, or failed to: their Report::Kind::shard, by rank. `sums`: the state of the
  /// sums at that version.
  virtual void written(std::int64_t version, const std::vector<Report>& shards, const SumState& sums) = 0;
};

/// Not thread-safe. `send` must only post: it must not call the session again before it returns.
class Session final : private DecisionSink {
 public:
  using Send = std::function<void(Rank, const ToWorker&)>;
  /// `snapshots`: null: the run takes no checkpoints. REQUIRES: `plan` has passed check_structure (verify.h); it and
  /// `snapshots` outlive this object.
  Session(const Plan& plan, SessionOptions options, SnapshotObserver* snapshots, Send send);

  /// What people read instead of "worker 2", for rank 2.
  void name_places(std::function<std::string(Rank)> name) { name_ = std::move(name); }
  /// Sends BeginRun, and Go for the first steps. Error: the plan does not take what options.readers or options.feed has
  /// returned for them, or options.parameters. REQUIRES: all places are ready; called once.
  Status begin();
  /// Takes a worker's message. Error: the job cannot go on (which place, which actor, why).
  Status handle(Rank from, const FromWorker& message);
  bool finished() const { return finished_; }
  /// The version with which the run ends, since its actors have said so (UserCall::finish); nullopt: they have not all.
  std::optional<std::int64_t> ended_by_actors() const { return ended_; }
  /// The oldest version with which the run can still end: steps that have begun are finished.
  std::int64_t earliest_end() const { return decisions_.earliest_end(); }
  /// The run ends with this version, with its digest and, where a snapshot of it is wanted, with that. No effect where
  /// the run ends earlier. REQUIRES: begun; version >= earliest_end().
  void pause_at(std::int64_t version) { decisions_.end_with(version); }
  /// The run stops with this version, which its programs and snapshots do not read, but for a digest, which proves it
  /// whole at every place, and a copy. Then held() is true: nothing is under way, and no place is told to stop.
  /// REQUIRES: as pause_at; version is below SessionOptions::steps.
  void hold_at(std::int64_t version) {
    holds_ = true;
    decisions_.end_with(version);
  }
  bool held() const { return held_; }
  /// An error that handle has returned is one of divergence.h. The session commits nothing any more, and may go on to
  /// hear places whose programs read versions before the one that is known to be of no use.
  bool diverged() const { return useless_.has_value(); }
  /// After divergence: some of those programs (evaluations, samples, saves) have not closed.
  bool readers_left() const { return useless_ && decisions_.reads_before(*useless_); }
  /// One hash over all logical parameters in name order, the same on any topology; empty before the end.
  const std::string& params_hash() const { return params_hash_; }
  /// Those of options.parameters; empty before the end.
  const FinalParameters& parameters() const { return parameters_; }
  /// The sums' state of the newest version.
  const SumState& sums() const { return sums_.state(); }
  /// The sums' state of a version: the newest, or, where the plan keeps versions, its predecessor, or, where it keeps
  /// copies, one of the last two that were copied; null: of any other.
  const SumState* sums_of(std::int64_t version) const;
  /// The newest version of which a copy has closed at all places since the session began; -1: none has.
  std::int64_t newest_copy() const { return newest_copy_; }
  /// The oldest version that a program under way reads, but a snapshot or a copy; nullopt: none does.
  std::optional<std::int64_t> oldest_read() const { return decisions_.oldest_read(); }
  /// The newest version: steps done, those before first_step included, whether the plan trains or not.
  std::int64_t committed() const { return decisions_.committed(); }
  /// Lists the open steps, with the ranks that have not closed them and what their feeds wait for: for a run that makes
  /// no progress.
  std::string waits_for() const { return decisions_.waits_for(); }

 private:
  // DecisionSink
  Expected<std::vector<std::int32_t>> readers(std::int64_t version, bool last) override;
  void snapshot_skipped(std::int64_t version) override { snapshots_->skipped(version); }
  void go(ProgramStep step) override;
  Expected<std::vector<std::int32_t>> feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                           const Report* last) override;

  void to_all(const ToWorker& message);
  /// Adds the programs that options.readers names for a version.
  Status add_named(std::int64_t version, std::vector<std::int32_t>& out) const;
  bool is_copied(std::int64_t version) const {
    return copy_ >= 0 && (version == options_.first_step || version % options_.copy_every == 0);
  }
  Status take(Rank from, const FromWorker& message);
  Status report(Rank from, const EarlyReport& message);
  Status close(Rank from, const Closed& message);
  /// A step has all its votes; `places`: what they have reported, by rank.
  Status complete(ProgramStep step, std::vector<Closed> places);
  /// Tells that a program other than the step program has closed.
  void tell_closed(ProgramStep step, std::vector<Closed> places);
  /// Commits the step that has all its votes, unless a reader holds it up.
  Status commit_due();
  /// Takes out of a step's reports who has finished, and ends the run when all have.
  void take_finished(std::vector<Closed>& places);
  Status commit(std::int64_t step, const std::vector<Closed>& places);
  /// What the step is to number `index` of the programs that train; fills in its commit. Error: the job cannot go on.
  Expected<ProgramResult> judge(std::int64_t step, std::size_t index, const std::vector<Closed>& places,
                                actors::Commit& commit);
  /// Commits the step, sends every rank `commit` with its readers, and begins what is due. `result`: what on_step hears
  /// then; null: on_step is not called.
  Status commit(CommitStep commit, const StepResult* result);
  /// Keeps the state of the sums for a version that is snapshotted or copied.
  void keep_sums(actors::ProgramMask readers);
  /// Passes on what a check of divergence.h has found; an error makes `version`, and all later ones, of no use.
  Status diverges(Status found, std::int64_t version);
  void check_finished();

  const Plan& plan_;
  SessionOptions options_;
  SnapshotObserver* snapshots_;
  Send send_;
  std::function<std::string(Rank)> name_ = [](Rank rank) { return "worker " + std::to_string(rank); };
  const std::int32_t workers_, snapshot_, copy_;  // the programs; -1: the run takes no checkpoints, keeps no copies
  Decisions decisions_;
  const Reductions reductions_;
  GradientTotals gradients_;                            // of the step that is voted
  std::map<ProgramStep, std::vector<Closed>> reports_;  // of open steps: what each rank has reported so far
  std::optional<std::vector<Closed>> voted_;            // what the places have reported of the step that is to commit
  PlanSums sums_;                                       // of the newest version
  std::optional<SumState> sums_before_;                 // of the version before, where the plan keeps it
  std::map<std::int64_t, SumState> saved_sums_;         // of each version whose snapshot is under way
  std::map<std::int64_t, SumState> copied_sums_;        // of the last versions that were copied, one for each slot
  std::int64_t newest_copy_ = -1;
  bool finished_ = false, holds_ = false, held_ = false;
  std::set<std::pair<Rank, std::string>> unfinished_;  // actors that end the run, at each place, and have not said so
  std::optional<std::int64_t> ended_;
  std::optional<std::int64_t> useless_;  // the first version of no use, once the training has diverged
  Status refused_;                       // the error that the run has ended with in this process
  std::string params_hash_;
  std::vector<std::int32_t> wanted_;  // options_.parameters
  FinalParameters parameters_;
};

}  // namespace troupe::runtime
