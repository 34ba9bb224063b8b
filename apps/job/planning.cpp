#include "apps/job/planning.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "apps/job/argument_checks.h"
#include "apps/lm/byte_tokens.h"
#include "apps/lm/model.h"
#include "apps/options/recovery.h"
#include "apps/options/throttle_spec.h"
#include "devices/base/check.h"
#include "devices/base/text_table.h"
#include "devices/host_memory.h"
#include "runtime/compile/compile.h"
#include "runtime/show/plan_text.h"

namespace troupe::lm {

using namespace runtime;

std::string tokens_warning(const LmConfig& config) {
  if (config.model.vocab <= byte_tokens) return "";
  return fmt::format(
      "the model has {} tokens, and texts are read as bytes, tokens 0 to 255: a tokenizer that it was trained with is "
      "not used",
      config.model.vocab);
}

namespace {

/// Takes the costs of the file for so many workers. `predicts`: of the job times are predicted, too.
Status take_costs(calibrate::CostsFile file, bool predicts, std::int64_t workers, Prepared& p) {
  p.costs_file = std::move(file);
  TROUPE_ASSIGN(const auto costs, calibrate::costs_in(p.costs_file, p.config.run.threads, workers));
  p.costs = costs.model;
  p.layout_costs = costs.layouts;
  p.costs_from = costs.from;
  p.layout_costs_from = costs.layouts_from;
  if (!costs.warning.empty()) p.warnings.push_back(costs.warning);
  if (predicts && !costs.layouts_only.empty()) p.warnings.push_back(costs.layouts_only);
  return {};
}

}  // namespace

Expected<Prepared> prepare(const JobArguments& a, int& code, const ResumePoint* from,
                           const calibrate::CostsFile* costs) {
  Prepared p;
  code = exit_checkpoint;
  std::optional<LmConfig> saved;
  if (from) {
    TROUPE_ASSIGN(saved, saved_config(*from));
  }
  code = exit_usage;
  if (a.config_path.empty()) {
    REQUIRE(from, a.out);
    TROUPE_ASSIGN(p.config, saved_config(*from, a.overrides, &p.warnings));
  } else {
    TROUPE_ASSIGN(p.config, load_config(a.config_path, a.overrides, &p.warnings));
  }
  if (a.checkpoint_every >= 0) p.config.checkpoint.every = a.checkpoint_every;
  else if (saved && goes_on_saving(a, p.config)) p.config.checkpoint.every = saved->checkpoint.every;
  if (a.keep >= 0) p.config.checkpoint.keep = a.keep;
  if (!a.mesh.empty()) {
    TROUPE_ASSIGN(const MeshSpec mesh, parse_mesh(a.mesh));
    // The section's other keys are no axes of the mesh: they stay.
    const MeshConfig before = std::exchange(p.config.mesh, mesh_config(mesh));
    p.config.mesh.zero = before.zero;
    p.config.mesh.shared_vocabulary = before.shared_vocabulary;
  }
  if (a.zero >= 0) p.config.mesh.zero = a.zero;
  if (a.threads >= 0) p.config.run.threads = a.threads;
  if (!a.recovery.empty()) p.config.run.recovery = a.recovery;
  TROUPE_TRY(validate(p.config));
  for (const auto& text : a.throttle) {
    TROUPE_ASSIGN(const comm::Throttle t, parse_throttle(text));
    p.throttle.push_back(t);
  }
  for (const auto& text : a.inject) {
    auto injection = runtime::parse_injection(text);
    if (!injection.ok()) return injection.status().in("--inject");
    p.injections.push_back(*std::move(injection));
  }
  code = exit_plan;
  TROUPE_ASSIGN(p.mesh, mesh_of(p.config.mesh));
  TROUPE_TRY(check_mesh(p.mesh, p.config));
  code = exit_usage;
  TROUPE_TRY(check_arguments(a, p));
  TROUPE_ASSIGN(auto file, costs ? Expected<calibrate::CostsFile>(*costs) : calibrate::open_costs(a.costs));
  TROUPE_TRY(take_costs(std::move(file), true, p.mesh.workers(), p));
  slow_down(p.costs, p.throttle);
  slow_down(p.layout_costs, p.throttle);
  if (a.paced > 0) p.costs.slow_kernels(a.paced);  // kernels sleep for their time in the plan
  return p;
}

namespace {

/// The links that were measured of two machines, and differ from the typical one, between all places of both. Machines
/// without a name are those of the measurement, in its order.
std::vector<OddLink> odd_links(const calibrate::MachineLinks& links, const std::vector<Machine>& machines,
                               const std::vector<std::int32_t>& machine_of) {
  const auto ranks_on = [&](const std::string& name) {
    std::vector<Rank> ranks;
    for (std::size_t r = 0; r < machine_of.size(); ++r) {
      const auto m = static_cast<std::size_t>(machine_of[r]);
      const std::string& called = machines[m].name;
      if ((called.empty() ? m < links.machines.size() && links.machines[m] == name : called == name))
        ranks.push_back(static_cast<Rank>(r));
    }
    return ranks;
  };
  std::vector<OddLink> out;
  for (const auto& pair : links.odd)
    for (const Rank a : ranks_on(pair.a))
      for (const Rank b : ranks_on(pair.b)) out.push_back({a, b, pair.cost});
  return out;
}

}  // namespace

Status check_room(const Prepared& p, const std::vector<Machine>& machines) {
  std::int64_t room = 0;
  for (const Machine& m : machines) room += m.places;
  const std::int64_t workers = p.mesh.workers();
  if (room >= workers) return {};
  return invalid(
      fmt::format("the mesh needs {}, and {} {} {}: use more machines (--nodes), or more places of each "
                  "(--places)",
                  counted(workers, "place"), counted(std::ssize(machines), "machine"),
                  machines.size() == 1 ? "has" : "have", room));
}

Status put_on_machines(Prepared& p, const JobArguments& a, std::vector<Machine> machines) {
  TROUPE_TRY(check_room(p, machines));
  std::vector<std::int64_t> places;
  for (const Machine& m : machines) places.push_back(m.places);
  const std::int64_t workers = p.mesh.workers();
  const auto machine_of = fill_machines(places, workers, p.mesh.tp);
  CostModel filled;
  filled.nodes = machine_of;
  const std::int64_t most = filled.most_on_node(static_cast<Rank>(workers));
  // Its warnings were taken with the costs of one machine: they say nothing of the number of workers.
  TROUPE_ASSIGN(const auto found, calibrate::costs_in(p.costs_file, p.config.run.threads, most));
  p.machines = std::move(machines);
  p.costs = found.model;
  p.costs.nodes = machine_of;
  if (found.between) p.costs.odd_links = odd_links(*found.between, p.machines, machine_of);
  // The places of a machine share its card, and send at the same moments.
  p.costs.inter_node.bytes_per_s /= static_cast<double>(most);
  for (OddLink& odd : p.costs.odd_links) odd.cost.bytes_per_s /= static_cast<double>(most);
  slow_down(p.costs, p.throttle);
  if (a.paced > 0) p.costs.slow_kernels(a.paced);
  p.layout_costs.places_per_node = static_cast<std::int32_t>(workers);
  return {};
}

void start_on_one_machine(Prepared& p) {
  p.costs.places_per_node = p.layout_costs.places_per_node = static_cast<std::int32_t>(p.mesh.workers());
}

Expected<Prepared> prepare_saved(const ResumePoint& point, const std::string& mesh, std::int64_t threads,
                                 const std::string& costs, int& code) {
  code = exit_checkpoint;
  Prepared p;
  TROUPE_ASSIGN(p.config, saved_config(point));
  code = exit_usage;
  TROUPE_ASSIGN(p.mesh, parse_mesh(mesh.empty() ? "dp=1" : mesh));
  const bool shared_vocabulary = std::exchange(p.config.mesh, mesh_config(p.mesh)).shared_vocabulary;
  // The same sums in the same order as in training, where the stages of this mesh can divide the vocabulary.
  p.config.mesh.shared_vocabulary = shared_vocabulary && std::all_of(p.mesh.dp.begin(), p.mesh.dp.end(),
                                                                     [&](auto dp) { return dp == p.mesh.dp[0]; });
  if (threads >= 0) p.config.run.threads = threads;
  TROUPE_ASSIGN(auto file, calibrate::open_costs(costs));
  TROUPE_TRY(take_costs(std::move(file), false, p.mesh.workers(), p));
  start_on_one_machine(p);
  return p;
}

Expected<CompileOptions> compile_options(const Prepared& p) {
  CompileOptions o;
  o.stages = stage_meshes(p.mesh.dp, model_axes(p.mesh, p.config), p.order);
  TROUPE_ASSIGN(o.pipeline, parse_pipeline(p.config.schedule.pipeline));
  // A place has no more than its own microbatches of a step: most where a stage has fewest replicas.
  const std::int64_t microbatches = p.config.schedule.microbatches();
  const std::int64_t replicas = *std::min_element(p.mesh.dp.begin(), p.mesh.dp.end());
  const std::int64_t others = std::max<std::int64_t>(0, (microbatches + replicas - 1) / replicas - 1);
  o.pipeline.ahead =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(p.config.schedule.microbatches_ahead(), 0, others));
  if (p.ahead) o.pipeline.ahead = p.ahead->ahead, o.pipeline.weights_apart = p.ahead->weights_apart;
  o.zero = static_cast<std::int32_t>(p.config.mesh.zero);
  o.seed = static_cast<std::uint64_t>(p.config.run.seed);
  TROUPE_ASSIGN(const Recovery recovery, parse_recovery(p.config.run.recovery));
  o.keeps_version = recovery.slots;
  o.keeps_copies = recovery.copy_every > 0;
  o.snapshots = p.config.checkpoint.every > 0 ? static_cast<std::int32_t>(p.config.checkpoint.arena) : 0;
  o.costs = p.costs;
  o.layout_costs = p.layout_costs;
  return o;
}

