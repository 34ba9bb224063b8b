// One run of `troupe train`: its text, its plan, its session.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/job/guards.h"
#include "apps/job/interruption.h"
#include "apps/job/kept_decisions.h"
#include "apps/job/output_folder.h"
#include "apps/job/planning.h"
#include "apps/job/results.h"
#include "apps/job/resume.h"
#include "apps/lm/data.h"
#include "apps/lm/sampler.h"
#include "devices/base/give_up.h"
#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"
#include "runtime/launch/kept_plans.h"

namespace troupe::lm {

class Training {
 public:
  /// `resume`: the checkpoints to begin from, of which `point` is the first; none: begins with initial values.
  /// `decided`: of the run of which the memory is to be used; none: it decides itself.
  Training(const runtime::App& app, const JobArguments& arguments, Prepared prepared, std::optional<Resume> resume,
           std::optional<ResumePoint> point, std::optional<KeptDecisions> decided = {});
  /// Trains and writes the results; prints an error to stderr. Returns the exit code.
  int run();

 private:
  Status open(int& code);
  /// A run that is to go on, and has done all its steps: needs no machine. Nullopt: it is none.
  std::optional<int> end_if_done();
  Status check_machines(int& code) const;
  /// Waits for the agents of the run's machines, which say how many places each has: p_ is for these machines then.
  Status gather(int& code);
  /// Opens the text; returns the path of its plain file. A signal that comes meanwhile leaves no file that is partly
  /// unpacked: it is an error. On an error, `code` is the exit code for it, if it is not exit_output.
  Expected<std::string> open_text(int& code);
  /// The same; gives up where `give_up` says so, and leaves that error's exit code to the caller.
  Expected<std::string> open_corpus(const GiveUp& give_up, int& code);
  /// Makes the run begin at `point_`. Error: its configuration does not fit, or the results cannot be written; `code`
  /// says which.
  Status begin_at_point(int& code);
  /// Opens the run's files, where this process leads the run still. Error: it does not, or the store does not say so.
  Status open_results(std::int64_t first_step, bool goes_on, int& code);
  /// Makes the run go on with the newest step that agents have kept in memory; where they have none, or a newer
  /// checkpoint is there, as begin_at_point. REQUIRES: gather().
  Status begin_from_memory(int& code);
  /// Makes plan_ and what is known of it: the plan that was decided upon before, or where that does not fit or there is
  /// none, one for the machines in p_.
  Status plan(int& code);
  /// The plan of p_, as it was decided upon; `text`: of that, for people.
  Status take_plan(runtime::Plan plan, std::string text);
  /// The plan of which the agents have kept memory: that with which the run began, or to which it has gone on.
  Status take_kept_plan(const runtime::Plan& plan);
  runtime::KeptPlans& kept_plans();
  /// Why agents have not kept what this run can go on from, where it has written so many lines.
  std::string why_none_is_kept(std::int64_t lines);
  /// How many lines of steps the run has written.
  Expected<std::int64_t> lines_before() const;
  /// There is no memory that another plan would lose: makes one for the machines that have joined, if they take it.
  Status plan_anew(int& code);
  /// The run goes on with fewer machines than it had, and with the plan for these.
  bool takes_fewer() const { return a_.resumes_memory() && a_.replace == "never"; }
  std::vector<Machine> machines_joined() const;
  /// What tells this run from others, with the fingerprint of its text: a configuration.
  std::string identity() const;
  /// The same for agents that keep what the run has in memory: with its output folder.
  std::string kept_as() const;
  /// What a user whose training has diverged can do.
  std::string advice() const;
  Status with_advice(const Status& gave_up) const;
  runtime::JobOptions options();
  /// The job's plan on other stages. Thread-safe. Error: the model does not run so.
  Expected<runtime::Plan> replan(const runtime::StageWidths& dp) const;
  bool evaluates_at(std::int64_t version) const;

  const runtime::App& app_;
  const JobArguments& a_;
  Prepared p_;
  std::optional<KeptDecisions> decided_;  ///< of the run before: p_ and plan_ are as they say
  const std::int64_t steps_;
  FileStorage storage_{locks_of(a_)};
  std::optional<Resume> resume_;
  OutputFolder folder_;
  std::optional<ResumePoint> point_;
  std::shared_ptr<runtime::GatheredMachines> gathered_;  ///< where the run waits for agents before it begins
  std::shared_ptr<const runtime::KeptRun> kept_;         ///< that they have, and from which the run goes on
  std::optional<runtime::KeptPlans> kept_plans_;         ///< of plan_, as it was made
  std::shared_ptr<const runtime::Plan> wanted_;          ///< runtime::JobOptions::wanted
  std::int64_t first_step_ = 0;
  std::optional<Corpus> corpus_;               ///< the text, as it was when its fingerprint was taken
  std::string fingerprint_;                    ///< of the text
  std::string text_;                           ///< path of its plain file
  Status changed_data_;                        ///< the text is another one since then
  std::shared_ptr<runtime::Leadership> lead_;  ///< null: the run has no store
  Predicted predicted_;
  GuardChoice guards_;
  std::string ahead_;                 ///< on which machines, of schedule.ahead = auto and of guards, for people
  std::vector<std::string> choices_;  ///< of the plan, for the log
  Results results_;
  Sampler sampler_;
  runtime::Plan plan_;
  Interruption interruption_;  ///< while the text is opened
  /// From the first file of results to the last: what ends the run is in run.json before it ends the command. A job
  /// takes the signals meanwhile.
  std::optional<EndSignals> end_signals_;
};

}  // namespace troupe::lm
