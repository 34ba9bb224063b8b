// Coordinator: takes messages of places, exits of their processes, requests to end and the time; sends orders to the
// places; decides the job's status and exit code, and how it goes on when a place is lost. A plain class without clock,
// thread or socket: the job's own process (runtime/launch/job.h) and a simulation (runtime/launch/sim_cluster.h) bring
// it its events.
//
// A job that recovers goes on in its next generation when a place is lost: the places that live leave the generation
// (Abort) and say which versions lie whole with them (Quiesced), as the agent that reaps a process says of its memory;
// a new process takes the place of each that is dead, with the memory that it has left, and all enter the next one
// (Enter); the newest version of which they have every element together is the one to go on from (Connect). Where lost
// places are gone for good, or the job is asked to go on in another shape, it takes another plan between Quiesced and
// Enter, and places take their state from where the generation before has left it (decision 0031). Where it lacks
// places, it waits there for others to be added (decision 0036).
//
//   CR-1  (the culprit) a place that loses a peer says so, and most likely is not the culprit: for culprit_ns the
//         end of another place's process explains it;
//   CR-2  (progress) a job of which no place tells of progress for stall_s ends: its places are asked what their actors
//         wait for first, and have explain_ns to answer;
//   CR-3  (leaving) a place that has not left its generation quiesce_ns after it was told to is killed;
//   CR-4  (giving up) a job ends with exit_do_not_requeue at the third incident in a row without a commit in between
//         that is new (the job has come no further than before, nor goes on from a later version), where a place is
//         lost three times in one incident, and where an actor fails twice at the same step;
//   CR-5  (silence) a place of a job that recovers that says nothing for detect_ns is killed, as one that hangs; so is
//         one that names an act that is stuck. Before, the others say what they wait for, for an eighth of detect_ns at
//         most; so it is with CR-7. Where no place makes progress and no act runs, for detect_ns and times_longest as
//         long as ever before, the places are asked as in CR-2, and the job goes on in its next generation;
//   CR-6  (grace) where a job that recovers is asked to end, and has not left the steps that have begun behind it after
//         grace_ns, it leaves them as in an incident, and ends with the newest version that is whole;
//   CR-7  (cut links) where two places of a job that recovers say that they do not reach each other, and both reach the
//         coordinator, and there is no progress for half of detect_ns and four times as long as ever before (for half
//         of stall_s before two steps are done, and while places enter), one of the two is killed: the one that is in
//         more such pairs, then the one that was lost more often, then the higher number. Not while a place has been
//         silent for a third of detect_ns: a process that hangs may hold up what its peers say to each other. Where the
//         two are of two machines, one of these is set aside, chosen likewise, but before the number that without which
//         the others have all of the state. Until the next commit that is one incident, however often it is tried
//         again, for wait_for_places_ns at most;
//   CR-8  (end of the killed) a process that has not ended within five times detect_ns, or 30 seconds, of being killed
//         (a debugger, a driver or a disk holds it) is lost for good, and its memory with it: it may still write there;
//   CR-9  (one leader) of a job with a store, a generation is entered only when the store has given it to this job's
//         process; once another one leads the job, this one ends.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/elastic/generation_fence.h"
#include "runtime/elastic/guarded_versions.h"
#include "runtime/elastic/incident.h"
#include "runtime/elastic/inventory.h"
#include "runtime/elastic/job_result.h"
#include "runtime/elastic/job_state.h"
#include "runtime/elastic/pause.h"
#include "runtime/elastic/place_id.h"
#include "runtime/elastic/stragglers.h"
#include "runtime/elastic/told_once.h"
#include "runtime/search/shapes.h"
#include "runtime/session/job_checkpoints.h"

