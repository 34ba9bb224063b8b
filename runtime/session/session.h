// Session: the decisions of a run. Which programs read which version of the parameters, when a step is
// voted and commits, when the run is over. A plain class: it sends through a callback, so that
// processes, a simulation and tests drive the same code.
//
//   SE-1  a step commits once, after the vote of every place that votes;
//   SE-2  version v + 1 is made from version v and the commit of step v; step v + 2 begins after that commit;
//   SE-3  numbers that many places report are combined in an order that no topology changes (NU-2);
//   SE-4  whether a version is snapshotted is decided once, with the commit that makes it, and only if every place's
//         arena has a free slot for it: each place holds the versions whose writers have not all closed. The last
//         version always is: no later version waits for its slot;
//   SE-5  whether a step is void (a gradient term is beyond the range of its exact sum) is decided once, after the vote
//         of every place, and for all of them: version v + 1 is then version v, with coarser exponents
//         (runtime/session/sum_scale.h).
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "runtime/session/control.h"
#include "runtime/session/gradient_totals.h"
#include "runtime/session/reductions.h"
#include "runtime/session/sum_scale.h"

namespace troupe::runtime {

/// Most microbatches of a feed that the session has sent and that a place has not taken into their slots.
inline constexpr std::size_t feed_window = 16;

/// One committed step, as the session saw it.
struct StepResult {
  std::int64_t step = 0;
  double loss = 0;       ///< sum over microbatches in index order, over the divisor
  double grad_norm = 0;  ///< before clipping; 0 where the step is void
  double lr = 0;
  std::int64_t busy_ns = 0;           ///< of the compute streams, mean over the places
  bool void_step = false;             ///< no parameter is updated
  std::string void_parameter;         ///< a gradient term of it was beyond the range of its sum
  std::int32_t void_microbatch = -1;  ///< the first with such a term; -1: no place has reported it
};

struct SessionOptions {
  std::int64_t first_step = 0;  ///< version of the parameters that the places begin with
  /// State of the gradient sums at the first version; parameters without an entry begin at first_exponent. nullopt: no
  /// entries and first_step updates; App::run then takes the state of the checkpoint that the job begins from.
  std::optional<SumState> sums;
  std::int64_t steps = 1;  ///< run steps [first_step, steps): none if steps <= first_step
  double clip = 0;         ///< global norm; 0: off
  /// Tokens of a step: StepResult::loss is divided by it. Gradients are not: the loss op's `scale` must agree.
  double loss_divisor = 1;
  std::function<double(std::int64_t step)> lr;  ///< of each step; null: always AdamW::lr of Graph::minimize
  /// Programs besides training that read version v (made by v commits): evaluation, samples. Asked once for each
  /// version, of a plan that trains. Session::begin or Session::handle returns an error that names a program that the
  /// plan does not have, that is named twice, or that the session begins by itself: the training program, "digest" and
  /// "snapshot".
  std::function<std::vector<std::string>(std::int64_t version)> readers;
  /// a program of `readers` begins
  std::function<void(const std::string& program, std::int64_t version)> on_started;
  /// each committed step, void ones too; not the step that diverges
  std::function<void(const StepResult&)> on_step;
  /// Whether a checkpoint of this version is wanted; asked if the plan can take any.
  std::function<bool(std::int64_t version)> snapshot;
  /// A checkpoint that was wanted is not taken: the arenas have no room for it (SE-4).
  std::function<void(std::int64_t version)> on_checkpoint_skipped;
  /// All places have written their shards of a version, or failed to: their Report::Kind::shard, by rank.
  /// `sums`: the state of the sums at that version.
  std::function<void(std::int64_t version, const std::vector<Report>&, const SumState& sums)> on_shards;
  /// A place's progress with its shard of a version: a Report::Kind::saving.
  std::function<void(std::int64_t version, Rank place, const Report&)> on_saving;
  /// A program other than training has closed: its reports, ordered by (name, microbatch).
  std::function<void(const std::string& program, std::int64_t step, const std::vector<Report>&)> on_closed;
  /// The payload of microbatch m of a feed; `last` is the report of microbatch m - 1 that the feed waits for
  /// (see Graph::feed), null for the first and where it waits for none. Session::begin or Session::handle returns an
  /// error where the payload has not the size of the feed's tensor.
  std::function<std::vector<std::byte>(const std::string& feed, std::int64_t step, std::int32_t microbatch,
                                       const Report* last)>
      feed;
};

/// Not thread-safe. `send` must only post: it must not call the session again before it returns.
class Session {
 public:
  using Send = std::function<void(Rank, const ToWorker&)>;
  /// REQUIRES: `plan` has passed check_structure (verify.h) and outlives this object.
  Session(const Plan& plan, SessionOptions options, Send send);

