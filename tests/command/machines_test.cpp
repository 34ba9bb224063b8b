// Runs on several machines, each a set of namespaces of its own (machines.h).
#include "tests/command/machines.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/command/checks.h"
#include "tests/command/told.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

const std::string port = "7070";

void write_token(const std::string& path, char of) {
  std::ofstream(path) << std::string(40, of) << "\n";
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
}

/// A run on machines, the command on the first one, and an agent on each.
struct OnMachines {
  const Machines& machines;
  TempDir dir;
  std::string out = dir / "out", token = dir / "token";
  int places = 1;  // of each machine
  std::string wait_s = "20";

  explicit OnMachines(const Machines& m) : machines(m) { write_token(token, 't'); }

  std::vector<std::string> command(int nodes, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{
        "--nodes", std::to_string(nodes), "--listen", Machines::address(0) + ":" + port, "--token-file", token,
        "--quiet"};
    for (int rank = 0; rank < nodes * places; ++rank)
      arguments.insert(arguments.end(), {"--net-device", machines.name(rank / places)});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return machines.on(0, train(out, arguments));
  }
  std::vector<std::string> agent(int i, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"agent",
                                       "--join",
                                       Machines::address(0) + ":" + port,
                                       "--token-file",
                                       token,
                                       "--places",
                                       std::to_string(places),
                                       "--wait",
                                       wait_s};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return machines.on(i, troupe_command(arguments));
  }
};

/// The one incident of a run; a busy machine has lines of stragglers, too.
nlohmann::json the_incident(const std::string& out) {
  std::istringstream lines(read(out + "/incidents.jsonl"));
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(lines, line);)
    if (auto object = nlohmann::json::parse(line); !object.contains("straggler")) found.push_back(std::move(object));
  REQUIRE(found.size() == 1);
  return found[0];
}

/// Whether the workers of an agent end within 5 s.
bool have_ended(const Run& agent) {
  for (int i = 0; i < 500 && !agent.workers().empty(); ++i) ::usleep(10'000);
  return agent.workers().empty();
}

}  // namespace

TEST_CASE("two machines train bitwise like one worker, whichever agent joins first") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const std::vector<std::string> steps{"--steps", "20"};
  const std::string expected = told_alone(steps);
  for (const std::string mesh : {"dp=2", "pp=2", "dp=2,pp=2"}) {
    CAPTURE(mesh);
    OnMachines job(machines);
    if (mesh == "dp=2,pp=2") job.places = 2;
    std::vector<std::string> more{"--mesh", mesh};
    more.insert(more.end(), steps.begin(), steps.end());
    Run late(job.agent(1));
    Run command(job.command(2, more));
    Run agent(job.agent(0));
    check_success(command.wait());
    for (Run* one : {&late, &agent}) {
      const Outcome o = one->wait();
      INFO(o.err);
      CHECK(o.code == exit_ok);
      CHECK(o.err.find("the job takes this machine") != std::string::npos);
      check_nothing_left(o);
    }
    CHECK(told_by(job.out) == expected);
  }
}

TEST_CASE("an agent with another token is refused, and the run waits for one that has it") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  OnMachines job(machines);
  const std::string right = job.token;
  Run command(job.command(1, {"--mesh", "dp=1", "--steps", "3"}));
  job.token = job.dir / "other";
  write_token(job.token, 'o');
  job.wait_s = "2";
  const Outcome other = run(job.agent(1));
  CHECK(other.code == exit_worker);
  CHECK(other.err.find("it may have another token") != std::string::npos);
  job.token = right;
  const Outcome agent = run(job.agent(0));
  CHECK(agent.code == exit_ok);
  const Outcome o = command.wait();
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(o.err.find(" from 10.77.8.2 refused, the last one: the peer has another token") != std::string::npos);
}

TEST_CASE("a worker on another machine that dies comes back there, and the run goes on from its memory") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  const std::vector<std::string> steps{"--steps", "60", "--set", "schedule.batch=8"};
  std::vector<std::string> more{"--mesh", "dp=2", "--recovery", "slots", "--inject", "SIGKILL@update:mid#40/worker1"};
  more.insert(more.end(), steps.begin(), steps.end());
  Run here(job.agent(0)), there(job.agent(1));
  const Outcome o = run(job.command(2, more));
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(job.out) == told_alone(steps));
  const auto incident = the_incident(job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["lost"] == std::vector<int>{1});
  for (Run* agent : {&here, &there}) CHECK(agent->wait().code == exit_ok);
}