namespace {

/// Of a plan that does not train: no ZeRO, no pipeline schedule, no snapshots.
CompileOptions options_without_training(const Prepared& p) {
  CompileOptions o;
  o.stages = stage_meshes(p.mesh.dp, model_axes(p.mesh, p.config));
  o.seed = static_cast<std::uint64_t>(p.config.run.seed);
  o.costs = p.costs;
  o.layout_costs = p.layout_costs;
  return o;
}

}  // namespace

std::int64_t memory_for_plans(std::int64_t available, std::int64_t workers) {
  // A worker's process has about 20 MiB of its own, and 20 of libraries and shared memory
  // (docs/measurements/2026-11-22-clean-clone.md); the rest is room for what other programs take meanwhile.
  constexpr std::int64_t worker_bytes = 64 << 20;
  return std::max<std::int64_t>(0, available - workers * worker_bytes);
}

namespace {

bool may_guard(const JobArguments& a) { return a.guard_every != "off" && a.machines.count > 1; }

}  // namespace

std::optional<MemoryBound> memory_for_plans(const JobArguments& a, const Prepared& p) {
  if (p.machines.empty()) {
    if (a.machines.count > 0) return std::nullopt;
    return memory_for_plans(static_cast<std::int64_t>(available_host_bytes()), p.mesh.workers());
  }
  std::vector<std::int64_t> bytes;
  for (std::size_t m = 0; m < p.machines.size(); ++m) {
    const auto places = std::count(p.costs.nodes.begin(), p.costs.nodes.end(), static_cast<std::int32_t>(m));
    bytes.push_back(p.machines[m].bytes > 0 ? memory_for_plans(p.machines[m].bytes, places)
                                            : std::numeric_limits<std::int64_t>::max());
  }
  return MemoryBound(std::move(bytes), may_guard(a));
}

