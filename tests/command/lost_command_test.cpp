// Runs whose own process is lost, or stops: they go on from what their agents have kept in memory.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "tests/command/on_machines.h"
#include "tests/command/summary.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// Steps whose lines are written.
int steps_in(const std::string& out) {
  std::istringstream lines(read(out + "/metrics.jsonl"));
  int steps = 0;
  for (std::string line; std::getline(lines, line);) steps += line.find("\"loss\":") != std::string::npos ? 1 : 0;
  return steps;
}

/// A run on machines 0 and 1, whose command is on machine 2: its end takes no worker's machine with it.
struct LostCommand {
  Machines machines{3};
  OnMachines job{machines};
  std::vector<std::string> words{"--recovery", "slots", "--set", "schedule.batch=8", "--steps"};
  std::unique_ptr<Run> here, there;

  LostCommand() { job.host = 2; }
  void begin_agents() {
    here = std::make_unique<Run>(job.agent(0));
    there = std::make_unique<Run>(job.agent(1));
  }
  std::vector<std::string> command(const std::string& mesh, const std::string& steps,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"--mesh", mesh};
    all.insert(all.end(), words.begin(), words.end());
    all.push_back(steps);
    all.insert(all.end(), more.begin(), more.end());
    return job.command(2, all);
  }
  std::vector<std::string> alone(const std::string& steps) const {
    return {"--set", "schedule.batch=8", "--steps", steps};
  }
};

}  // namespace