namespace {

/// Two machines train until `lose` takes one of them away: the run goes on with the other, bitwise. `cause`: what it
/// says of the loss; `after`: what is seen to once it is over.
void lose_a_machine(int steps, const std::function<void(const Machines&, Run&)>& lose, const std::string& cause,
                    const std::function<void(Run&)>& after, double most_s = 4) {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  const std::vector<std::string> words{"--steps", std::to_string(steps), "--set", "schedule.batch=8"};
  std::vector<std::string> more{"--mesh", "dp=2", "--recovery", "slots", "--replace", "never"};
  more.insert(more.end(), words.begin(), words.end());
  Run here(job.agent(0)), there(job.agent(1));
  Run command(job.command(2, more));
  REQUIRE(command.wait_for_lines(job.out + "/metrics.jsonl", 20));
  REQUIRE(there.workers().size() == 1);
  lose(machines, there);
  const Outcome o = command.wait(60);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(job.out) == told_alone(words));
  const auto incident = the_incident(job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["mesh"] == "dp=1");
  const std::string told = incident["cause"], lost = "was lost with machine " + machines.name(1) + ": " + cause;
  const auto at = told.find(lost);
  REQUIRE_MESSAGE(at != std::string::npos, told);
  if (!cause.empty()) CHECK(std::atof(told.c_str() + at + lost.size()) <= most_s);  // twice the budget
  CHECK(here.wait().code == exit_ok);
  after(there);
  check_nothing_left(there.wait());
}

}  // namespace

TEST_CASE("a machine that is lost takes its workers with it, and the run goes on with what is left") {
  lose_a_machine(
      300, [](const Machines&, Run& there) { there.send_to_group(SIGKILL); }, "", [](Run&) {});
}

TEST_CASE("an agent that is told to end is lost, with its workers, and says 130") {
  lose_a_machine(
      300, [](const Machines&, Run& there) { there.send_to_group(SIGTERM); }, "",
      [](Run& there) { CHECK(there.wait().code == exit_interrupted); });
}