namespace troupe::runtime {

/// How the coordinator reaches the places.
class CoordinatorSink {
 public:
  virtual ~CoordinatorSink() = default;
  /// A message of a generation to these places. Must only post: it must not call the coordinator before it returns, but
  /// for end().
  virtual void send(std::span<const PlaceId> to, JobGeneration of, const ToWorker& message) = 0;
  /// `status` with the last lines of the log of a place's process.
  virtual Status with_last_log_lines(PlaceId of, const Status& status) = 0;
  /// The commit of a step is about to be sent, which makes this version: with these sums a job that begins anew goes on
  /// from it, where the process of this one is lost.
  virtual void remember(std::int64_t version, const SumState& sums) { (void)version, (void)sums; }
  /// Starts a process in a place whose process has ended, with the memory that it has left; `afresh`: with new memory.
  /// Tells it plan and rank, in this generation. Of a job that recovers; where none can be started, end() follows,
  /// or down() of all places of its machine.
  virtual void restart(PlaceId place, JobGeneration of, bool afresh) { (void)place, (void)of, (void)afresh; }
  /// Ends the process of a place, which does not do what it is told; down() follows. Of a job that recovers.
  virtual void kill(PlaceId place) { (void)place; }
  /// The same, of each place of a machine that does not reach another one: it is set aside, with all that it has, until
  /// it is to be tried again.
  virtual void set_aside(PlaceId place) { kill(place); }
  /// The job goes on with another plan, in this generation: gives each of its places, by rank, new memory, keeps what
  /// they and others have had, and tells them plan and rank. Of a job with CoordinatorOptions::replan, as what follows.
  /// Where there is no memory to be had, the same follows.
  virtual void reshape(const Plan& plan, std::span<const PlaceId> places, JobGeneration of) {
    (void)plan, (void)places, (void)of;
  }
  /// The job goes on with the plan that it has, in this generation, and `newcomers` have ranks among its places, which
  /// had none: gives each of them new memory, and tells it plan and rank. No other place is told of it.
  virtual void fill(const Plan& plan, std::span<const PlaceId> places, std::span<const PlaceId> newcomers,
                    JobGeneration of) {
    (void)plan, (void)places, (void)newcomers, (void)of;
  }
  /// Places of one machine have the same number, and open each other's memory.
  virtual std::int32_t machine_of(PlaceId place) { return (void)place, 0; }
  /// Machines that are reached, with or without places.
  virtual std::int64_t machines_reached() { return 1; }
  /// The name by which processes of its machine open the memory of a place: that which it had before reshape(), until
  /// settled().
  virtual std::string memory_of(PlaceId place) { return (void)place, std::string(); }
  /// All places have their state, and have voted: what they had before reshape() or fill() may go, and all that places
  /// have that the plan does not use.
  virtual void settled(std::span<const PlaceId> used) { (void)used; }
  /// The job has no use for a place any more: its process may end, if it has not.
  virtual void dismiss(PlaceId place) { (void)place; }
};

/// How the process of a place has ended.
struct ProcessEnd {
  enum class Kind : std::uint8_t {
    ordinary,
    suspect,  ///< it may have written where it should not have (SIGSEGV): its memory is not used
    refused,  ///< of itself: it has said what it could not do, or could not be executed
    worn,     ///< of itself, since it has left many generations (exit_worn): its place gets another one
    lost      ///< with its machine, which is not reached any more: its place does not come back
  };
  Kind kind = Kind::ordinary;
  Status how;                                        ///< "worker 1 (pid 12) was killed by signal 9 (Killed)"
  WholeVersions left = std::vector<std::int64_t>();  ///< in the memory of the place, which no process writes now
};

/// Where the state lies from which a job begins that goes on for one whose process is lost, by places of its own.
struct StateLeft {
  std::map<PlaceId, WholeVersions> by_place;  ///< of the plan with which the job begins
  std::string cause;                          ///< for people: what has become of the job before
};

struct CoordinatorOptions {
  SessionOptions session;
  std::vector<PlaceId> places;     ///< by rank; empty: rank r is place r
  int stall_s = 120;               ///< CR-2
  std::function<void()> on_ready;  ///< all places are ready: the first step begins
  /// A step is committed with another plan, or with places that have taken ranks since the last one: the job stays so.
  std::function<void()> on_settled;
  /// A request to end has been taken, and the job saves this version first.
  std::function<void(const std::string& why, std::int64_t version)> on_pause;
  bool recovers = false;  ///< REQUIRES of the plan that it keeps versions, or copies: then session.copy_every too
  /// CR-5, of a job that recovers: its places send Progress eight times in that time.
  std::int64_t detect_ns = 2'000'000'000;
  /// CR-6, of a job that recovers and saves checkpoints.
  std::int64_t grace_ns = 20'000'000'000;
  /// Nullopt: it begins with initial values, or from `restore`. Else with version session.first_step, which lies whole
  /// in memory, as after an incident.
  std::optional<StateLeft> left;
  /// A job whose places are on several machines, of which one alone has a part of the state, repeats so many steps at
  /// most when it is lost (CO-8 guards): guard_within_least to guard_within_most; 0: nothing is guarded. Of a plan that
  /// keeps versions.
  std::int64_t guard_within = 0;
  /// Steps beside the first in which a guard must be whole, at most: 0 or more.
  std::int64_t guard_window_most = std::numeric_limits<std::int64_t>::max();
  int spares = 0;       ///< places without a rank that a planned change does not dismiss
  std::string restore;  ///< folder of the checkpoint to begin from; empty: initial values
  /// A place whose process has ended gets another one; false: it is gone for good. REQUIRES `replan` then.
  bool replaces = true;
  /// For how long a job waits for places to be added which has lost some for good, with their machine: as many as it
  /// lacks, or, where it does not replace them, until machines_min are reached. 0: it waits for none, and one that
  /// replaces places ends.
  std::int64_t wait_for_places_ns = 0;
  std::int64_t machines_min = 1;  ///< a job that does not replace places goes on with so many machines, and no fewer
  /// What goes on where so many places are left, since others are lost for good. Error: no plan runs on so few. Null:
  /// the job keeps its shape. REQUIRES of the plan that it keeps versions or copies as the plan before, and has its
  /// parameters.
  std::function<Expected<ChosenPlan>(const Plan& before, std::int64_t places)> replan;
  /// Asks the job's store for a generation that is about to be entered (CR-9 one leader), as places leave the one
  /// before: claimed() follows once the store has given it, superseded() where another process leads the job. Null:
  /// no other process can.
  std::function<void(JobGeneration)> claim;
  /// Asked before places leave a generation for the next one, in which they open their inputs anew. Error: an input is
  /// no longer what it was, and the job ends with exit_data.
  std::function<Status()> inputs_unchanged;
  /// The job goes on after an incident, or has ended in it.
  std::function<void(const Incident&)> on_incident;
  /// Places that have processors of their own: where a plan has more, they wait for each other, and none is named slow.
  std::int64_t places_at_once = std::numeric_limits<std::int64_t>::max();
  /// A place has become slow, or is slow no more (Stragglers). It goes on all the same.
  std::function<void(const Straggler&)> on_straggler;
};

/// How long the coordinator waits, as parts of CoordinatorOptions::detect_ns (where it is 0, of its default), within
/// bounds: a process on a busy machine needs some time to answer, or to end, and nothing is gained by waiting for long.
struct CoordinatorWaits {
  static constexpr std::int64_t least_ns = 500'000'000, most_ns = 10'000'000'000, default_ns = 2'000'000'000;
  static constexpr std::int64_t start_least_ns = 20'000'000'000, killed_least_ns = 30'000'000'000;
  static constexpr std::int64_t return_least_ns = 10'000'000'000;
  explicit constexpr CoordinatorWaits(std::int64_t detect_ns) : budget_ns(detect_ns > 0 ? detect_ns : default_ns) {}
  std::int64_t budget_ns;
  std::int64_t culprit_ns = std::clamp(budget_ns * 7 / 20, least_ns, most_ns);  ///< CR-1
  std::int64_t explain_ns = std::clamp(budget_ns / 2, least_ns, most_ns);       ///< CR-2
  std::int64_t quiesce_ns = std::clamp(budget_ns / 4, least_ns, most_ns);  ///< CR-3; after the grace (CR-6) the least
  /// CR-5: a process that is started may say nothing for so long.
  std::int64_t start_ns = std::max(start_least_ns, 10 * budget_ns);
  /// For a machine that has a part of the state alone, and may only have been cut off: its agent waits as long.
  std::int64_t return_ns = std::max(return_least_ns, 5 * budget_ns);
  std::int64_t killed_ns = std::max(killed_least_ns, 5 * budget_ns);  ///< CR-8: large memory takes long to free
};
inline constexpr int incidents_in_a_row_max = 2;  ///< CR-4
inline constexpr int losses_in_incident_max = 2;  ///< CR-4, of one place

/// Not thread-safe. Times are of one clock that never goes back.
class Coordinator {
 public:
  /// `checkpoints`: null: the job saves none. It, the plan and `sink` outlive this object. REQUIRES: options.places is
  /// empty, or names as many places as the plan has ranks, each once.
  Coordinator(const Plan& plan, CoordinatorOptions options, JobCheckpoints* checkpoints, CoordinatorSink& sink);

