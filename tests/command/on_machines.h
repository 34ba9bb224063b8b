// A run on machines (machines.h), with an agent on each, for tests.
#pragma once

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/command/checks.h"
#include "tests/command/machines.h"
#include "tests/command/told.h"

namespace troupe::test {

inline const std::string agents_port = "7070";

inline void write_token(const std::string& path, char of) {
  std::ofstream(path) << std::string(40, of) << "\n";
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
}

/// A run on machines, the command on the first one, and an agent on each.
struct OnMachines {
  const Machines& machines;
  TempDir dir;
  std::string out = dir / "out", token = dir / "token";
  int places = 1;  // of each machine
  int host = 0;    // the machine of the command
  std::string wait_s = "20";

  explicit OnMachines(const Machines& m) : machines(m) { write_token(token, 't'); }

  std::vector<std::string> command(int nodes, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{"--nodes",      std::to_string(nodes),
                                       "--listen",     Machines::address(host) + ":" + agents_port,
                                       "--token-file", token,
                                       "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return machines.on(host, train(out, arguments));
  }
  std::vector<std::string> agent(int i, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"agent",
                                       "--join",
                                       Machines::address(host) + ":" + agents_port,
                                       "--token-file",
                                       token,
                                       "--places",
                                       std::to_string(places),
                                       "--wait",
                                       wait_s,
                                       "--net-device",
                                       machines.name(i)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return machines.on(i, troupe_command(arguments));
  }
};

/// The incidents and planned changes of a run; a busy machine has lines of stragglers, too.
inline std::vector<nlohmann::json> incidents_of(const std::string& out) {
  std::istringstream lines(read(out + "/incidents.jsonl"));
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(lines, line);)
    if (auto object = nlohmann::json::parse(line); !object.contains("straggler")) found.push_back(std::move(object));
  return found;
}

inline nlohmann::json the_incident(const std::string& out) {
  const auto found = incidents_of(out);
  REQUIRE(found.size() == 1);
  return found[0];
}

/// Those of them that say that a process which led the run was lost; a busy machine may have others, of workers that
/// were silent for too long.
inline std::vector<nlohmann::json> losses_of(const std::string& out) {
  auto found = incidents_of(out);
  std::erase_if(found,
                [](const nlohmann::json& one) { return one.value("cause", "") != "the process of the run was lost"; });
  return found;
}

inline nlohmann::json the_loss(const std::string& out) {
  const auto found = losses_of(out);
  REQUIRE(found.size() == 1);
  return found[0];
}

/// So slow is every message between workers at least: with 5 ms a hundred steps take three seconds on any machine.
inline std::vector<std::string> slow_links(int ms) { return {"--throttle", "latency=" + std::to_string(ms) + "ms"}; }

/// Two machines train until one of them is gone; the run waits for another one in its place.
struct WaitingRun {
  Machines machines{4};
  OnMachines job{machines};
  std::vector<std::string> steps{"--steps", "120", "--set", "schedule.batch=8"};
  std::string mesh = "dp=2";
  std::vector<std::string> links = slow_links(5);
  int first = 0, second = 1;  // the machines that train; the command is on 0
  std::unique_ptr<Run> here, there, command;

  void begin(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"--mesh", mesh, "--recovery", "slots"};
    words.insert(words.end(), steps.begin(), steps.end());
    words.insert(words.end(), links.begin(), links.end());
    words.insert(words.end(), more.begin(), more.end());
    here = std::make_unique<Run>(job.agent(first));
    there = std::make_unique<Run>(job.agent(second));
    command = std::make_unique<Run>(job.command(2, words));
    REQUIRE(command->wait_for_lines(job.out + "/metrics.jsonl", 20));
  }
  /// What the run says of itself has this, within 20 s.
  bool says(const std::string& text) const {
    for (int i = 0; i < 200; ++i, ::usleep(100'000))
      if (run(troupe_command({"ps", job.out})).out.find(text) != std::string::npos) return true;
    return false;
  }
  /// What a machine that has gone leaves of the run: lines stand still.
  void check_that_it_waits() {
    CHECK(says("waits for machines"));
    const int before = count_lines(job.out + "/metrics.jsonl");
    ::sleep(1);
    CHECK(count_lines(job.out + "/metrics.jsonl") == before);
  }
  void check_end() {
    const Outcome o = command->wait(240);
    INFO(o.err);
    CHECK(o.code == runtime::exit_ok);
    CHECK(told_by(job.out) == told_alone(steps));
    check_nothing_left(o);
  }
};

}  // namespace troupe::test
