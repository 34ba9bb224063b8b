// Runs of which some machines do not reach some others, one way or both.
#include "tests/command/on_machines.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

enum class Ways { both, forth, back };

/// No packet passes any more between two machines, or one way only.
void part(const Machines& machines, int a, int b, Ways ways) {
  if (ways != Ways::back) machines.cut_way(a, b);
  if (ways != Ways::forth) machines.cut_way(b, a);
}
void heal(const Machines& machines, int a, int b) {
  machines.heal_way(a, b);
  machines.heal_way(b, a);
}

/// Workers on machines 1 and 2; the command, on machine 0, reaches both.
struct PartedRun : WaitingRun {
  PartedRun() { first = 1, second = 2; }
};

void check_cause(const nlohmann::json& incident) {
  CHECK(incident["from"] == "memory");
  CHECK(incident["cause"].get<std::string>().find("do not reach each other, though both are heard here") !=
        std::string::npos);
  CHECK(incident["committed"].get<int>() - incident["step"].get<int>() <= 1);
}

}  // namespace

TEST_CASE(
    "two machines that do not reach each other, one way or both, wait, and go on with the same step once they do") {
  for (const Ways ways : {Ways::both, Ways::forth, Ways::back}) {
    CAPTURE(static_cast<int>(ways));
    PartedRun w;
    if (!w.machines.ok) return skip(Machines::why_not);
    w.mesh = ways == Ways::both ? "dp=2" : "pp=2";
    w.begin({"--detect-budget", "1000"});
    part(w.machines, 1, 2, ways);
    // Machine 2 is set aside, and tried again, which is one incident.
    CHECK(w.says("is set aside"));
    CHECK(w.says("generation 3"));
    heal(w.machines, 1, 2);
    w.check_end();
    check_cause(the_incident(w.job.out));
    CHECK(the_incident(w.job.out).value("moved_bytes", 0) == 0);
    for (Run* agent : {w.here.get(), w.there.get()}) CHECK(agent->wait().code == exit_ok);
  }
}

TEST_CASE("of two machines that do not reach each other one is replaced by a machine that both reach") {
  PartedRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.begin();
  Run third(w.job.agent(3));  // has room
  CHECK(w.says("without a worker: " + w.machines.name(3)));
  part(w.machines, 1, 2, Ways::both);
  w.check_end();  // they are still parted
  check_cause(the_incident(w.job.out));
  CHECK(the_incident(w.job.out)["ms"]["act"].get<double>() < 30'000);
  for (Run* agent : {w.here.get(), w.there.get(), &third}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE(
    "with --replace never a run leaves a machine that another one does not reach, and takes it back once it does") {
  PartedRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.job.places = 2;
  w.mesh = "dp=3";  // two workers are left, and the links between them stay slow
  w.links = slow_links(30);
  w.begin({"--replace", "never"});
  part(w.machines, 1, 2, Ways::both);
  for (int i = 0; i < 200 && incidents_of(w.job.out).empty(); ++i) ::usleep(100'000);
  heal(w.machines, 1, 2);
  w.check_end();
  const auto incidents = incidents_of(w.job.out);
  REQUIRE(incidents.size() == 2);
  check_cause(incidents[0]);
  CHECK(incidents[0]["mesh"] == "dp=2");
  CHECK(incidents[1]["cause"] == "machine " + w.machines.name(2) + " has joined");
  CHECK(incidents[1]["mesh"] == "dp=3");
  for (Run* agent : {w.here.get(), w.there.get()}) CHECK(agent->wait().code == exit_ok);
}

TEST_CASE("machines that do not reach each other for longer than a run waits end it, and its workers") {
  PartedRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.job.wait_s = "5";
  w.begin({"--node-wait", "3"});
  part(w.machines, 1, 2, Ways::both);
  const Outcome o = w.command->wait(60);
  CHECK(o.code == exit_worker);
  CHECK(o.err.find("machines") != std::string::npos);
  check_nothing_left(o);
  heal(w.machines, 1, 2);
  for (Run* agent : {w.here.get(), w.there.get()}) check_nothing_left(agent->wait());
}

TEST_CASE(
    "a command that is cut off from its machines, one way or both, waits for them, and goes on with the same step") {
  for (const Ways ways : {Ways::forth, Ways::back}) {
    CAPTURE(static_cast<int>(ways));
    PartedRun w;
    if (!w.machines.ok) return skip(Machines::why_not);
    w.mesh = "pp=2";
    w.begin();
    for (const int i : {1, 2}) part(w.machines, 0, i, ways);
    w.check_that_it_waits();
    for (const int i : {1, 2}) heal(w.machines, 0, i);
    w.check_end();
    const auto incident = the_incident(w.job.out);
    CHECK(incident["from"] == "memory");
    CHECK(incident["committed"].get<int>() - incident["step"].get<int>() <= 1);
    for (Run* agent : {w.here.get(), w.there.get()}) CHECK(agent->wait().code == exit_ok);
  }
}