Status check_memory_of_machines(const JobArguments& a, const Prepared& p, const Plan& plan) {
  TROUPE_ASSIGN(const auto needs, needs_of_machines(plan, may_guard(a)));
  for (std::size_t m = 0; m < std::min(needs.size(), p.machines.size()); ++m) {
    const Machine& machine = p.machines[m];
    const MachineNeed& need = needs[m];
    if (machine.bytes == 0 || need.bytes <= machine.bytes) continue;
    return Status(
        Code::exhausted,
        fmt::format("machine {} has {} of memory available, and the plan needs {} for the {} that it takes{}: give it "
                    "fewer places (--places), use more machines, a smaller model or a smaller schedule.microbatch{}{}",
                    machine.name.empty() ? fmt::format("{}", m) : machine.name, human_bytes(machine.bytes),
                    human_bytes(need.bytes), counted(need.places, "worker"),
                    need.guards > 0 ? ", guards included (" + human_bytes(need.guards) + ")" : "",
                    plan.pipeline.ahead > 0 ? ", or fewer microbatches ahead (schedule.ahead)" : "",
                    need.guards > 0 ? ", or do without guards (--guard-every off)" : ""));
  }
  return {};
}

Expected<AheadChoice> make_plan(const App& app, const Prepared& p, const std::string& text,
                                const std::vector<std::int64_t>& prompt, const std::optional<MemoryBound>& bound) {
  TROUPE_ASSIGN(const CompileOptions options, compile_options(p));
  const Graph graph = build_model(p.config, app.ops(), text, prompt);
  if (p.config.schedule.microbatches_ahead() < 0 && !p.ahead) return choose_ahead(graph, options, bound);
  TROUPE_ASSIGN(Plan plan, compile(graph, options));
  return AheadChoice{std::move(plan), {}, {}, {}};
}

