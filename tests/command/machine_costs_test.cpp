// Links between machines: measured by calibrate, and what plan, sim and train make of them.
#include "tests/command/on_machines.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// Costs of a machine of which links between machines are not known.
std::string write_costs_of_one(const TempDir& dir) {
  write_text(
      dir / "costs.toml",
      "version = 3\nmachine = \"m\"\nthreads = 1\nhandover_us = 40\n[intra_node]\nlatency_us = 30\ngb_per_s = 2\n"
      "[[kernels]]\nworkers = 1\ngflops = 10\nmemory_gb_per_s = 10\nlaunch_us = 1\n[kernels.times]\n");
  return dir / "costs.toml";
}

/// The typical link that was added to the costs of write_costs_of_one, which are as they were.
struct Link {
  double latency_s = 0, bytes_per_s = 0;
};

Link link_in(const std::string& costs) {
  const std::string text = read(costs);
  CHECK_MESSAGE(text.find("\nhandover_us = 40 ") != std::string::npos, text);
  const auto value = [&](const std::string& key) {
    const auto at = text.find("\n" + key + " = ", text.find("\n[inter_node]\n"));
    REQUIRE_MESSAGE(at != std::string::npos, text);
    return std::stod(text.substr(at + key.size() + 4));
  };
  return {value("latency_us") * 1e-6, value("gb_per_s") * 1e9};
}

}  // namespace

TEST_CASE("calibrate measures the rate of the cable between machines that ssh reaches") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  TempDir dir;
  const std::string costs = write_costs_of_one(dir), ssh = dir / "ssh";
  machines.write_ssh(ssh);
  for (const int i : {0, 1})
    if (!machines.limit_rate(i, 160)) return skip("tc has no tbf here");
  const auto o = run(machines.on(0, troupe_command({"calibrate", "--costs", costs, "--hosts",
                                                    machines.name(0) + "," + machines.name(1), "--ssh", ssh, "--listen",
                                                    Machines::address(0) + ":" + agents_port})),
                     120);
  INFO(o.err);
  REQUIRE(o.code == exit_ok);
  CHECK_MESSAGE(o.out.find(machines.name(0) + " and " + machines.name(1) + ": ") != std::string::npos, o.out);
  const auto link = link_in(costs);
  CHECK(link.bytes_per_s <= 20e6 * 1.2);
  CHECK(link.bytes_per_s >= 20e6 * 0.5);
  CHECK(link.latency_s < 0.05);
  check_nothing_left(o);
}

TEST_CASE("calibrate measures the delay between machines whose agents join, a worker on each; plan and sim heed it") {
  constexpr double planted_s = 30e-3;
  const Machines machines(3);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  const std::string costs = write_costs_of_one(job.dir);
  std::vector<std::unique_ptr<Run>> agents;
  for (int i = 0; i < 3; ++i) agents.push_back(std::make_unique<Run>(job.agent(i)));
  const auto o = run(machines.on(0, troupe_command({"calibrate", "--costs", costs, "--nodes", "3", "--listen",
                                                    Machines::address(0) + ":" + agents_port, "--token-file", job.token,
                                                    "--throttle", "latency=30ms,bandwidth=80MB/s"})),
                     120);
  INFO(o.err);
  REQUIRE(o.code == exit_ok);
  const auto link = link_in(costs);
  CHECK(link.latency_s >= planted_s / 2);  // a busy machine: hand-overs vary, and are taken off
  CHECK(link.latency_s <= 10 * planted_s);
  CHECK(link.bytes_per_s <= 80e6 * 1.5);
  CHECK(link.bytes_per_s >= 80e6 / 10);
  for (const auto& agent : agents) CHECK(agent->wait(60).code == exit_ok);
  const auto step_ms = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"sim", tiny_config, "--mesh", "pp=3", "--costs", costs};
    words.insert(words.end(), more.begin(), more.end());
    const auto sim = run(troupe_command(words));
    check_success(sim);
    const auto at = sim.out.find("\nstep        ");
    REQUIRE(at != std::string::npos);
    std::istringstream row(sim.out.substr(at + 13));
    double value = 0;
    std::string unit;
    row >> value >> unit;
    return value * (unit == "s" ? 1e3 : unit == "us" ? 1e-3 : 1);
  };
  // Each microbatch crosses two links there and back; those of a step overlap.
  const double apart = step_ms({"--nodes", "3"}), together = step_ms({"--nodes", "1", "--places", "3"});
  CHECK(apart >= together + 4e3 * link.latency_s);
  const auto plan =
      run(troupe_command({"plan", tiny_config, "--mesh", "pp=3", "--costs", costs, "--nodes", "2", "--places", "2"}));
  check_success(plan);
  CHECK_MESSAGE(plan.out.find("\nmachines    machine 0: ranks 0-1; machine 1: rank 2\n") != std::string::npos,
                plan.out);
}

TEST_CASE("ranks that fill machines replica by replica, since a pipeline over machines would be slow, train bitwise") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  OnMachines job(machines);
  job.places = 2;
  const std::string costs = write_costs_of_one(job.dir);
  write_text(costs, read(costs) + "[inter_node]\nlatency_us = 20000\ngb_per_s = 1\nrendezvous_us = 0\nmachines = []\n");
  const Run here(job.agent(0)), there(job.agent(1));
  check_success(run(job.command(2, {"--mesh", "dp=2,pp=2", "--steps", "20", "--costs", costs}), 60));
  CHECK(told_by(job.out) == told_alone({"--steps", "20"}));
  const std::string plan = read(job.out + "/plan.txt");
  CHECK_MESSAGE(plan.find("\nmachines    " + machines.name(0) + ": ranks 0-1; " + machines.name(1) + ": ranks 2-3\n") !=
                    std::string::npos,
                plan);
  CHECK(plan.find("\norder       replica by replica, tp innermost, is predicted to be fastest:") != std::string::npos);
}

TEST_CASE(
    "links between machines are refused without a machine's costs, one machine alone, and places that are too few") {
  TempDir dir;
  check_one_line(run(troupe_command({"calibrate", "--costs", dir / "none.toml", "--hosts", "a,b"})), exit_usage,
                 {"links between machines are added to a machine's costs", "none.toml"});
  const std::string costs = write_costs_of_one(dir);
  check_one_line(run(troupe_command({"calibrate", "--costs", costs, "--throttle", "latency=1ms"})), exit_usage,
                 {"--throttle is for links between machines"});
  check_one_line(run(troupe_command({"sim", tiny_config, "--mesh", "dp=2,pp=2", "--nodes", "3"})), exit_usage,
                 {"the mesh needs 4 places, and 3 machines have 3", "--places"});
  CHECK(run(troupe_command({"plan", tiny_config, "--places", "2"})).code == exit_usage);
}
