#include "apps/job/job.h"

#include <fmt/format.h>

#include <filesystem>

#include "apps/job/guards.h"
#include "apps/job/kept_decisions.h"
#include "apps/job/placing.h"
#include "apps/job/planning.h"
#include "apps/job/training.h"
#include "apps/report/files.h"
#include "apps/report/output.h"
#include "devices/base/log.h"
#include "devices/base/plain_text.h"
#include "devices/base/text_table.h"
#include "devices/files/file_storage.h"
#include "devices/host_memory.h"
#include "runtime/launch/fresh_number.h"
#include "runtime/place/local_plan.h"
#include "runtime/show/plan_text.h"
#include "runtime/verify/verify.h"

namespace troupe::lm {

using namespace runtime;

int say(const Status& status, int code) {
  report::put(stderr, "troupe: " + plain_text(status.message()) + "\n");
  return code;
}

namespace {

/// What `plan` and `sim` look at.
struct Drawn {
  Prepared prepared;
  Plan plan;
  std::string ahead;    ///< of schedule.ahead = auto, for people; empty: it is not auto
  std::string placing;  ///< placing_text
  bool chosen = false;  ///< whether several plans were tried for it
};

/// The plan that `train` would make on this machine, or on machines that have as much memory; where it would refuse
/// that for want of memory, the job is one for other machines, and memory has no bound. Sets `ahead` as in Drawn.
Expected<AheadChoice> draw_plan(const App& app, const JobArguments& a, const Prepared& p, std::string& ahead) {
  const auto available = static_cast<std::int64_t>(available_host_bytes());
  TROUPE_ASSIGN(AheadChoice made, make_plan(app, p, "corpus", {}, memory_for_plans(a, p)));
  std::string text = bound_text(p, made.bound);
  bool has_room = true;
  if (!made.tried.empty() && made.tried[0].verdict == AheadVerdict::does_not_fit) {
    const bool several = !p.machines.empty();
    const MemoryBound all = several ? MemoryBound(std::vector<std::int64_t>(p.machines.size(), available), true)
                                    : MemoryBound(available);
    TROUPE_ASSIGN(has_room, fits(made.plan, all));
  }
  if (!has_room) {
    text = fmt::format("no bound, since with 0 ahead {} more than the {} that this machine has available",
                       p.machines.empty() ? "all places together need" : "the places of a machine need",
                       human_bytes(available));
    TROUPE_ASSIGN(made, make_plan(app, p, "corpus", {}));
  }
  ahead = tried_text(made, text);
  return made;
}

/// Compiles what the arguments say; warns of the configuration and of a wasteful mesh. On an error, `code` is the exit
/// code for it.
Expected<Drawn> draw(const App& app, const JobArguments& a, int& code) {
  TROUPE_ASSIGN(Prepared p, prepare(a, code));
  for (const auto& text : p.warnings) log_warn(text);
  if (const auto text = mesh_warning(p.mesh, p.config); !text.empty()) log_warn(text);
  std::vector<OrderTried> orders;
  if (a.machines.count > 0) {
    const Machine each{"", std::max(1, a.places), static_cast<std::int64_t>(available_host_bytes())};
    TROUPE_TRY(put_on_machines(p, a, std::vector<Machine>(static_cast<std::size_t>(a.machines.count), each)));
    code = exit_plan;
    TROUPE_ASSIGN(orders, choose_order(app, p, "corpus", {}));
  }
  code = exit_plan;
  std::string ahead;
  TROUPE_ASSIGN(AheadChoice made, draw_plan(app, a, p, ahead));
  std::string placing = placing_text(p, orders);
  return Drawn{std::move(p), std::move(made.plan), std::move(ahead), std::move(placing), made.tried.size() > 1};
}

/// The times that the arguments give to a simulation, each with its option: "--tf 1 ms, --hop 0.5 ms".
std::string given_times(const JobArguments& a) {
  std::string text;
  const auto add = [&](const char* option, double value, const char* unit) {
    if (value > 0) text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", option, value, unit);
  };
  add("--tf", a.tf_ms, " ms");
  add("--tb", a.tb_ms, " ms");
  if (a.tf_ms < 0) add("--paced", a.paced, "");
  add("--hop", a.hop_ms, " ms");
  return text;
}

/// What of the plan and of the cost model the arguments put out of effect, lines of text; empty: nothing.
std::string without_text(const JobArguments& a) {
  std::string text;
  if (a.ideal) text = "ideal       slots and streams without limit take what comes first: a plan may take less\n";
  if (a.tf_ms < 0) return text;
  return text + fmt::format("links       left out by --tf{}: every exchange takes the {} ms of --hop\n",
                            a.throttle.empty() ? "" : ", with --throttle", a.hop_ms);
}

}  // namespace

FileStorage::Locks locks_of(const JobArguments& a) {
  return a.taken_over ? FileStorage::Locks::may_be_held : FileStorage::Locks::exclude;
}

std::string checkpoint_dir(const JobArguments& a) {
  return a.checkpoint_dir.empty() ? a.out + "/checkpoints" : a.checkpoint_dir;
}

int train_command(const App& app, const JobArguments& arguments) {
  JobArguments a = arguments;
  int code = exit_ok;
  if (a.run_number.empty() && !a.store.url.empty()) a.run_number = fmt::format("{:016x}", fresh_number());
  FileStorage storage(locks_of(a));
  std::optional<Resume> resume;
  std::optional<ResumePoint> point;
  if (a.resumes_memory() && (a.machines.count == 0 || a.config_path.empty()))
    return say(invalid("--resume memory: agents keep what a run has in memory: give its " +
                       std::string(a.config_path.empty() ? "configuration" : "--nodes")),
               exit_usage);
  if (a.resumes_or_begins() && a.config_path.empty())
    return say(invalid("--resume auto: the run may begin: give its configuration"), exit_usage);
  if (a.resumes) {
    const bool latest = a.resumes_latest() || a.resumes_memory();
    if (latest && a.out.empty() && a.checkpoint_dir.empty())
      return say(invalid("--resume: name a checkpoint, or a configuration or --out that says where the run is"),
                 exit_usage);
    auto found = Resume::find(storage, latest ? checkpoint_dir(a) : a.resume, Resume::For::training);
    const bool none = found.status().code() == Code::not_found && (a.resumes_memory() || a.resumes_or_begins());
    if (!found.ok() && !none) return say(found.status().in("--resume"), exit_checkpoint);
    if (none && a.resumes_or_begins())
      log_info("--resume auto: there is no checkpoint in '" + checkpoint_dir(a) + "': the run begins");
    if (found.ok()) {
      resume = *std::move(found);
      auto first = resume->next();
      if (!first.ok()) return say(first.status(), exit_checkpoint);
      point = *std::move(first);
      if (a.out.empty()) a.out = resume->run_folder();
    }
  }
  auto decided = a.resumes_memory() ? decided_before(a) : std::nullopt;
  auto p = prepare(a, code, point ? &*point : nullptr, decided ? &decided->costs : nullptr);
  if (!p.ok()) return say(p.status(), code);
  if (a.resumes_memory() && p->config.run.recovery == "off")
    return say(
        invalid("--resume memory: without --recovery agents keep nothing in memory: give it as the run had it, or "
                "go on from a checkpoint (--resume)"),
        exit_usage);
  start_on_one_machine(*p);
  return Training(app, a, *std::move(p), std::move(resume), std::move(point), std::move(decided)).run();
}

int plan_command(const App& app, const JobArguments& a) {
  int code = exit_ok;
  std::error_code error;
  if (std::filesystem::is_directory(a.dot, error))
    return say(invalid("--dot '" + a.dot + "' is a folder: name a file"), exit_output);
  const auto drawn = draw(app, a, code);
  if (!drawn.ok()) return say(drawn.status(), code);
  const Plan& plan = drawn->plan;
  if (const Status s = verify(plan); !s.ok()) return say(s, exit_plan);
  auto predicted = predict(plan);
  if (!predicted.ok()) return say(predicted.status(), exit_plan);
  if (const std::string none = no_guards(a, drawn->prepared.config); !none.empty()) log_warn(none);
  const GuardChoice guards = choose_guards(a, plan, predicted->game.step_s, drawn->prepared.config.schedule.steps);
  if (!guards.warning.empty()) log_warn(guards.warning);
  report::print(plan_text(plan, predicted->places, predicted->game) + "\n" + costs_text(a, drawn->prepared.costs_from) +
                drawn->placing + guards.text + drawn->ahead);
  const auto layouts = explain_layouts(app, drawn->prepared);
  if (!layouts.ok()) return say(layouts.status(), exit_plan);
  if (!layouts->choices.empty()) report::print("\n" + layout_text(*layouts));
  if (!a.dot.empty())
    if (const Status s = report::write_file(a.dot, plan_dot(plan)); !s.ok()) return say(s, exit_output);
  return exit_ok;
}

int sim_command(const App& app, const JobArguments& a) {
  int code = exit_ok;
  const auto drawn = draw(app, a, code);
  if (!drawn.ok()) return say(drawn.status(), code);
  GameOptions options;
  options.every_program = false;
  options.hop_s = a.hop_ms * 1e-3;
  options.unlimited_slots = options.unlimited_streams = a.ideal;
  if (a.tf_ms >= 0) {
    options.forward_s = a.tf_ms * 1e-3;
    options.backward_s = a.backward_ms() * 1e-3;
    if (a.tw_ms >= 0) options.weights_s = a.tw_ms * 1e-3;
  }
  auto game = play(drawn->plan, options);
  if (const auto times = given_times(a); game.status().code() == Code::exhausted && !times.empty())
    return say(game.status().in(times), exit_usage);
  if (!game.ok()) return say(game.status(), exit_plan);
  report::print(game_text(drawn->plan, *game) + costs_text(a, drawn->prepared.costs_from) + drawn->placing +
                without_text(a) + drawn->ahead);
  if (drawn->chosen && (a.tf_ms >= 0 || a.hop_ms > 0 || a.ideal))
    report::print("the plans were chosen by the cost model's times, without --tf, --hop and --ideal\n");
  return exit_ok;
}

}  // namespace troupe::lm
