// From the command line to a plan: configuration and mesh checked together, the model compiled, its step predicted.
#pragma once

#include <optional>

#include "apps/costs/find_costs.h"
#include "apps/job/job.h"
#include "apps/job/resume.h"
#include "apps/lm/model.h"
#include "placement/machines.h"
#include "runtime/search/ahead.h"
#include "runtime/show/layout_choice.h"
#include "runtime/simulate/token_game.h"

namespace troupe::lm {

/// Pipeline::ahead and Pipeline::weights_apart.
struct ChosenAhead {
  std::int32_t ahead = 0;
  bool weights_apart = false;
  bool operator==(const ChosenAhead&) const = default;
};

/// The configuration, mesh and costs of a run, complete and legal.
struct Prepared {
  LmConfig config;
  MeshSpec mesh;
  std::vector<comm::Throttle> throttle;
  std::vector<runtime::Injection> injections;
  calibrate::CostsFile costs_file;  ///< of which the next two are
  std::string named_costs;          ///< JobArguments::costs of the run's first process
  CostModel costs;                  ///< with the throttle
  CostModel layout_costs;           ///< with the throttle; the same on any dp and pp and with any number of threads
  std::string costs_from, layout_costs_from;  ///< "built-in", or the path of the file
  /// That have the places; empty: a machine for each 8 places, or what start_on_one_machine says.
  std::vector<Machine> machines;
  runtime::RankOrder order = runtime::RankOrder::stage_by_stage;  ///< of ranks, over machines
  /// What of schedule.ahead was chosen before (KeptDecisions); none: make_plan says.
  std::optional<ChosenAhead> ahead;
  std::vector<std::string> warnings;  ///< of the configuration (see load_config) and of costs
};

/// The warning for a user who trains or imports a model with tokens that are no bytes; empty: the model has none.
std::string tokens_warning(const LmConfig& config);

/// Configuration and mesh of the arguments, checked together. A run that goes on from the checkpoint `from` has its
/// configuration where the arguments name no file; REQUIRES: one of both is there. `costs`: null: those that the
/// arguments name, or this machine's. On an error, `code` is the exit code for it.
Expected<Prepared> prepare(const JobArguments& arguments, int& code, const ResumePoint* from = nullptr,
                           const calibrate::CostsFile* costs = nullptr);

/// The job's places are on these machines, which it fills in order: costs are those of the links between them, and of
/// as many busy workers as a machine has. Layouts stay those of one machine, so that bits do not depend on machines.
/// Error (invalid): as check_room; then nothing has changed.
Status put_on_machines(Prepared& prepared, const JobArguments& arguments, std::vector<Machine> machines);

/// Error (invalid): these machines have fewer places than the job.
Status check_room(const Prepared& prepared, const std::vector<Machine>& machines);

/// All workers are on one node: a job that this machine runs.
void start_on_one_machine(Prepared& prepared);

/// What a command begins with that reads a checkpoint and trains nothing: the checkpoint's configuration, on `mesh`
/// (empty: one worker), with `threads` compute threads if >= 0 and the costs of the file `costs` (empty: this
/// machine's). The caller makes its own changes, then validates. On an error, `code` is the exit code for it.
Expected<Prepared> prepare_saved(const ResumePoint& point, const std::string& mesh, std::int64_t threads,
                                 const std::string& costs, int& code);

/// The options with which `train` compiles a job, with no microbatch ahead where schedule.ahead is auto. Error: the
/// pipeline schedule is none.
Expected<runtime::CompileOptions> compile_options(const Prepared& prepared);

/// The layouts that the plan takes along model axes, and the costs of others. Errors as of compile().
Expected<runtime::LayoutChoices> explain_layouts(const runtime::App& app, const Prepared& prepared);

/// Bytes that the plan of a job of `workers` may need where `available` are: less what the workers' processes need
/// beside it.
std::int64_t memory_for_plans(std::int64_t available, std::int64_t workers);
/// What the job's places may need: of each of its machines, or of this one where it has no others; none: its machines
/// are not known.
std::optional<runtime::MemoryBound> memory_for_plans(const JobArguments& arguments, const Prepared& prepared);
/// Error (exhausted): a machine has less memory than its places need, guards included. Names it, what is needed, and
/// what helps.
Status check_memory_of_machines(const JobArguments& arguments, const Prepared& prepared, const runtime::Plan& plan);

/// Compiles the model. `text`: the plain file that the plan's loaders read. With program "sample" if `prompt`
/// has tokens. Where schedule.ahead is auto, stages run as far ahead as pays, among the plans whose places need no more
/// than `bound` (none: as much as they like): see choose_ahead.
Expected<runtime::AheadChoice> make_plan(const runtime::App& app, const Prepared& prepared, const std::string& text,
                                         const std::vector<std::int64_t>& prompt,
                                         const std::optional<runtime::MemoryBound>& bound = std::nullopt);
/// What was tried for schedule.ahead = auto, for people, behind an empty line, or why nothing was; empty: it is not
/// auto. `bound`: see runtime::ahead_text.
std::string tried_text(const runtime::AheadChoice& choice, const std::string& bound);
/// A line of text: whose costs predict, and what slows links and kernels down.
std::string costs_text(const JobArguments& a, const std::string& costs_from);
/// For people: what places may use, of this machine or of those of `prepared`; none: no bound.
std::string bound_text(const Prepared& prepared, const std::optional<runtime::MemoryBound>& bound);
/// Compiles program "sample" alone.
Expected<runtime::Plan> make_sample_plan(const runtime::App& app, const Prepared& prepared,
                                         const std::vector<std::int64_t>& prompt);
/// Compiles program "evaluate" alone: see build_evaluator.
Expected<runtime::Plan> make_evaluation_plan(const runtime::App& app, const Prepared& prepared, const std::string& text,
                                             EvaluatedPart part, std::int64_t first_step);

/// A training step by itself, timed by the cost model, and the places that were played.
struct Predicted {
  runtime::GameResult game;
  std::vector<runtime::LocalPlan> places;
};
/// Plays one step of training. REQUIRES: verify() has accepted the plan.
Expected<Predicted> predict(const runtime::Plan& plan);

}  // namespace troupe::lm
