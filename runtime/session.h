// Session: the decisions of a run. Which programs read which version of the parameters, when a step is
// voted and commits, when the run is over. A plain class: what it says goes through a callback, so that
// processes, a simulation and tests drive the same code.
//
//   SE-1  a step commits once, after the vote of every place that votes;
//   SE-2  version v + 1 is made from version v and the commit of step v: nobody runs two commits ahead;
//   SE-3  numbers that many places report are combined in an order that no topology changes (NU-2);
//   SE-4  whether a version is snapshotted is decided once, with the commit that makes it, and only if every place's arena
//         has a free slot for it: each place holds those versions whose writers have not all closed. The last version
//         always is: no later version waits for its slot;
//   SE-5  whether a step is void (a gradient term is beyond the range of its exact sum) is decided once, after the vote
//         of every place, and for all of them: version v + 1 is then version v, with coarser exponents
//         (runtime/sum_scale.h).
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/control.h"
#include "runtime/plan.h"
#include "runtime/sum_scale.h"

namespace troupe::runtime {

/// One committed step, as the session saw it.
struct StepResult {
  std::int64_t step = 0;
  double loss = 0;                     ///< sum over microbatches in index order, over the divisor
  double grad_norm = 0;                ///< before clipping; 0 where the step is void
  double lr = 0;
  std::int64_t busy_ns = 0;            ///< of the compute streams, mean over the places
  bool void_step = false;              ///< no parameter is updated
  std::string void_parameter;       ///< a gradient term of it was beyond the range of its sum
  std::int32_t void_microbatch = -1;   ///< the first with such a term; -1: no place has told it
};

struct SessionOptions {
  std::int64_t first_step = 0;                   ///< version of the parameters that the places begin with
  /// Of these parameters; those without an entry begin at first_exponent. nullopt: as many updates as first_step; App::run
  /// then takes those of the checkpoint that the job begins from.
  std::optional<SumState> sums;
  std::int64_t steps = 1;                        ///< run steps [first_step, steps)
  double clip = 0;                               ///< global norm; 0: off
  double loss_divisor = 1;                       ///< tokens of a step: the loss that is told is divided by it. Gradients are not: the loss op's `scale` must agree
  std::function<double(std::int64_t step)> lr;   ///< of each step
  /// Programs besides training that read version v (made by v commits): evaluation, samples.
  std::function<std::vector<std::string>(std::int64_t version)> readers;
  std::function<void(const std::string& program, std::int64_t version)> on_started;   ///< one of these begins
  std::function<void(const StepResult&)> on_step;
  /// Whether a checkpoint of this version is wanted, if the plan can take any; and: there was no room for it.
  std::function<bool(std::int64_t version)> snapshot;
  std::function<void(std::int64_t version)> on_checkpoint_skipped;
  /// All places have written what they have of a version, or failed to: their Report::Kind::shard, by rank.
  /// `sums`: that version's.
  std::function<void(std::int64_t version, const std::vector<Report>&, const SumState& sums)> on_shards;
  /// How far a place is with that: a Report::Kind::saving.
  std::function<void(std::int64_t version, Rank place, const Report&)> on_saving;
  /// A program other than training has closed: its reports, ordered by (name, microbatch).
  std::function<void(const std::string& program, std::int64_t step, const std::vector<Report>&)> on_closed;
  /// The payload of microbatch m of a feed; `last` is the report of microbatch m - 1 that the feed waits for
  /// (see Graph::feed), null for the first and where it waits for none.
  std::function<std::vector<std::byte>(const std::string& feed, std::int64_t step, std::int32_t microbatch,
                                       const Report* last)> feed;
};

class Session {
 public:
  using Send = std::function<void(Rank, const ToWorker&)>;
  Session(const Plan& plan, SessionOptions options, Send send);

  /// All places are ready.
  void begin();
  /// What a worker says. Error: the job cannot go on (which place, which actor, why).
  Status handle(Rank from, const FromWorker& message);
  bool finished() const { return finished_; }
  /// The oldest version with which the run can still end: the steps that places have been told to begin are finished.
  std::int64_t earliest_end() const { return std::min(options_.steps, committed_ + 2); }
  /// The run ends with this version, with its digest and, where a snapshot of it is wanted, with that. No effect where the
  /// run ends earlier. REQUIRES: begun; version >= earliest_end().
  void pause_at(std::int64_t version);
  /// The error that handle returned was a loss, a norm, a gradient term or a last parameter that is not finite, or void steps in a row.
  bool diverged() const { return diverged_; }
  /// One hash over all logical parameters in name order, the same on any topology; empty before the end.
  const std::string& params_hash() const { return params_hash_; }
  /// The sums' state of the newest version.
  const SumState& sums() const { return sums_.state(); }
  /// The newest version: steps done, those before first_step included.
  std::int64_t committed() const { return committed_; }
  /// Who has not closed which step yet: what a process that cannot make progress says.
  std::string waits_for() const;

 private:
  /// A step of a program that some places have not closed yet.
  struct Open {
    std::map<Rank, Closed> places;                       ///< what each has said so far
    std::set<Rank> closed;
    std::map<const PlanChannel*, std::int32_t> fed;      ///< feeds that wait for reports: microbatches sent
  };
  using Key = std::pair<std::int32_t, std::int64_t>;     // program, step
  bool votes(std::int32_t program, Rank rank) const;
  void to_all(const ToWorker& message);
  /// The programs that read a version of the parameters, which is the newest.
  std::vector<std::int32_t> readers_of(std::int64_t version);
  /// SE-4.
  bool admits(std::int64_t version) const;
  static ProgramMask mask(const std::vector<std::int32_t>& programs);
  /// Those of them that run once on it: all but training.
  void start_readers(const std::vector<std::int32_t>& programs, std::int64_t version);
  void go(std::int32_t program, std::int64_t step);
  void feed(const PlanChannel& channel, std::int32_t stage, std::int64_t step, std::int32_t microbatch, const Report* last);
  /// Calls f(channel, stage) for each feed of a program.
  template <class F> void for_each_feed(std::int32_t program, F f) const;
  Status report(Rank from, const EarlyReport& message);
  Status close(Rank from, const Closed& message);
  Status complete(Key key, Open open);
  void close_program(std::int32_t program, std::int64_t step, std::vector<Report> reports);
  Status commit(std::int64_t step, const Open& vote);
  /// Of this microbatch; nullopt: of all.
  double loss_of(const Open& vote, std::optional<std::int32_t> only = {}) const;
  /// Norm of the gradient. Error: places leave rows out, or report them twice.
  Expected<double> norm_of(const Open& vote) const;
  /// By index of the plan's parameters. Error: a report that none of this plan can be.
  Expected<std::vector<StepTerms>> terms_of(const Open& vote) const;
  Status diverge(const std::string& why);
  Status digest(const Open& vote);
  void check_finished();

  const Plan& plan_;
  SessionOptions options_;
  Send send_;
  std::map<Key, Open> open_;
  std::vector<std::vector<bool>> votes_;      // per program, per rank
  std::int64_t committed_ = 0;                // steps
  SumScales sums_;                            // of the newest version
  std::map<std::int64_t, SumState> saved_sums_;   // of each version whose snapshot is under way
  const std::int32_t snapshot_, arena_slots_; // the program, -1 if there is none
  bool digested_ = false, finished_ = false, diverged_ = false;
  Status fed_;                                // what is wrong with what options.feed gave
  std::string params_hash_;
};

}  // namespace troupe::runtime
