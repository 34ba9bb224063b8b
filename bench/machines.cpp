// What it takes to bring a job on many machines together: its process and its agents in production, with workers that
// only say what a worker says as it begins. Prints CPU seconds and messages.
//
//   bench_machines [MACHINES, 1500] [PLACES of each, 8]
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "tests/runtime/mlp.h"
#include "tests/runtime/stub_machines.h"

using namespace troupe;
using namespace troupe::runtime;

int main(int argc, char** argv) {
  const int machines = argc > 1 ? std::atoi(argv[1]) : 1500, places = argc > 2 ? std::atoi(argv[2]) : 8;
  if (machines < 1 || places < 1) return std::fprintf(stderr, "bench_machines [MACHINES] [PLACES]\n"), 2;
  mlp::Shape_ shape;
  shape.microbatches = machines;
  CompileOptions o;
  o.stages = stage_meshes({machines}, places);  // tp inside a machine, dp across
  o.keeps_version = true;
  const auto plan = compile(mlp::graph(mlp::ops(), shape), o);
  if (!plan.ok()) return std::fprintf(stderr, "%s\n", plan.status().message().c_str()), 1;
  const double before_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const test::StubMachines all(*plan, machines, places);
  const double cpu_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC - before_s;
  std::int64_t to_agents = 0, to_job = 0, bytes = 0;
  for (const auto& m : all.machines())
    to_agents += m.messages_to_agent, to_job += m.messages_to_job, bytes += m.bytes_to_agent;
  std::printf(
      "%d machines of %d places: %.2f s of CPU until the job runs; %.1f messages to each agent, %.1f of each; "
      "%.1f MB to each\n",
      machines, places, cpu_s, static_cast<double>(to_agents) / machines, static_cast<double>(to_job) / machines,
      static_cast<double>(bytes) / machines * 1e-6);
  return 0;
}
