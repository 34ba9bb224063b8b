// Runs that lose a machine for good with the only copy of a part of the state: they go on from what the next machine
// guards, without a disk.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "tests/command/on_machines.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

void check_from_guard(const nlohmann::json& incident, int within) {
  INFO(incident.dump());
  CHECK(incident["from"] == "guard");
  CHECK(incident["committed"].get<int>() - incident["step"].get<int>() <= within);
}

}  // namespace

TEST_CASE(
    "the only copy of a stage, lost for good with its machine: another one takes it from a guard, at most K steps are "
    "repeated, bitwise, without a disk; so it is when that one is lost") {
  constexpr int within = 3;
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.mesh = "pp=2";
  w.steps = {"--steps", "300", "--set", "schedule.batch=8", "--set", "eval.every=0"};
  w.begin({"--guard-every", std::to_string(within)});
  Run third(w.job.agent(2));
  const std::string idle = "without a worker: ";
  REQUIRE(w.says(idle + w.machines.name(2)));
  REQUIRE(w.says("newest guard of step"));
  w.there->send_to_group(SIGKILL);
  for (int i = 0; i < 300 && incidents_of(w.job.out).empty(); ++i) ::usleep(100'000);
  // Ten steps of the new generation: the guard that is told of is its own.
  REQUIRE(w.command->wait_for_lines(w.job.out + "/metrics.jsonl", count_lines(w.job.out + "/metrics.jsonl") + 10));
  Run again(w.job.agent(1));
  REQUIRE(w.says(idle + w.machines.name(1)));
  REQUIRE(w.says("newest guard of step"));
  third.send_to_group(SIGKILL);
  w.check_end();
  const auto incidents = incidents_of(w.job.out);
  REQUIRE(incidents.size() == 2);
  for (const auto& incident : incidents) check_from_guard(incident, within);
  CHECK(!std::filesystem::exists(w.job.out + "/checkpoints"));
  for (Run* agent : {w.here.get(), &again}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("moments that ZeRO divides over machines are guarded, with the K that the plan predicts; off: they are not") {
  for (const bool on : {true, false}) {
    CAPTURE(on);
    WaitingRun w;
    if (!w.machines.ok) return skip(Machines::why_not);
    w.steps = {"--steps", "200", "--set", "schedule.batch=8", "--set", "eval.every=0"};
    std::vector<std::string> more{"--zero", "1"};
    if (!on) more.insert(more.end(), {"--guard-every", "off"});
    w.begin(more);
    Run third(w.job.agent(2));
    REQUIRE(w.says("without a worker: " + w.machines.name(2)));
    if (on) REQUIRE(w.says("newest guard of step"));
    else CHECK(run(troupe_command({"ps", w.job.out})).out.find("guard") == std::string::npos);
    w.there->send_to_group(SIGKILL);
    w.check_end();
    const auto incident = the_incident(w.job.out);
    const std::string plan = read(w.job.out + "/plan.txt");
    CHECK((plan.find("\nguards ") != std::string::npos) == on);
    if (on) {
      const std::size_t at = plan.find("takes back ");
      int within = 0;
      REQUIRE(std::sscanf(plan.c_str() + at, "takes back %d step", &within) == 1);
      check_from_guard(incident, within);
    } else CHECK(incident["from"] == "initial values");
    for (Run* agent : {w.here.get(), &third}) CHECK(agent->wait().code == exit_ok);
  }
}

// Not run by itself: build/tests/test_command -ns -tc="measure guards*" (docs/measurements/2026-11-28-machines.md).
TEST_CASE("measure guards: the step of pp=2 on two machines, with guards and without, by turns" * doctest::skip()) {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const std::vector<std::string> kinds{"off", "auto", "2", "8"};
  std::map<std::string, std::vector<double>> medians;  // ms, by kind: of each run
  for (int pair = 0; pair < 7; ++pair)
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::string& kind = kinds[(i + static_cast<std::size_t>(pair)) % kinds.size()];
      const OnMachines job(machines);
      Run here(job.agent(0)), there(job.agent(1));
      check_success(run(job.command(2, {"--mesh", "pp=2", "--recovery", "slots", "--steps", "150", "--set",
                                        "schedule.batch=8", "--set", "eval.every=0", "--guard-every", kind})));
      std::istringstream lines(read(job.out + "/metrics.jsonl"));
      std::vector<double> ms;
      for (std::string line; std::getline(lines, line);)
        if (const auto object = nlohmann::json::parse(line); object.contains("step_ms"))
          ms.push_back(object["step_ms"]);
      REQUIRE(ms.size() > 100);
      ms.erase(ms.begin(), ms.begin() + 30);
      std::nth_element(ms.begin(), ms.begin() + std::ssize(ms) / 2, ms.end());
      medians[kind].push_back(ms[ms.size() / 2]);
      for (Run* agent : {&here, &there}) CHECK(agent->wait().code == exit_ok);
    }
  for (const std::string& kind : kinds) {
    std::vector<double> ratios;  // to the run without guards of the same round
    for (std::size_t i = 0; i < medians[kind].size(); ++i) ratios.push_back(medians[kind][i] / medians["off"][i]);
    std::sort(ratios.begin(), ratios.end());
    std::sort(medians[kind].begin(), medians[kind].end());
    std::printf("--guard-every %s: median step %.3f ms; over that without guards %.3f (from %.3f to %.3f)\n",
                kind.c_str(), medians[kind][medians[kind].size() / 2], ratios[ratios.size() / 2], ratios.front(),
                ratios.back());
  }
}