  /// The job's generation begins. REQUIRES: before the first message.
  void enter(JobGeneration generation) { fence_.enter(generation); }
  JobGeneration generation() const { return fence_.generation(); }
  /// By rank of the plan that runs.
  const std::vector<PlaceId>& places() const { return options_.places; }
  const Plan& plan() const { return *plan_; }
  /// The rank that a place has in that plan; -1: it has none.
  Rank rank_of(PlaceId place) const;
  /// The job goes on for one whose process is lost, and these of its places are lost with their machines: it begins as
  /// after an incident, with another plan. REQUIRES: CoordinatorOptions::left, and before started().
  void begin_without(std::span<const PlaceId> lost);
  /// The processes of the places have been started, and know plan and rank: they enter.
  void started(std::int64_t now_ns);
  /// A message has come (CL-1 one generation).
  void heard(PlaceId from, const ControlFrame& frame, std::int64_t now_ns);
  /// A place has said what no message is, or what it must not say. A job that recovers kills its process, as one whose
  /// memory may be damaged (ProcessEnd::suspect); any other job ends.
  void distrust(PlaceId from, const Status& why, std::int64_t now_ns);
  /// The process of a place has ended, and everything that it has said was heard. Of processes that end together the
  /// lowest rank comes first. No effect on a place that has stopped.
  void down(PlaceId place, const ProcessEnd& ended, std::int64_t now_ns);
  /// After other events, and when it is wakes_ns(): takes what has become of checkpoints, and what time decides.
  void turn(std::int64_t now_ns);
  /// When turn() has something to do though nothing else has happened; the largest number: never. Without the time of
  /// CR-7 (cut links), which heart-beats bring about.
  std::int64_t wakes_ns() const;
  /// The coordinator's own process was stopped until now, and took no message: no place was silent.
  void resumed_after_stop(std::int64_t now_ns);

