// Runs that lose machines: they go on with those that are left, or wait for others.
#include <signal.h>

#include <functional>

#include "tests/command/on_machines.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

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
void lose_a_machine(const std::function<void(const Machines&, Run&)>& lose, const std::string& cause,
                    const std::function<void(Run&)>& after, double most_s = 4) {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  const std::vector<std::string> words{"--steps", "120", "--set", "schedule.batch=8"};
  std::vector<std::string> more{"--mesh", "dp=2", "--recovery", "slots", "--replace", "never"};
  for (const auto& part : {words, slow_links(5)}) more.insert(more.end(), part.begin(), part.end());
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
  lose_a_machine([](const Machines&, Run& there) { there.send_to_group(SIGKILL); }, "", [](Run&) {});
}

TEST_CASE("an agent that is told to end is lost, with its workers, and says 130") {
  lose_a_machine([](const Machines&, Run& there) { there.send_to_group(SIGTERM); }, "",
                 [](Run& there) { CHECK(there.wait().code == exit_interrupted); });
}

TEST_CASE(
    "a machine that is cut off is lost after the budget, and its workers end; the run goes on with what is left") {
  lose_a_machine([](const Machines& machines, Run&) { machines.cut(1); }, "its agent has said nothing for",
                 [](Run& there) {
                   for (int i = 0; i < 100 && !there.workers().empty(); ++i)
                     ::usleep(100'000);  // it waits for ten seconds itself
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

TEST_CASE("a run that has lost a machine waits for it, and goes on with the same step when it has come back") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin();
  w.there->send_to_group(SIGKILL);
  w.check_that_it_waits();
  Run again(w.job.agent(1));
  w.check_end();
  const auto incident = the_incident(w.job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["mesh"] == "dp=2");
  CHECK(again.wait().code == exit_ok);
}

TEST_CASE("any machine takes the place of one that is lost, at once where it has joined before") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin();
  Run third(w.job.agent(2));
  for (int i = 0; i < 100 && read(w.job.out + "/run.json").empty(); ++i) ::usleep(10'000);
  ::sleep(1);
  w.there->send_to_group(SIGKILL);
  w.check_end();
  const auto incident = the_incident(w.job.out);
  CHECK(incident["from"] == "memory");
  CHECK(third.wait().code == exit_ok);
}

TEST_CASE("a run that waits in vain for a machine ends after --node-wait with code 6") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin({"--node-wait", "2"});
  w.there->send_to_group(SIGKILL);
  const Outcome o = w.command->wait(20);
  INFO(o.err);
  CHECK(o.code == exit_worker);
  CHECK(o.err.find("the run has lost machines, and too few have joined within 2 s") != std::string::npos);
  CHECK(w.here->wait().code == exit_ok);
}

TEST_CASE("a run that waits for a machine and is told to end saves what is left of it, and --resume goes on from it") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin({"--checkpoint-every", "1000"});
  w.there->send_to_group(SIGKILL);
  w.check_that_it_waits();
  w.command->send_to_group(SIGTERM);
  const Outcome o = w.command->wait(20);
  INFO(o.err);
  CHECK(o.code == exit_interrupted);
  CHECK(o.seconds < 30);
  const int done = count_lines(w.job.out + "/metrics.jsonl");
  CHECK(done >= 20);
  std::vector<std::string> more{"--resume", "latest", "--quiet", "--checkpoint-every", "1000"};
  more.insert(more.end(), w.steps.begin(), w.steps.end());
  check_success(run(train(w.job.out, more)));
  CHECK(told_by(w.job.out) == told_alone(w.steps));
}

TEST_CASE("a run that goes on with fewer machines takes one that comes back at a step's end, and repeats none") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.job.places = 2;
  w.mesh = "dp=3";  // two workers are left, and the links between them stay slow
  w.links = slow_links(20);
  w.begin({"--replace", "never"});
  w.there->send_to_group(SIGKILL);
  REQUIRE(w.command->wait_for_lines(w.job.out + "/metrics.jsonl", count_lines(w.job.out + "/metrics.jsonl") + 5));
  Run again(w.job.agent(1));
  w.check_end();
  const auto incidents = incidents_of(w.job.out);
  REQUIRE(incidents.size() == 2);
  CHECK(incidents[0]["mesh"] == "dp=2");
  CHECK(incidents[1].contains("planned"));
  CHECK(incidents[1]["mesh"] == "dp=3");
  CHECK(incidents[1]["step"] == incidents[1]["committed"]);
  CHECK(incidents[1]["cause"] == "machine " + w.machines.name(1) + " has joined");
  CHECK(again.wait().code == exit_ok);
}

TEST_CASE("with --min-nodes a run that loses workers for good waits for as many machines before it goes on") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin({"--replace", "never", "--min-nodes", "2"});
  w.there->send_to_group(SIGKILL);
  w.check_that_it_waits();
  Run third(w.job.agent(2));
  w.check_end();
  CHECK(incidents_of(w.job.out).at(0)["from"] == "memory");
  CHECK(third.wait().code == exit_ok);
}

TEST_CASE("a machine that was cut off comes back by itself when it is reached again") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin();
  w.machines.cut(1);
  w.check_that_it_waits();
  w.machines.heal(1);
  w.check_end();
  const auto incident = the_incident(w.job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["cause"].get<std::string>().find("its agent has said nothing for") != std::string::npos);
  CHECK(w.there->wait().code == exit_ok);
}

TEST_CASE("a machine that was stopped comes back by itself when it goes on") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin();
  w.there->send_to_group(SIGSTOP);
  w.check_that_it_waits();
  w.there->send_to_group(SIGCONT);
  w.check_end();
  CHECK(the_incident(w.job.out)["from"] == "memory");
  CHECK(w.there->wait().code == exit_ok);
}

TEST_CASE("a machine that alone has a stage comes back with its memory, and the run goes on with the same step") {
  for (const bool cut : {true, false}) {
    CAPTURE(cut);
    WaitingRun w;
    if (!w.machines.ok) return skip(Machines::why_not);
    w.mesh = "pp=2";
    w.begin({"--guard-every", "off"});  // else the third goes on with it at once
    Run third(w.job.agent(2));          // has room
    CHECK(w.says("without a worker: " + w.machines.name(2)));
    if (cut) w.machines.cut(1);
    else w.there->send_to_group(SIGSTOP);
    w.check_that_it_waits();
    if (cut) w.machines.heal(1);
    else w.there->send_to_group(SIGCONT);
    w.check_end();
    const auto incident = the_incident(w.job.out);
    CHECK(incident["from"] == "memory");
    CHECK(incident.value("moved_bytes", 0) == 0);
    CHECK(incident["committed"].get<int>() - incident["step"].get<int>() <= 1);
    for (Run* agent : {w.there.get(), &third}) CHECK(agent->wait().code == exit_ok);
  }
}

TEST_CASE("a machine that comes back too late has no part in a run that has taken another one, and is a spare") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.links = slow_links(20);
  w.begin();
  Run third(w.job.agent(2));
  w.machines.cut(1);
  for (int i = 0; i < 100 && incidents_of(w.job.out).empty(); ++i) ::usleep(100'000);
  w.machines.heal(1);
  CHECK(w.says("without a worker: " + w.machines.name(1)));
  w.check_end();
  CHECK(the_incident(w.job.out)["from"] == "memory");
  for (Run* agent : {w.there.get(), &third}) CHECK(agent->wait().code == exit_ok);
}