TEST_CASE(
    "a machine that is cut off is lost after the budget, and its workers end; the run goes on with what is left") {
  lose_a_machine(
      400, [](const Machines& machines, Run&) { machines.cut(1); }, "its agent has said nothing for",
      [](Run& there) {
        for (int i = 0; i < 100 && !there.workers().empty(); ++i) ::usleep(100'000);  // it waits for ten seconds itself
        CHECK(there.workers().empty());
        there.send_to_group(SIGKILL);
      });
}

TEST_CASE("a worker that crashes takes its state from another machine, over the network") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  const std::vector<std::string> steps{"--steps", "60", "--set", "schedule.batch=8"};
  std::vector<std::string> more{"--mesh",          "dp=2",  "--recovery", "slots",
                                "--detect-budget", "20000", "--inject",   "SIGSEGV@update:mid#40/worker1"};
  more.insert(more.end(), steps.begin(), steps.end());
  Run here(job.agent(0)), there(job.agent(1));
  const Outcome o = run(job.command(2, more));
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(job.out) == told_alone(steps));
  const auto incident = the_incident(job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["moved_bytes"].get<std::int64_t>() > 1'000'000);  // parameters and moments of lm-tiny, whole
  for (Run* agent : {&here, &there}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("another mesh on request moves state between machines, and repeats no step") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  OnMachines job(machines);
  job.places = 2;
  const std::vector<std::string> steps{"--steps", "300", "--set", "schedule.batch=8"};
  std::vector<std::string> more{"--mesh", "dp=2,pp=2", "--recovery", "slots", "--detect-budget", "20000"};
  more.insert(more.end(), steps.begin(), steps.end());
  Run here(job.agent(0)), there(job.agent(1));
  Run command(job.command(2, more));
  for (const std::string mesh : {"dp=3", "pp=2", "dp=4"}) {
    const auto before = read(job.out + "/metrics.jsonl");
    REQUIRE(command.wait_for_lines(job.out + "/metrics.jsonl",
                                   10 + static_cast<int>(std::count(before.begin(), before.end(), '\n'))));
    const Outcome scaled = run(troupe_command({"scale", job.out, "--mesh", mesh}));
    INFO(scaled.err);
    REQUIRE(scaled.code == exit_ok);
  }
  const Outcome o = command.wait(60);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(job.out) == told_alone(steps));
  std::istringstream lines(read(job.out + "/incidents.jsonl"));
  int changes = 0;
  std::int64_t moved_bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto incident = nlohmann::json::parse(line);
    if (!incident.contains("planned")) continue;
    CHECK(incident["mesh"] == std::vector<std::string>{"dp=3", "pp=2", "dp=4"}.at(static_cast<std::size_t>(changes++)));
    moved_bytes += incident.value("moved_bytes", std::int64_t{0});
    CHECK(incident["from"] == "memory");
    CHECK(incident["step"] == incident["committed"]);
  }
  CHECK(changes == 3);
  CHECK(moved_bytes > 1'000'000);
  for (Run* agent : {&here, &there}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("an agent that has joined waits with the run for the other machines, however long") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  OnMachines job(machines);
  Run command(job.command(2, {"--mesh", "dp=2", "--steps", "3"}));
  job.wait_s = "1";
  while (!std::filesystem::exists(job.out)) ::usleep(10'000);
  ::usleep(500'000);  // the run listens
  Run early(job.agent(0));
  ::sleep(3);  // longer than it waits for a run
  Run other(job.agent(1));
  const Outcome o = command.wait();
  INFO(o.err);
  CHECK(o.code == exit_ok);
  for (Run* agent : {&early, &other}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("a run that waits for its agents ends by a signal with 130") {
  TempDir dir;
  write_token(dir / "token", 't');
  Run command(
      train(dir / "out", {"--quiet", "--nodes", "1", "--listen", "127.0.0.1:0", "--token-file", dir / "token"}));
  while (!std::filesystem::exists(dir / "out")) ::usleep(10'000);
  ::usleep(500'000);
  command.send(SIGTERM);
  check_one_line(command.wait(5), exit_interrupted, {"interrupted by Terminated"});
}

TEST_CASE("a run that is killed leaves no worker on any machine; its agents wait for the next one") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  OnMachines job(machines);
  job.wait_s = "3";
  Run here(job.agent(0)), there(job.agent(1));
  Run first(job.command(2, {"--mesh", "dp=2", "--steps", "10000000"}));
  REQUIRE(first.wait_for_lines(job.out + "/metrics.jsonl", 3));
  ::sleep(4);  // longer than agents wait for a run
  first.send_to_group(SIGKILL);
  check_nothing_left(first.wait(5));
  for (Run* agent : {&here, &there}) CHECK(have_ended(*agent));
  Outcome o;
  {
    OnMachines again(machines);
    again.token = job.token;
    o = run(again.command(2, {"--mesh", "dp=2", "--steps", "3"}));
  }
  INFO(o.err);
  CHECK(o.code == exit_ok);
  for (Run* agent : {&here, &there}) {
    const Outcome a = agent->wait();
    CHECK(a.code == exit_ok);
    check_nothing_left(a);
  }
}

TEST_CASE("an agent, or a run on machines, that cannot be is refused in one line before anything starts") {
  TempDir dir;
  write_token(dir / "token", 't');
  const auto agent = [&](const std::string& join, const std::string& token) {
    return run(troupe_command({"agent", "--join", join, "--token-file", token, "--wait", "1"}));
  };
  check_one_line(agent("nowhere", dir / "token"), exit_usage, {"'nowhere': expected HOST:PORT"});
  check_one_line(agent("::1:7070", dir / "token"), exit_usage, {"[fd00::1]:7070"});
  check_one_line(agent("node:65536", dir / "token"), exit_usage, {"'node:65536': expected HOST:PORT"});
  check_one_line(agent("127.0.0.1:7", dir / "none"), exit_usage, {"cannot read the token", "No such file"});
  REQUIRE(::chmod((dir / "token").c_str(), 0644) == 0);
  check_one_line(agent("127.0.0.1:7", dir / "token"), exit_usage, {"mode 0644", "chmod 600"});
  REQUIRE(::chmod((dir / "token").c_str(), 0600) == 0);
  const auto on_machines = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--quiet", "--steps", "1", "--nodes", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(train(dir / "out", words));
  };
  check_one_line(on_machines({}), exit_usage, {"--nodes requires --listen"});
  check_one_line(on_machines({"--listen", "127.0.0.1:0", "--token-file", dir / "token", "--node-wait", "1"}),
                 exit_worker, {"0 of 2 machines have joined within 1 s"});
  check_one_line(on_machines({"--listen", "127.0.0.1:0", "--token-file", dir / "token", "--pin"}), exit_plan,
                 {"pin", "other machines"});
}
