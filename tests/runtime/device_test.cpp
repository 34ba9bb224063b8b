// Jobs whose places compute on a device with memory of its own, on fibers (devices/fibers/): the bits of the host,
// where slots lie, and what is left when a place dies.
#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/launch/sim_cluster.h"
#include "runtime/verify/verify.h"
#include "tests/fiber_jobs.h"
#include "tests/runtime/draws.h"
#include "tests/runtime/random_graph.h"
#include "tests/runtime/recovered_session.h"

using namespace mlp;

namespace {

using Kind = SimFault::Kind;

struct DeviceRun {
  Evaluations evaluations;
  SimOutcome out;
};

constexpr std::int64_t device_steps = 6;
/// Fibers that sanitizers watch are slow.
#if defined(__SANITIZE_ADDRESS__)
constexpr unsigned graphs_drawn = 10;
constexpr std::uint64_t faults_drawn = 1;
#else
constexpr unsigned graphs_drawn = 60;
constexpr std::uint64_t faults_drawn = 3;
#endif

DeviceRun device_run(const Plan& p, std::uint64_t seed, const std::shared_ptr<const Accelerator>& on,
                     std::vector<SimFault> faults = {}) {
  DeviceRun run;
  SessionOptions session = recovered_session(device_steps, 0, run.evaluations);
  if (p.keeps_copies()) session.copy_every = 2;
  SimClusterOptions cluster;
  cluster.seed = seed;
  cluster.faults = std::move(faults);
  cluster.recovers = p.keeps_version() || p.keeps_copies();
  cluster.accelerator = on;
  const kernels::OpSet set = on ? on->with_bodies(ops()) : ops();
  run.out = simulate_job(p, set, actor_set(), session, cluster);
  return run;
}

void check_like(const DeviceRun& one, const DeviceRun& whole) {
  REQUIRE_MESSAGE(one.out.job.status.ok(), one.out.job.status.message());
  CHECK(one.out.run.params_hash == whole.out.run.params_hash);
  CHECK(one.evaluations == whole.evaluations);
  check_steps(one.out.run.steps, whole.out.run.steps, device_steps);
}

}  // namespace

TEST_CASE(
    "random graphs on a device have the bits of the host: any dp, pp, tp, ZeRO, updates of ops, copies, versions") {
  const kernels::OpSet host = kernels::standard_ops();
  const auto on = test::fibers_alone();
  const kernels::OpSet there = on->with_bodies(host);
  int graphs = 0;
  for (unsigned seed = 1; seed <= graphs_drawn; ++seed) {
    if (!test::is_drawn(seed)) continue;
    CAPTURE(seed);
    RandomCase c;
    const Graph g = RandomGraph(host, seed).graph(c);
    CompileOptions o;
    o.seed = seed;
    o.stages = stage_meshes(c.dp, seed % 4 == 0 ? 2 : 1);
    o.stage_of_unit = c.stage_of_unit;
    o.pipeline = c.pipeline;
    o.owners = c.owners;
    o.zero = static_cast<std::int32_t>(seed % 4);
    o.keeps_version = seed % 3 == 0;
    o.keeps_copies = seed % 3 == 1;
    const auto p = compile(g, o);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    const auto a = train_case(*p, host, c, seed), b = train_case(*p, there, c, seed + 1, on);
    REQUIRE_MESSAGE(a.ok(), a.status().message());
    REQUIRE_MESSAGE(b.ok(), b.status().message());
    CHECK(difference(*b, *a) == "");
    ++graphs;
  }
  MESSAGE(graphs << " graphs");
}

TEST_CASE("of one place alone all lies on the device but what the session and actors of the application write") {
  const auto local = local_plan(kept_plan({{1}}, Keeps::nothing), 0);
  REQUIRE(local.ok());
  const Plan p = kept_plan({{1}}, Keeps::nothing);
  int on_device = 0;
  for (const LocalChannel& c : local->channels) {
    const PlanChannel& pc = p.roles[0].channels[static_cast<std::size_t>(c.channel)];
    CAPTURE(pc.name);
    const bool of_application = pc.writer >= 0 &&
                                p.roles[0].actors[static_cast<std::size_t>(pc.writer)].kind == PlanActor::Kind::user;
    CHECK(c.of_device == !(pc.control() || of_application));
    on_device += c.of_device;
  }
  CHECK(on_device > 3);
}

TEST_CASE(
    "what an exchange or an actor of the application touches lies on the host, and parameters whose versions are "
    "kept") {
  for (const KeptCase& c : kept_cases())
    for (const Keeps keeps : {Keeps::nothing, Keeps::version, Keeps::copies}) {
      const Plan p = kept_plan(c, keeps);
      for (Rank r = 0; r < p.workers(); ++r) {
        const auto local = local_plan(p, r);
        REQUIRE(local.ok());
        for (const LocalActor& a : local->actors) {
          const PlanActor& pa =
              p.roles[static_cast<std::size_t>(local->stage)].actors[static_cast<std::size_t>(a.actor)];
          if (pa.kind != PlanActor::Kind::exchange && pa.kind != PlanActor::Kind::user && !pa.gathers()) continue;
          for (const auto* side : {&a.in, &a.out})
            for (const auto i : *side) {
              if (pa.gathers() && side == &a.in) continue;
              CHECK(!local->channels[static_cast<std::size_t>(i)].of_device);
            }
        }
        for (const LocalChannel& l : local->channels)
          if (keeps == Keeps::version && l.version_offset >= 0) CHECK(!l.of_device);
      }
    }
}

TEST_CASE("a place on a device that dies at any event is started anew, and the job ends with the host's bits") {
  const auto on = test::fibers_alone();
  int restarts = 0;
  for (const Keeps keeps : {Keeps::version, Keeps::copies})
    for (const KeptCase& c : kept_cases()) {
      const Plan p = kept_plan(c, keeps);
      const DeviceRun whole = device_run(p, 0, nullptr), calm = device_run(p, 1, on);
      check_like(calm, whole);
      for (std::uint64_t seed = 1; seed <= faults_drawn; ++seed) {
        CAPTURE(seed);
        const auto below = [&](std::uint64_t what, std::int64_t n) {
          return static_cast<std::int64_t>(philox(seed, what, 15)[0]) % n;
        };
        const std::int64_t before = 8 * p.workers() + 2;
        SimFault fault;
        fault.kind = seed == 3 ? Kind::hang : Kind::kill;
        fault.at_event = before + below(1, calm.out.run.events - before);
        fault.place = static_cast<Rank>(below(2, p.workers()));
        const DeviceRun one = device_run(p, seed, on, {fault});
        check_like(one, whole);
        restarts += one.out.run.restarts;
      }
    }
  CHECK(restarts > 6 * static_cast<int>(faults_drawn));
}

TEST_CASE("an op without a body for the device ends the job, by name") {
  const auto on = test::fibers_alone();
  kernels::OpSet lacking;
  const kernels::OpSet all = on->with_bodies(ops());
  for (const auto& name : all.names()) {
    kernels::OpDef op = *all.find(name);
    if (name == "linear_dw") op.cuda = {};
    REQUIRE(lacking.add(std::move(op)).ok());
  }
  Evaluations evaluations;
  SimClusterOptions cluster;
  cluster.accelerator = on;
  const Plan p = kept_plan({{1}}, Keeps::nothing);
  const SimOutcome out = simulate_job(p, lacking, actor_set(), recovered_session(2, 0, evaluations), cluster);
  CHECK(out.job.status.message().find("(linear_dw) has no body for this device") != std::string::npos);
}