  /// The job may use a place that has a process, and no rank so far: a spare, or one that joins.
  void add_place(PlaceId place, std::int64_t now_ns) { all_.push_back(place), added_ns_[place] = now_ns; }
  /// Whether the job waits for this place, which was lost with its machine and has the state that its rank had.
  bool waits_for(PlaceId place) const {
    return waits_for_places() && phase_ == Phase::leaving && home_.plan == plan_ && rank_of(place) >= 0 &&
           gone_.count(place) > 0 && home_.suspect.count(place) == 0;
  }
  /// The machine of a place is reached again, and has kept its memory, in which this lies whole: a new process takes
  /// it. REQUIRES: waits_for(place).
  void comes_back(PlaceId place, const WholeVersions& left, std::int64_t now_ns);
  /// The job has no use for a place any more: its process may end. No effect on one that has a rank by now.
  void dismiss(PlaceId place) {
    if (rank_of(place) < 0) give_up(place);
  }
  /// Places that have a process, with or without a rank.
  std::vector<PlaceId> available() const;
  /// All places have been ready once: what fails now has not failed to start.
  bool has_begun() const { return begun_; }
  /// The job runs steps: it neither begins nor recovers.
  bool runs() const { return phase_ == Phase::running && !loss_ && !over_; }
  /// All places have left the last generation, and the job waits for others to be added before it enters the next one.
  bool waits_for_places() const { return place_wait_began_ns_.has_value(); }
  /// How many places the next generation takes, where lost ones are replaced.
  std::int64_t needs_places() const;
  /// The store has given the job this generation (CoordinatorOptions::claim).
  void claimed(JobGeneration generation) { claimed_ |= generation == fence_.generation(); }
  /// Another process leads the job, as `why` says.
  void superseded(const Status& why) {
    incident_.reset();  // the other one tells of it
    end(why, exit_superseded);
  }
  /// What the job does; of its places without their processes.
  JobState state() const;
  /// Error: the job does not recover, has not begun, is about to end, or to change.
  Status may_change() const;
  /// A planned change: the job goes on with this plan, once the steps that have begun are done, so that none is
  /// repeated; places that it does not use then are dismissed, but for the spares. Where a place is lost as the plan is
  /// entered, the job goes on with the plan before. `why`: what has asked for it. Error: as may_change(), or the job
  /// has fewer places than the plan.
  Status change(ChosenPlan chosen, const std::string& why, std::int64_t now_ns);
  /// A request to end: with a checkpoint of the step that is under way where the job saves any and no such request came
  /// before, else at once. `code`: with which exit code.
  void interrupt(const std::string& why, int code, std::int64_t now_ns);
  /// Ends the job; only the first call counts.
  void end(Status status, int code);

