// Pipeline schedules on worker processes whose kernels take their planned time (the paced device): each step's
// makespan, from the begin of its first pass to the end of its last one, against what the schedule's paper promises.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "runtime/compile/compile.h"
#include "runtime/launch/app.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// Zeros: no kernel computes with them.
struct Nothing final : actors::UserActor {
  Status act(actors::UserCall&) override { return {}; }
};

/// Seconds of one microbatch on one stage; `backward_s`: of the whole pass, `weights_s` the part that
/// zero-bubble moves.
struct Times {
  double forward_s, backward_s, weights_s;
};

/// As many equal layers as there are virtual stages.
Expected<Plan> pipeline(const App& app, const Pipeline& schedule, std::int32_t stages, std::int32_t microbatches,
                        const Times& t) {
  Graph g(app.ops());
  g.program("train", {microbatches, 1});
  CompileOptions o;
  Value x = kernels::no_value;
  for (std::int32_t l = 0; l < stages * schedule.chunks; ++l) {
    const std::string name = "layer" + std::to_string(l);
    g.unit(name);
    o.stage_of_unit.push_back(l);
    if (l == 0) x = g.actor("nothing", "x", {}, {{"x", {DType::f32, {1, 8}}, {}}})[0];
    const Value h = g.op("linear", {x, g.param(name + ".up", {8, 8}, Init::normal(0.1f))})[0];
    x = g.op("linear", {h, g.param(name + ".down", {8, 8}, Init::normal(0.1f))})[0];
  }
  const Value target = g.actor("nothing", "t", {}, {{"t", {DType::f32, {1, 8}}, {}}})[0];
  g.minimize(g.op("mse_loss", {x, target}, {{"scale", 1.0}})[0], {});
  o.stages = stage_meshes(std::vector<std::int64_t>(static_cast<std::size_t>(stages), 1));
  o.pipeline = schedule;
  TROUPE_ASSIGN(Plan plan, compile(g, o));
  const double moved = schedule.splits_backward() ? t.weights_s : 0;
  const std::map<Pass, double> all = {
      {Pass::forward, t.forward_s}, {Pass::backward, t.backward_s - moved}, {Pass::weights, moved}};
  for (auto& role : plan.roles) {
    std::map<std::pair<std::int32_t, Pass>, int> segments;
    for (const auto& a : role.actors) segments[{a.virtual_stage, a.pass}] += a.kind == PlanActor::Kind::segment;
    for (auto& a : role.actors)
      a.cost_s = a.kind == PlanActor::Kind::segment
                     ? all.at(a.pass) / schedule.chunks / segments[{a.virtual_stage, a.pass}]
                     : 0;
  }
  return plan;
}

/// Milliseconds of each traced step.
std::vector<double> makespans_ms(const Plan& plan, const JobResult& result) {
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> steps;
  for (Rank r = 0; r < plan.workers(); ++r) {
    std::map<std::string, bool> pass;
    for (const auto& a : plan.roles[static_cast<std::size_t>(plan.stage_of(r))].actors)
      pass[a.name] = a.kind == PlanActor::Kind::segment;
    for (const auto& s : result.places[static_cast<std::size_t>(r)].spans) {
      if (!pass[s.row]) continue;
      auto [it, fresh] = steps.try_emplace(s.step, s.begin_ns, s.end_ns);
      it->second.first = std::min(it->second.first, s.begin_ns);
      it->second.second = std::max(it->second.second, s.end_ns);
    }
  }
  std::vector<double> out;
  for (const auto& [step, interval] : steps)
    out.push_back(static_cast<double>(interval.second - interval.first) * 1e-6);
  std::sort(out.begin(), out.end());
  return out;
}

/// False: the job failed.
bool measure(const App& app, const std::string& name, std::int32_t stages, std::int64_t steps, const Times& t) {
  const auto schedule = parse_pipeline(name);
  const std::int32_t microbatches = 2 * stages;
  const auto plan = schedule.ok() ? pipeline(app, *schedule, stages, microbatches, t)
                                  : Expected<Plan>(schedule.status());
  JobOptions job;
  job.paced = 1;
  job.run_kernels = false;
  job.session.steps = steps + 1;
  job.trace = {.first = 1, .steps = steps};  // the first step pays for cold memory
  const JobResult result = plan.ok() ? app.run(*plan, job) : JobResult{plan.status(), exit_plan, {}, 0, {}};
  if (!result.status.ok()) return std::fprintf(stderr, "%s\n", result.status.message().c_str()), false;
  const auto ms = makespans_ms(*plan, result);
  const double median = ms[ms.size() / 2], work = microbatches * (t.forward_s + t.backward_s) * 1e3;
  const double moved = schedule->splits_backward() ? t.weights_s : 0;
  const double published = published_bubble_s(*schedule, stages, t.forward_s, t.backward_s - moved, moved) * 1e3;
  std::printf("%6d %6d  %-14s %9.1f %9.1f %9.1f %9.1f %8.4f %9.2f%% %9.2f%%\n", stages, microbatches, name.c_str(),
              work + published, median, ms.front(), ms.back(), median / (work + published),
              100 * published / (work + published), 100 * (1 - work / median));
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  App app;
  app.actor<Nothing>("nothing");
  app.serve_if_worker(argc, argv);
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 9;
  const Times t{0.020, 0.040, 0.020};
  std::printf("a stage takes %g ms forward, %g ms backward (%g ms of it weight gradients); %lld steps each\n\n",
              t.forward_s * 1e3, t.backward_s * 1e3, t.weights_s * 1e3, static_cast<long long>(steps));
  std::printf("%6s %6s  %-14s %9s %9s %9s %9s %8s %10s %10s\n", "stages", "M", "schedule", "ideal ms", "median ms",
              "least ms", "most ms", "ratio", "published", "measured");
  for (std::int32_t stages : {4, 8})
    for (const char* name : {"1f1b", "interleaved:2", "interleaved:4", "zero-bubble"})
      if (!measure(app, name, stages, steps, t)) return 1;
  return 0;
}
