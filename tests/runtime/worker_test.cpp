// A worker while it is made, before it hears of a session.
#include <doctest/doctest.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <utility>

#include "comm/sim/sim_network.h"
#include "devices/sim/sim_device.h"
#include "runtime/worker/worker.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

TEST_CASE("a parameter that gets its initial values is progress, piece by piece, before the worker is made") {
  constexpr std::int64_t width = 1024;
  Graph g(ops());
  g.program("train", {1, 2});
  g.unit("all");
  const Value x = g.actor("data", "x", {}, {{"x", {DType::f32, {2, width}}}}, {{"stream", std::string("x")}})[0];
  const Value t = g.actor("data", "t", {}, {{"t", {DType::f32, {2, width}}}}, {{"stream", std::string("t")}})[0];
  const Value y = g.op("linear", {x, g.param("w", {width, width}, Init::normal(0.3f))})[0];
  g.minimize(g.op("mse_loss", {y, t}, {{"scale", 0.5}})[0], {});
  const auto p = compile_over(g, {1});
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  struct Config : caf::actor_system_config {
    Config() { set("scheduler.policy", caf::atom("testing")); }
  } config;
  SimLoop loop;
  comm::SimNetworkOptions net;
  net.ranks = 1;
  comm::SimNetwork network(loop.clock(), net);
  caf::actor_system system(config);
  auto& scheduler = dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  const auto drain = [&] {
    while (scheduler.has_job()) scheduler.run_once();
  };
  const auto set = actor_set();
  auto transport = network.open(0, 1, 1);
  auto device = std::make_unique<SimDevice>(loop);
  WorkerEnv env;
  env.system = &system;
  env.clock = &loop.clock();
  env.device = device.get();
  env.transport = transport.get();
  env.ops = &ops();
  env.user_actors = &set;
  env.job = 1;
  env.send = [](const FromWorker&) {};
  const auto progress = env.progress;
  CHECK(*progress == 0);
  auto worker = Worker::create(*p, 0, std::move(env));
  REQUIRE_MESSAGE(worker.ok(), worker.status().message());
  CHECK(*progress >= 4);  // of 1024 x 1024 values
  (*worker)->stop();
  drain();
  worker->reset();
  device.reset();
  transport.reset();
  drain();
}