  bool over() const { return over_; }
  const Pause& pause() const { return pause_; }
  /// The newest version.
  std::int64_t committed() const { return session_->committed(); }
  /// Commits what all places have saved: a job that ends without its last checkpoint has failed. REQUIRES: over.
  void finish_checkpoints();
  /// What the job has come to. REQUIRES: over; called once.
  JobResult take_result();
  const Session& session() const { return *session_; }

 private:
  /// What the places do: leave the generation before, enter this one, run it.
  enum class Phase : std::uint8_t { leaving, entering, running };

  /// What the next turn recovers from.
  struct Loss {
    Rank culprit = -1;
    std::string actor;
    Status cause;
    std::optional<Incident> incident_before;  // that it adds to
  };

  /// Of a place's process, which is killed for it.
  enum class Fault : std::uint8_t {
    slow,     ///< CR-3 (leaving): at once. It may only have had much to do, and gets another process
    silent,   ///< once the others have said what they wait for, unless it speaks meanwhile
    corrupt,  ///< at once: it says what no place says, and its memory is not used
    apart,    ///< as `other`: its machine does not reach another one, and is set aside
    other     ///< once the others have said what they wait for
  };

  PlaceId place_of(Rank rank) const { return options_.places[static_cast<std::size_t>(rank)]; }
  /// "worker 2", by the number of the rank's place.
  std::string worker(Rank rank) const;
  /// It is killed for what it has said, of which nothing counts any more.
  bool is_corrupt(PlaceId place) const {
    const auto blamed = blamed_.find(place);
    return blamed != blamed_.end() && blamed->second.fault == Fault::corrupt;
  }
  /// The place is gone for good.
  void give_up(PlaceId place) { gone_.insert(place), sink_.dismiss(place); }
  bool is_gone(Rank rank) const { return gone_.count(place_of(rank)) > 0; }
  std::int32_t place_number(Rank rank) const { return rank < 0 ? -1 : static_cast<std::int32_t>(place_of(rank)); }
  /// Whether the job goes on when a place is lost now.
  bool recovers() const { return options_.recovers && !diverged_ && !session_->finished(); }
  /// Before, what fails has failed to start.
  bool have_started() const { return begun_ || all(ready_); }
  int checkpoint_code() const { return checkpoints_->diverged() ? exit_diverged : exit_checkpoint; }
  bool all(const std::set<Rank>& some) const { return static_cast<Rank>(some.size()) == plan_->workers(); }
  void begin_session(std::int64_t version, std::optional<SumState> sums);
  void progressed(std::int64_t now_ns);
  void take_progress(Rank from, const Progress& progress, std::int64_t now_ns);
  void send_all(const ToWorker& message) { sink_.send(options_.places, fence_.generation(), message); }
  void poll_checkpoints();
  void take_quiesced(Rank from, const Quiesced& quiesced);
  void take_ready(Rank from, const Ready& ready);
  void take_spans(Rank from, Spans& spans);
  void take_stopped(Rank from, const Stopped& stopped, std::int64_t now_ns);
  /// What the session hears.
  void decide(PlaceId from, const FromWorker& message, std::int64_t now_ns);
  /// A place has computed so long for a step.
  void take_busy(Rank from, std::int64_t busy_ns, std::int64_t now_ns);
  /// Whether a place says that its part of a checkpoint is written: that counts while a culprit is sought, too.
  bool is_saved(const FromWorker& message) const;

  /// From leaving to entering to running, as far as all places have said what that takes. Messages and ends of
  /// processes only say so: what else has come with them, a loss above all, is known before the job goes on.
  void enter_next_phase(std::int64_t now_ns);
  /// All places have an address: chooses the version with which the generation begins.
  void connect_places(std::int64_t now_ns);
  /// All places are ready.
  void run(std::int64_t now_ns);