  /// Sends BeginRun, and Go for the first steps. Error: the plan does not take what options.readers or options.feed has
  /// returned for them. REQUIRES: all places are ready; called once.
  Status begin();
  /// Takes a worker's message. Error: the job cannot go on (which place, which actor, why).
  Status handle(Rank from, const FromWorker& message);
  bool finished() const { return finished_; }
  /// The oldest version with which the run can still end: steps that have begun are finished.
  std::int64_t earliest_end() const { return std::min(options_.steps, committed_ + 2); }
  /// The run ends with this version, with its digest and, where a snapshot of it is wanted, with that. No effect where
  /// the run ends earlier. REQUIRES: begun; version >= earliest_end().
  void pause_at(std::int64_t version);
  /// An error that handle has returned is one of divergence.h. The session commits nothing any more, and may go on to
  /// hear places whose programs read versions before the one that is known to be of no use.
  bool diverged() const { return useless_.has_value(); }
  /// After divergence: some of those programs (evaluations, samples, saves) have not closed.
  bool readers_left() const;
  /// One hash over all logical parameters in name order, the same on any topology; empty before the end.
  const std::string& params_hash() const { return params_hash_; }
  /// The sums' state of the newest version.
  const SumState& sums() const { return sums_.state(); }
  /// The newest version: steps done, those before first_step included, whether the plan trains or not.
  std::int64_t committed() const { return committed_; }
  /// Lists the open steps, with the ranks that have not closed them and what their feeds wait for: for a run that makes
  /// no progress.
  std::string waits_for() const;

 private:
  /// A feed in a step of its program.
  struct Fed {
    const PlanChannel* channel = nullptr;
    std::int32_t stage = 0;
    std::int32_t sent = 0;                         ///< microbatches
    std::map<std::int32_t, std::int32_t> untaken;  ///< by microbatch sent: places that have not taken it
  };
  /// A step of a program that some places have not closed yet.
  struct Open {
    std::vector<Closed> places;  ///< by rank: what each has reported so far
    std::vector<bool> closed;    ///< by rank
    std::int32_t missing = 0;    ///< places that vote and have not closed it
    std::vector<Fed> feeds;
  };
  using Key = std::pair<std::int32_t, std::int64_t>;  // program, step
  bool votes(std::int32_t program, Rank rank) const;
  void to_all(const ToWorker& message);
  /// The programs that read the newest version. Keeps the sums' state of a version that is snapshotted.
  std::vector<std::int32_t> readers_of(std::int64_t version);
  /// Adds the programs that options.readers names for a version; the first name that cannot be one becomes refused_.
  void add_named(std::int64_t version, const std::vector<std::string>& names, std::vector<std::int32_t>& out);
  /// Whether the arenas have room for a snapshot of this version (SE-4).
  bool admits(std::int64_t version) const;
  static ProgramMask mask(const std::vector<std::int32_t>& programs);
  /// Begins the programs that run once on a version: all but training.
  void start_readers(const std::vector<std::int32_t>& programs, std::int64_t version);
  void go(std::int32_t program, std::int64_t step);
  /// Sends the microbatches of a program's feeds that wait for no report, one step after the other, while at most
  /// feed_window of a feed are not taken.
  void feed_more(std::int32_t program);
  /// Sends the next microbatch; `last`: the report that it waited for.
  void feed_one(Fed& feed, std::int64_t step, const Report* last);
  Status report(Rank from, const EarlyReport& message);
  Status taken(Rank from, const FeedTaken& message);
  Status close(Rank from, const Closed& message);
  Status complete(Key key, Open open);
  void close_program(std::int32_t program, std::int64_t step, std::vector<Report> reports);
  Status commit(std::int64_t step, const Open& vote);
  /// Passes on what a check of divergence.h has found; an error makes `version`, and all later ones, of no use.
  Status diverges(Status found, std::int64_t version);
  void check_finished();

  const Plan& plan_;
  SessionOptions options_;
  Send send_;
  const Reductions reductions_;
  GradientTotals gradients_;  // of the step that is voted
  std::map<Key, Open> open_;
  std::vector<std::vector<bool>> votes_;         // per program, per rank
  std::vector<std::int32_t> voters_;             // per program
  std::int64_t committed_ = 0;                   // steps
  SumScales sums_;                               // of the newest version
  std::map<std::int64_t, SumState> saved_sums_;  // of each version whose snapshot is under way
  const std::int32_t workers_;
  const std::int32_t snapshot_, arena_slots_;  // the program, -1 if there is none
  bool finished_ = false;
  std::optional<std::int64_t> useless_;  // the first version of no use, once the training has diverged
  Status refused_;  // the first payload of options.feed, or name of options.readers, that the plan does not take
  std::string params_hash_;
};

}  // namespace troupe::runtime