TEST_CASE("a command that is stopped for longer than its agents wait for it goes on with what they have kept") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.mesh = "pp=2";
  w.begin();
  w.command->send_to_group(SIGSTOP);
  for (Run* agent : {w.here.get(), w.there.get()})
    for (int i = 0; i < 200 && !agent->workers().empty(); ++i) ::usleep(100'000);
  for (Run* agent : {w.here.get(), w.there.get()}) CHECK(agent->workers().empty());
  w.command->send_to_group(SIGCONT);
  w.check_end();
  const auto incident = the_incident(w.job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["committed"].get<int>() - incident["step"].get<int>() <= 1);
  for (Run* agent : {w.here.get(), w.there.get()}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("a run whose process is killed goes on from what its agents have in memory, with a step repeated at most") {
  for (const std::string mesh : {"dp=2", "pp=2"}) {
    CAPTURE(mesh);
    LostCommand lost;
    if (!lost.machines.ok) return skip(Machines::why_not);
    lost.begin_agents();
    Run first(lost.command(mesh, "150"));
    REQUIRE(first.wait_for_lines(lost.job.out + "/metrics.jsonl", 30));
    first.send_to_group(SIGKILL);
    check_nothing_left(first.wait(5));
    const int told = steps_in(lost.job.out);
    const Outcome o = run(lost.command(mesh, "150", {"--resume", "memory"}), 60);
    INFO(o.err);
    CHECK(o.code == exit_ok);
    CHECK(told_by(lost.job.out) == told_alone(lost.alone("150")));
    const auto incident = the_loss(lost.job.out);
    CHECK(incident["from"] == "memory");
    CHECK(incident["step"].get<int>() <= told);
    CHECK(incident["step"].get<int>() >= told - 1);
    for (Run* agent : {lost.here.get(), lost.there.get()}) CHECK(agent->wait().code == exit_ok);
    const Outcome again = run(lost.command(mesh, "150", {"--resume", "memory"}), 60);  // no agent is there
    CHECK(again.code == exit_ok);
    check_failure(run(lost.command(mesh, "151", {"--resume", "memory", "--node-wait", "1"})), exit_worker,
                  {"0 of 2 machines"});  // it has a step to do
  }
}

TEST_CASE("a run whose mesh has changed goes on with that mesh from the memory that its agents have kept") {
  LostCommand lost;
  if (!lost.machines.ok) return skip(Machines::why_not);
  const auto links = slow_links(5);
  lost.words.insert(lost.words.begin(), links.begin(), links.end());
  lost.begin_agents();
  const std::string metrics = lost.job.out + "/metrics.jsonl";
  for (const std::string mesh : {"pp=2", "dp=2"}) {  // to another one, and back
    CAPTURE(mesh);
    Run command(lost.command(
        "dp=2", "400", mesh == "pp=2" ? std::vector<std::string>{} : std::vector<std::string>{"--resume", "memory"}));
    REQUIRE(command.wait_for_lines(metrics, count_lines(metrics) + 20));
    REQUIRE(run(troupe_command({"scale", lost.job.out, "--mesh", mesh})).code == exit_ok);
    const auto changed = [&] { return incidents_of(lost.job.out).back()["mesh"] == mesh; };
    for (int i = 0; i < 600 && (incidents_of(lost.job.out).empty() || !changed()); ++i) ::usleep(100'000);
    REQUIRE(changed());
    REQUIRE(command.wait_for_lines(metrics, count_lines(metrics) + 10));
    command.send_to_group(SIGKILL);
    check_nothing_left(command.wait(5));
  }
  const int told = steps_in(lost.job.out);
  const Outcome o = run(lost.command("dp=2", "400", {"--resume", "memory"}), 150);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(lost.job.out) == told_alone(lost.alone("400")));
  const auto losses = losses_of(lost.job.out);
  REQUIRE(losses.size() == 2);
  for (const auto& loss : losses) CHECK(loss["from"] == "memory");
  CHECK(losses.back()["step"].get<int>() >= told - 1);
  for (Run* agent : {lost.here.get(), lost.there.get()}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("a run that was lost with fewer machines than it began with comes back to its first mesh when one joins") {
  LostCommand lost;
  if (!lost.machines.ok) return skip(Machines::why_not);
  lost.job.places = 2;
  lost.words.insert(lost.words.begin(), {"--replace", "never"});
  const auto links = slow_links(10);
  lost.words.insert(lost.words.begin(), links.begin(), links.end());
  lost.begin_agents();
  const std::string metrics = lost.job.out + "/metrics.jsonl";
  const auto has_mesh = [&](const std::string& mesh) {
    for (int i = 0; i < 600; ++i, ::usleep(100'000))
      if (const auto all = incidents_of(lost.job.out); !all.empty() && all.back().value("mesh", "") == mesh)
        return true;
    return false;
  };
  {
    Run first(lost.command("dp=3", "200"));
    REQUIRE(first.wait_for_lines(metrics, 20));
    lost.there->send_to_group(SIGKILL);
    REQUIRE(has_mesh("dp=2"));
    REQUIRE(first.wait_for_lines(metrics, count_lines(metrics) + 10));
    first.send_to_group(SIGKILL);
    check_nothing_left(first.wait(5));
  }
  Run second(lost.command("dp=3", "200", {"--resume", "memory"}));
  REQUIRE(second.wait_for_lines(metrics, count_lines(metrics) + 10));
  CHECK(summary(lost.job.out).at("mesh_at_end") == "dp=2");
  Run again(lost.job.agent(1));
  CHECK(has_mesh("dp=3"));
  const Outcome o = second.wait(150);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(lost.job.out) == told_alone(lost.alone("200")));
  CHECK(the_loss(lost.job.out)["from"] == "memory");
  const auto last = incidents_of(lost.job.out).back();
  REQUIRE(last.value("mesh", "") == "dp=3");
  CHECK(last["cause"] == "machine " + lost.machines.name(1) + " has joined");
  CHECK(summary(lost.job.out).at("mesh_at_end") == "dp=3");
  for (Run* agent : {lost.here.get(), &again}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE(
    "a run whose process is lost goes on from a checkpoint where no agent has kept anything, or says that none is") {
  for (const bool saves : {true, false}) {
    CAPTURE(saves);
    LostCommand lost;
    if (!lost.machines.ok) return skip(Machines::why_not);
    if (saves) lost.words.insert(lost.words.begin(), {"--checkpoint-every", "10"});
    lost.begin_agents();
    const std::string metrics = lost.job.out + "/metrics.jsonl";
    {
      Run first(lost.command("dp=2", "150"));
      REQUIRE(first.wait_for_lines(metrics, 40));
      first.send_to_group(SIGKILL);
      check_nothing_left(first.wait(5));
    }
    for (Run* agent : {lost.here.get(), lost.there.get()}) agent->send_to_group(SIGKILL);
    lost.begin_agents();
    const Outcome o = run(lost.command("dp=2", "150", {"--resume", "memory"}), 60);
    INFO(o.err);
    CHECK(o.err.find("the agents have kept no whole step of this run: they have kept nothing") != std::string::npos);
    CHECK(o.code == (saves ? exit_ok : exit_checkpoint));
    if (saves) CHECK(told_by(lost.job.out) == told_alone(lost.alone("150")));
  }
}

TEST_CASE(
    "a run whose process is lost with a machine says what is missing, and for how many workers there is no place") {
  struct Case {
    std::string mesh;
    int code;
    std::string says;
  };
  for (const auto& [mesh, code, says] :
       {Case{"pp=2", exit_checkpoint, "no whole step of this run: a machine that has a part of it is missing"},
        Case{"dp=4", exit_usage,
             "the job needs 2 places beside the workers that agents have kept, and its machines have 1"}}) {
    CAPTURE(mesh);
    LostCommand lost;
    if (!lost.machines.ok) return skip(Machines::why_not);
    lost.job.places = mesh == "dp=4" ? 2 : 1;
    lost.words.insert(lost.words.begin(), {"--guard-every", "off"});  // no machine has a copy of another one's part
    lost.begin_agents();
    Run first(lost.command(mesh, "10000000"));
    REQUIRE(first.wait_for_lines(lost.job.out + "/metrics.jsonl", 10));
    lost.there->send_to_group(SIGKILL);
    first.send_to_group(SIGKILL);
    check_nothing_left(first.wait(5));
    lost.job.places = 1;
    lost.there = std::make_unique<Run>(lost.job.agent(1));
    const std::vector<std::string> more{"--resume", "memory", "--node-wait", "5"};
    check_failure(run(lost.command(mesh, "10000000", more)), code, {says});
    if (code != exit_checkpoint) continue;
    write_text(lost.job.out + "/metrics.jsonl", "");
    check_failure(run(lost.command(mesh, "10000000", more)), exit_checkpoint, {"metrics.jsonl' has no line of a step"});
  }
}

TEST_CASE("a run that is gone on with, and has lost lines of steps that its agents have kept, says so") {
  LostCommand lost;
  if (!lost.machines.ok) return skip(Machines::why_not);
  lost.begin_agents();
  const std::string metrics = lost.job.out + "/metrics.jsonl";
  {
    Run first(lost.command("dp=2", "300"));
    REQUIRE(first.wait_for_lines(metrics, 40));
    first.send_to_group(SIGKILL);
    check_nothing_left(first.wait(5));
  }
  const std::string whole = read(metrics);
  std::string torn = whole;
  for (int line = 0; line < 5; ++line) torn.erase(torn.rfind('\n', torn.size() - 2) + 1);
  write_text(metrics, torn);
  const std::vector<std::string> more{"--resume", "memory", "--node-wait", "5"};
  check_failure(
      run(lost.command("dp=2", "300", more)), exit_checkpoint,
      {"the agents have kept no whole step of this run: they have kept step ",
       "metrics.jsonl' ends with step " + std::to_string(steps_in(lost.job.out) - 1) + ": lines of it are lost"});
  write_text(metrics, whole);
  const Outcome o = run(lost.command("dp=2", "300", more), 60);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(lost.job.out) == told_alone(lost.alone("300")));
}

/// TROUPE_KILLS=50 for the figure that is promised; a few in an ordinary run of the tests.
TEST_CASE("kill -9 of the command at random times, over and over, repeats at most a step each time and skips none") {
  const char* chosen = std::getenv("TROUPE_KILLS");
  const int kills = chosen ? std::atoi(chosen) : 4;
  LostCommand lost;
  if (!lost.machines.ok) return skip(Machines::why_not);
  lost.words = {"--recovery", "slots", "--set", "schedule.batch=8", "--set", "eval.every=0", "--steps"};
  const std::string steps = std::to_string(100 + 40 * kills);
  lost.begin_agents();
  std::mt19937 random(static_cast<unsigned>(kills) + 1);
  const std::string lines = lost.job.out + "/metrics.jsonl";
  std::vector<std::string> more;
  std::vector<int> told;  // steps, at each kill
  int begun = 0;          // starts that have done steps
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill);
    Run command(lost.command("dp=2", steps, more));
    more = {"--resume", "memory"};
    // Every third time also while it begins anew.
    if (kill % 3 != 2 && !command.wait_for_lines(lines, count_lines(lines) + 5)) {
      if (std::getenv("TROUPE_HOLD")) ::sleep(600);
      const Outcome o = command.wait(1);
      FAIL("code " << o.code << ": " << o.err);
    }
    ::usleep(random() % (kill % 3 != 2 ? 150'000 : 1'500'000));
    command.send_to_group(SIGKILL);
    check_nothing_left(command.wait(5));
    told.push_back(steps_in(lost.job.out));
    if (kill % 3 != 2) ++begun;
  }
  const Outcome o = run(lost.command("dp=2", steps, more), 120);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(lost.job.out) ==
        told_alone({"--set", "schedule.batch=8", "--set", "eval.every=0", "--steps", steps}, 300));
  const auto incidents = losses_of(lost.job.out);
  CHECK(std::ssize(incidents) <= kills);  // none of a start that was killed before it had begun
  CHECK(std::ssize(incidents) >= begun);  // of all but the first, and the last one
  for (const auto& incident : incidents) {
    CHECK(incident["from"] == "memory");
    const int step = incident["step"];
    CHECK(std::any_of(told.begin(), told.end(), [&](int t) { return step == t || step == t - 1; }));
  }
  MESSAGE(kills << " kills, all gone on from memory");
}

TEST_CASE("a run is not gone on with from memory of another configuration") {
  LostCommand lost;
  if (!lost.machines.ok) return skip(Machines::why_not);
  lost.begin_agents();
  Run first(lost.command("dp=2", "150"));
  REQUIRE(first.wait_for_lines(lost.job.out + "/metrics.jsonl", 20));
  first.send_to_group(SIGKILL);
  check_nothing_left(first.wait(5));
  const auto before = read(lost.job.out + "/metrics.jsonl");
  const Outcome o = run(lost.command("dp=2", "150", {"--resume", "memory", "--set", "schedule.lr=0.5"}));
  CHECK(o.code == exit_checkpoint);
  CHECK(o.err.find("they have kept is of another configuration, text or output folder") != std::string::npos);
  CHECK(read(lost.job.out + "/metrics.jsonl") == before);
  check_failure(run(lost.job.command(2, {"--mesh", "dp=2", "--steps", "150", "--resume", "memory"})), exit_usage,
                {"--resume memory: without --recovery"});
  check_one_line(run(train(lost.job.out, {"--resume", "memory"})), exit_usage, {"--resume memory", "--nodes"});
}

TEST_CASE(
    "a run whose process is killed goes on from memory as it has decided: its costs have vanished, and a machine comes "
    "first that would have all ranks") {
  LostCommand lost;
  if (!lost.machines.ok) return skip(Machines::why_not);
  lost.job.places = 2;
  const std::string costs = lost.job.dir / "costs.toml", plan = lost.job.out + "/plan.txt";
  write_text(costs,
             "version = 4\nmachine = \"m\"\nthreads = 1\nhandover_us = 40\n[intra_node]\nlatency_us = 30\ngb_per_s = "
             "2\n[inter_node]\nlatency_us = 20000\ngb_per_s = 1\nrendezvous_us = 0\nmachines = []\n[[kernels]]\n"
             "workers = 1\ngflops = 10\nmemory_gb_per_s = 10\nlaunch_us = 1\n[kernels.times]\n");
  lost.words.insert(lost.words.begin(), {"--costs", costs});
  lost.begin_agents();
  Run first(lost.command("dp=2,pp=2", "150"));
  REQUIRE(first.wait_for_lines(lost.job.out + "/metrics.jsonl", 20));
  first.send_to_group(SIGKILL);
  check_nothing_left(first.wait(5));
  CHECK(read(plan).find("\norder       replica by replica") != std::string::npos);
  std::filesystem::remove(costs);
  lost.job.places = 4;
  Run third(lost.job.agent(2, {"--name", "0"}));
  const Outcome o = run(lost.command("dp=2,pp=2", "150", {"--resume", "memory"}), 120);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(told_by(lost.job.out) == told_alone(lost.alone("150")));
  CHECK(the_loss(lost.job.out)["from"] == "memory");
  CHECK_MESSAGE(read(plan).find("\ndecided     as the run began") != std::string::npos, read(plan));
  for (Run* agent : {lost.here.get(), lost.there.get(), &third}) CHECK(agent->wait().code == exit_ok);
}