  // recovery.cpp
  /// The next turn takes the job to its next generation. `actor`: that has failed; empty: a process has ended, or a
  /// link.
  void lose(Rank culprit, const std::string& actor, const Status& cause, std::int64_t now_ns);
  /// The process of a place that has a rank has ended, or is lost.
  void lose_place(PlaceId place, ProcessEnd::Kind how, const Status& cause, std::int64_t now_ns);
  /// All results are known: who is lost since the last turn has stopped.
  void forget_losses(std::int64_t now_ns);
  /// The memory of a place that has no rank is not used. Another place may have taken state from it in this generation,
  /// which is left then.
  void suspect_home(PlaceId place, const Status& why, std::int64_t now_ns);
  /// Goes on in the next generation, from all that was lost since the last turn.
  void recover(std::int64_t now_ns);
  /// All steps are done that had begun: goes on in the next generation, as asked.
  void begin_change(std::int64_t now_ns);
  /// Places leave their generation, and what is lost is started again or given up.
  void leave_generation(std::int64_t now_ns);
  /// When the steps that have begun must be done (CR-6 grace); the largest number: they may take their time.
  std::int64_t grace_ends_ns() const;
  /// Leaves the steps that have begun, and ends with the newest whole version (CR-6 grace).
  void end_early(const std::string& why, std::int64_t now_ns);
  /// Waits for the steps that have begun, if a change is due.
  void hold_for_change();
  /// Whether this incident is one too many (CR-4 giving up); then the job has ended.
  bool gives_up(const Loss& loss);
  /// A new process takes the place of a rank, which counts as one that has left its generation.
  void start_again(Rank rank, bool afresh, std::int64_t now_ns);
  /// After its grace a job waits no longer than it must.
  std::int64_t leaving_may_take_ns() const { return ends_early_ ? CoordinatorWaits::least_ns : waits_.quiesce_ns; }
  void kill_who_stay(std::int64_t now_ns);
  /// When the next silent place is to be killed, and kills those that are.
  std::int64_t silent_at_ns() const;
  /// For how long a process that is started may say nothing: before the job has begun nothing is lost by waiting.
  std::int64_t start_may_take_ns() const {
    return begun_ ? waits_.start_ns : std::max(waits_.start_ns, stall_ns() / 2);
  }
  void kill_who_are_silent(std::int64_t now_ns);
  void blame(Rank rank, Fault fault, const std::string& why, std::int64_t now_ns);
  bool is_blamed(Rank rank) const { return blamed_.count(place_of(rank)) > 0; }
  /// When the first of the killed must have ended, and gives up those that have not (CR-8 end of the killed).
  std::int64_t killed_end_at_ns() const;
  void give_up_who_outlive_kills(std::int64_t now_ns);
  /// Whether all others have answered, or had the time to.
  bool have_answered(std::int64_t now_ns) const;
  void kill_the_blamed(std::int64_t now_ns);
  std::vector<std::int32_t> place_numbers() const;
  /// Whether the job has done a whole step, its update included: then it is known how long it may be quiet.
  bool knows_a_step() const { return session_->committed() >= options_.session.first_step + 2; }
  /// For how long the job may make no progress before its places are asked what they wait for.
  std::int64_t quiet_ns() const;
  /// The same, where no act is known to run. A link that is cut is looked for after half of it.
  std::int64_t known_quiet_ns() const;
  std::int64_t stall_ns() const { return std::int64_t{options_.stall_s} * 1'000'000'000; }
  /// Kills a place that peers do not reach, though it lives (CR-7 cut links).
  void kill_who_is_cut_off(std::int64_t now_ns);
  using Cuts = std::map<Rank, std::set<Rank>>;  // by rank: peers that it does not reach, nor they it
  /// Which machine is set aside where these cuts are between machines; -1: they are not.
  std::int32_t machine_cut_off(const Cuts& cuts);
  /// In how many incidents a place was lost.
  std::int64_t times_lost(PlaceId place) const;
  /// For how long there is no progress before links that are cut are looked for.
  std::int64_t cut_shows_after_ns() const;
  /// Machines did not reach each other, and there was no commit since.
  bool are_apart() const { return apart_ && session_->committed() <= apart_->committed; }
  /// The places have answered what they wait for, or had the time to.
  void take_stall(std::int64_t now_ns);
  void enter_places(std::int64_t now_ns);
  /// When a place that has said nothing, since it had no rank, counts as heard: it may only just have started.
  std::int64_t spare_heard_ns(PlaceId place, std::int64_t now_ns) const;
  /// Whether the next generation cannot be entered before places are added.
  bool lacks_places(std::int64_t now_ns) const;
  void wait_for_places(std::int64_t now_ns);
  /// All places have left, and the store has not given the next generation yet (CR-9 one leader).
  void wait_for_claim(std::int64_t now_ns);
  /// For how long a job waits for its store.
  std::int64_t claim_may_take_ns() const {
    return pause_.asked() ? waits_.return_ns : std::max(stall_ns(), options_.wait_for_places_ns);
  }
  /// Goes on with another plan, where a change is due or places are gone.
  Status replan(std::int64_t now_ns);
  /// A place that has a rank has left these versions; `suspect`: in memory that is not used.
  void note_left(PlaceId place, const WholeVersions& versions, bool suspect);
  std::set<std::int32_t> machines_of(std::span<const PlaceId> places) const;
  /// Whether what lies on the machines of these places is all that the job's state is.
  bool have_state(std::span<const PlaceId> places) const { return have_state(machines_of(places)); }
  bool have_state(const std::set<std::int32_t>& machines) const;
  /// The same, of what is whole there, in memory that is used: by which is known what the job can go on from.
  enum class StateOn : std::uint8_t { none, guarded, held };
  StateOn state_on(const std::set<std::int32_t>& machines) const;
  /// Whether a job that goes on with places on these machines has all the state that it needs.
  using Keeps = std::function<bool(const std::set<std::int32_t>& machines)>;
  /// Where only places are gone whose memory is lost, others take their ranks, and the plan stays: the rest keep the
  /// memory that they have, which is where the state lies if one more is lost. False: it is not so, or places guard
  /// state for each other, in an order that depends on who they are.
  bool fill(std::span<const PlaceId> left, const Keeps& keeps, std::int64_t now_ns);
  /// Which place of `left` runs which rank of a plan: as seat(), but where that loses state which the machines of
  /// `left` have, each machine that is needed for it gets a rank, if there are as many.
  std::vector<PlaceId> seats(const Plan& next, std::span<const PlaceId> left, const Keeps& keeps) const;
  /// Of the shapes that were weighed the fastest with which no state is lost; where there is none, the fastest.
  ChosenPlan with_state(ChosenPlan fastest, std::span<const PlaceId> left, const Keeps& keeps) const;
  /// What lies where the state of the job is, on these machines: those that have places of the plan, as what others
  /// have no place sends.
  Inventory inventory(const std::set<std::int32_t>& machines) const;
  /// The newest version that the places hold together, none of whose predecessors is still read; nullopt: there is
  /// none.
  std::optional<std::int64_t> newest_held(const Inventory& inventory) const;
  /// Where places find what they lack of a version.
  StateHome home_of(std::int64_t version, const Inventory& inventory);
  /// What the places guard for each other in the generation that begins.
  GuardRule guard_rule() const;
  /// The newest version that is guarded where the state of the job is; nullopt: none is.
  std::optional<GuardedVersion> guarded() const;
  /// By rank of the plan of which the state is: in whose memory the guarded part lies, of those that are on these
  /// machines; -1: it has none. Nullopt: not all is there.
  std::optional<std::vector<Rank>> keepers(const GuardedVersion& guarded, const std::set<std::int32_t>& machines) const;
  /// Where places find that version.
  StateHome home_of(const GuardedVersion& guarded, const std::vector<Rank>& keepers);
  /// `place_of` names the place in whose memory the part of a rank is; nullopt: it is lost.
  StateHome home_with(const std::function<std::optional<PlaceId>(Rank)>& place_of);
  /// All places have their state, in memory that tells of it.
  void settle();
  /// The version with which the generation begins, and where it lies.
  Connect choose_state(std::int64_t now_ns);
  /// The job has been asked to end, and ends with what it has saved already.
  void end_as_saved(const SavedVersion& saved, std::int64_t now_ns);
  /// One more incident (CR-4 giving up).
  void count_in_a_row();
  /// A place tells of what it has done.
  void acted(std::int64_t now_ns);
  void close_incident();

  const Plan* plan_;  // that runs, or is entered
  CoordinatorOptions options_;
  const CoordinatorWaits waits_;
  JobCheckpoints* checkpoints_;
  CoordinatorSink& sink_;
  GenerationFence fence_;
  ToldOnce told_;
  SnapshotObserver* held_checkpoints_;  // as the sessions see them; null: none
  JobResult result_;
  bool over_ = false;
  Pause pause_;
  std::int64_t last_heard_ns_ = 0;
  std::optional<Status> diverged_;  // what the job ends with once the readers of good versions have closed

  // Of a job that goes on with other plans. All of them: sessions and places refer to them.
  std::vector<std::shared_ptr<const Plan>> plans_;
  std::vector<PlaceId> all_;                  // that it has ever had
  std::map<PlaceId, std::int64_t> added_ns_;  // when add_place() was called
  std::set<PlaceId> gone_, told_plan_;        // the second: that have ever had a rank
  struct Change {
    ChosenPlan chosen;
    std::string why;
  };
  std::optional<Change> change_;                     // that is due
  std::string shape_;                                // since the last change
  bool ends_early_ = false;                          // CR-6 (grace)
  bool planned_ = false;                             // a change is under way: places that it does not use are dismissed
  std::optional<std::int64_t> place_wait_began_ns_;  // the job waits for places
  bool told_of_wait_ = false;
  bool claimed_ = true;                              // the store has given the generation, or need not
  std::optional<std::int64_t> claim_wait_began_ns_;  // the job waits for its store
  /// Where the state lies: with the places of the last generation that has settled.
  struct {
    const Plan* plan;
    std::vector<PlaceId> places;            // by rank
    std::map<PlaceId, WholeVersions> left;  // by those that have left that generation since, or died
    std::set<PlaceId> suspect;              // whose memory is not used
    std::set<PlaceId> bare;                 // that have taken a rank since the last commit, and may have no state
  } home_;

  GuardedVersions guards_;                        // of the generation
  std::optional<GuardedVersion> guarded_before_;  // as the last generation was left, until this one has made a version
  std::set<PlaceId> unguarded_;                   // whose memory is new since

  // Of the generation.
  Phase phase_ = Phase::entering;
  std::unique_ptr<Session> session_;  // until all places have an address: that of the generation before
  std::int64_t begins_with_ = 0;      // the version with which the session begins
  bool begun_ = false;                // a session has begun
  std::set<Rank> quiesced_, ready_, stopped_;
  std::map<Rank, std::string> addresses_;
  bool connected_ = false;                        // the places have been told the addresses
  std::optional<std::int64_t> explain_until_ns_;  // the places have been asked
  std::int64_t explain_quiet_ns_ = 0;             // since there was no progress for so long
  std::map<Rank, std::string> explanations_;
  struct Suspicion {
    PlaceId place{};
    Status status;
    std::int64_t until_ns = 0;
    bool of_itself = false;  // its process says what is wrong with it, and is about to end
  };
  std::optional<Suspicion> suspicion_;          // CR-1
  std::optional<std::int64_t> leave_until_ns_;  // CR-3, from the first turn on after places were told to leave

  // Of the places' processes, by rank.
  struct Pulse {
    std::int64_t heard_ns = 0, acts = 0;
    bool busy = false;
    bool starts = true;         // it has said nothing yet
    std::vector<Rank> unheard;  // peers whose pings do not come through
  };
  std::vector<Pulse> pulses_;
  std::optional<Stragglers> stragglers_;  // of the plan below
  const Plan* watched_plan_ = nullptr;    // null: the job has not begun
  std::int64_t longest_quiet_ns_ = 0;     // without progress, while the job ran
  struct Blame {
    Fault fault = Fault::other;
    std::string why;
    std::int64_t killed_ns = -1;  // when it was killed; -1: it was not yet
    std::string report;           // who waited for what
  };
  std::map<PlaceId, Blame> blamed_;
  std::optional<std::int64_t> answer_until_ns_;  // the others have been asked, since some are to be killed
  std::map<Rank, std::string> answers_;
  struct Apart {
    std::int64_t since_ns = 0, committed = 0;
    bool told = false;  // that the job waits
  };
  std::optional<Apart> apart_;  // since when machines did not reach each other, the last time

  // Of incidents.
  std::optional<Incident> incident_;
  std::optional<Loss> loss_;
  bool checkpoint_rejected_ = false;          // by places that are about to end, since they could not restore it
  std::map<PlaceId, ProcessEnd::Kind> down_;  // places with a rank whose process has ended and is not started anew yet
  int in_a_row_ = 0;                          // incidents without a new commit in between
  int generations_ = 0;                       // that the open incident has taken
  std::int64_t furthest_ = -1;                // the most that was committed at an incident
  std::int64_t last_version_ = 0;             // from which the job went on after the last incident
  std::pair<std::string, std::int64_t> last_failed_;  // actor, and the step at which it did
};

}  // namespace troupe::runtime