Expected<Plan> make_sample_plan(const App& app, const Prepared& p, const std::vector<std::int64_t>& prompt) {
  return compile(build_sampler(p.config, app.ops(), prompt), options_without_training(p));
}

std::string tried_text(const AheadChoice& choice, const std::string& bound) {
  if (!choice.tried.empty()) return "\n" + ahead_text(choice.tried, bound);
  return choice.why_none.empty() ? "" : "\nschedule.ahead is auto, which is 0 here: " + choice.why_none + "\n";
}

std::string costs_text(const JobArguments& a, const std::string& costs_from) {
  std::string out = "costs       " + costs_from;
  if (a.tf_ms < 0) {  // it replaces both
    for (const auto& t : a.throttle) out += ", --throttle " + t;
    if (a.paced > 0) out += fmt::format(", --paced {:g}", a.paced);
  }
  return out + "\n";
}

std::string bound_text(const Prepared& p, const std::optional<MemoryBound>& bound) {
  if (!bound) return "no bound";
  if (bound->by_machine.empty())
    return fmt::format("all places together may use {} of what this machine has available",
                       human_bytes(bound->together));
  const auto least = std::min_element(bound->by_machine.begin(), bound->by_machine.end());
  if (*least == std::numeric_limits<std::int64_t>::max()) return "no bound";
  const std::string& name = p.machines[static_cast<std::size_t>(least - bound->by_machine.begin())].name;
  return fmt::format("the places of a machine may use what it has available{}, {} at least",
                     bound->guards ? ", with their guards" : "", human_bytes(*least)) +
         (name.empty() ? "" : " (" + name + ")");
}

Expected<Plan> make_evaluation_plan(const App& app, const Prepared& p, const std::string& text, EvaluatedPart part,
                                    std::int64_t first_step) {
  return compile(build_evaluator(p.config, app.ops(), text, part, first_step), options_without_training(p));
}

Expected<LayoutChoices> explain_layouts(const App& app, const Prepared& p) {
  TROUPE_ASSIGN(const CompileOptions options, compile_options(p));
  return layout_choices(build_model(p.config, app.ops(), "corpus"), options);
}

Expected<Predicted> predict(const Plan& plan) {
  Predicted out;
  GameOptions training;
  training.every_program = false;
  TROUPE_ASSIGN(out.game, play(plan, training));
  out.places = std::exchange(out.game.locals, {});
  return out;
}

}  // namespace troupe::lm
