// Runs with a store: where the machine or the process of a leader is lost, another machine's process leads on.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <utility>

#include "tests/command/etcd_on_machines.h"
#include "tests/command/on_machines.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

/// Machines 0 to 2 have agents that may lead, machines 1 to 3 a member of etcd each.
struct StoredRun {
  Machines machines{4};
  OnMachines job{machines};
  std::unique_ptr<EtcdOnMachines> etcd;
  int first_member = 0;  // that is asked first
  std::vector<std::string> steps{"--steps", "120", "--set", "schedule.batch=8"}, links = slow_links(5);
  std::vector<std::unique_ptr<Run>> agents;
  std::unique_ptr<Run> command;
  std::string metrics = job.out + "/metrics.jsonl";

  StoredRun() { job.wait_s = "60"; }
  /// False: it cannot be had here, as it has said.
  bool has_etcd() {
    if (!machines.ok) return skip(Machines::why_not), false;
    if (!EtcdOnMachines::is_installed()) return skip(EtcdOnMachines::why_not), false;
    etcd = std::make_unique<EtcdOnMachines>(machines, 1);
    REQUIRE(etcd->ok);
    return true;
  }
  std::vector<std::string> store(const std::string& run = "r1") const {
    const std::string url = etcd ? etcd->url(first_member) : "files:" + (job.dir / "store");
    return {"--store", url, "--store-run", run};
  }
  void begin_agent(int i) {
    std::vector<std::string> words{"agent",    "--token-file", job.token,       "--wait",
                                   job.wait_s, "--net-device", machines.name(i)};
    const auto where = store();
    words.insert(words.end(), where.begin(), where.end());
    if (etcd) words.insert(words.end(), {"--lead-at", Machines::address(i) + ":" + agents_port});
    agents.push_back(std::make_unique<Run>(machines.on(i, troupe_command(words))));
  }
  std::vector<std::string> train_on(int host, const std::vector<std::string>& more) {
    job.host = host;
    std::vector<std::string> words{"--mesh", "dp=2", "--recovery", "slots"};
    for (const std::vector<std::string>& part : {steps, links, store(), {"--store-lease", "2"}, more})
      words.insert(words.end(), part.begin(), part.end());
    return job.command(2, words);
  }
  /// Lines come; else the test ends, with what the command and the agents have said.
  void require_lines(int count) {
    if (has_lines(count)) return;
    std::string said = "no line " + std::to_string(count) + " of " + metrics + "\n";
    for (const auto& agent : agents) agent->send_to_group(SIGTERM), said += agent->wait(5).err + "\n";
    if (command) command->send_to_group(SIGTERM), said += command->wait(5).err;
    FAIL(said);
  }
  void begin(int host, const std::vector<std::string>& more = {}) {
    for (const int i : {0, 1}) begin_agent(i);
    command = std::make_unique<Run>(train_on(host, more));
    REQUIRE(command->wait_for_lines(metrics, 20));
  }
  bool has_lines(int count) const {
    for (int i = 0; i < 600 && count_lines(metrics) < count; ++i) ::usleep(100'000);
    return count_lines(metrics) >= count;
  }
  /// The run has ended in order, as one without losses.
  void check_end(std::size_t first_agent = 0) {
    for (std::size_t i = first_agent; i < agents.size(); ++i) {
      const Outcome o = agents[i]->wait(300);
      INFO(o.err);
      CHECK(o.code == exit_ok);
      check_nothing_left(o);
    }
    const bool same = told_by(job.out) == told_alone(steps);
    CHECK(same);
    if (etcd) CHECK(etcd->keys("/troupe/r1/").empty());
  }
};

}  // namespace

TEST_CASE("a run whose leader's machine is lost goes on under another machine, which joins in its place") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.begin(0);
  r.begin_agent(2);
  r.machines.cut(0);  // a dead machine sends no goodbye
  r.command->send_to_group(SIGKILL);
  r.agents[0]->send_to_group(SIGKILL);
  r.check_end(1);
  const auto incident = the_loss(r.job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["committed"].get<int>() - incident["step"].get<int>() <= 1);
}

TEST_CASE("a run whose leader's machine is lost goes on with fewer machines, with --replace never") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.begin(0, {"--replace", "never"});
  r.machines.cut(0);
  r.command->send_to_group(SIGKILL);
  r.agents[0]->send_to_group(SIGKILL);
  r.check_end(1);
  const auto incident = the_loss(r.job.out);
  CHECK(incident["from"] == "memory");
  CHECK(incident["mesh"] == "dp=1");
  CHECK(incident["lost"].size() == 1);
}

TEST_CASE("a leader that was frozen while another one took its place ends, and leaves the run's files alone") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.begin(3);
  r.command->send_to_group(SIGSTOP);
  REQUIRE(r.has_lines(count_lines(r.metrics) + 15));
  r.command->send_to_group(SIGCONT);
  const Outcome o = r.command->wait(30);
  INFO(o.err);
  CHECK(o.code == exit_superseded);
  CHECK(o.err.find("run 'r1' is led by 10.77.8.") != std::string::npos);
  check_nothing_left(o);
  r.check_end();
  CHECK(the_loss(r.job.out)["from"] == "memory");
}

TEST_CASE("a leader that thaws once another one has finished the run leaves the files as that one has written them") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.begin(3);
  r.command->send_to_group(SIGSTOP);
  // So long after it has written the files it writes them again with the next step: ten seconds, or 200 times what
  // that took, for which a step has waited.
  double longest_ms = 0;
  std::istringstream lines(read(r.metrics));
  for (std::string line; std::getline(lines, line);)
    if (const auto step = nlohmann::json::parse(line); step.value("step", 0) > 0 && step.contains("step_ms"))
      longest_ms = std::max(longest_ms, step["step_ms"].get<double>());
  const double pause_s = 1 + std::clamp(0.2 * longest_ms, 10.0, 40.0);
  const auto files = [&] { return read(r.job.out + "/run.json") + read(r.job.out + "/loss.svg"); };
  const auto has_finished = [&] { return files().find("\"status\": \"finished\"") != std::string::npos; };
  int waited = 0;
  for (; waited < 600 && !has_finished(); ++waited) ::usleep(100'000);
  REQUIRE(has_finished());
  r.check_end();
  for (; waited < 10 * pause_s; ++waited) ::usleep(100'000);
  const std::string before = files();
  r.command->send_to_group(SIGCONT);
  const Outcome o = r.command->wait(30);
  INFO(o.err);
  CHECK(o.code == exit_superseded);
  CHECK(files() == before);
}

/// TROUPE_STORE_AWAY=20 for the seconds that are promised; hardly more than a lease in an ordinary run of the tests.
TEST_CASE("a run trains on while its store is away, waits for it after a loss, and goes on when it is back") {
  const char* chosen = std::getenv("TROUPE_STORE_AWAY");
  const int away_s = chosen ? std::atoi(chosen) : 3;
  StoredRun r;
  if (!r.has_etcd()) return;
  r.links = slow_links(20);  // a step takes 40 ms at least
  r.steps[1] = std::to_string(80 + 25 * away_s);
  r.begin(3);
  for (const int i : {0, 1}) r.etcd->members[i]->send_to_group(SIGSTOP);
  const int first = count_lines(r.metrics);
  ::sleep(static_cast<unsigned>(away_s));
  const int steps = count_lines(r.metrics) - first;
  MESSAGE(steps << " steps in " << away_s << " s without a store");
  CHECK(steps > 2 * away_s);
  REQUIRE(r.has_lines(first + 15));
  const auto workers = r.agents[0]->workers();
  REQUIRE(workers.size() == 1);
  ::kill(workers[0], SIGKILL);
  bool waits = false;
  for (int i = 0; i < 200 && !waits; ++i, ::usleep(100'000))
    waits = run(troupe_command({"ps", r.job.out})).out.find("waits for its store") != std::string::npos;
  CHECK(waits);
  const int before = count_lines(r.metrics);
  ::sleep(1);
  CHECK(count_lines(r.metrics) == before);
  for (const int i : {0, 1}) r.etcd->members[i]->send_to_group(SIGCONT);
  const Outcome o = r.command->wait(120);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  r.check_end();
  const auto incidents = incidents_of(r.job.out);
  CHECK_FALSE(incidents.empty());
  for (const auto& incident : incidents) CHECK(incident["from"] == "memory");
}

TEST_CASE(
    "a loss is recovered from while a member of the store is cut off, and while another one, etcd's leader, is gone") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.links = slow_links(20);  // a step takes 40 ms at least
  r.steps[1] = "250";
  r.first_member = 2;  // on machine 3
  for (const int i : {0, 1}) r.begin_agent(i);
  r.command = std::make_unique<Run>(r.train_on(0, {}));  // on machine 3 is a member of etcd, and nothing else
  const auto loses_a_worker = [&] {
    REQUIRE(r.has_lines(count_lines(r.metrics) + 10));
    const auto before = incidents_of(r.job.out).size();
    const auto workers = r.agents[0]->workers();
    REQUIRE(workers.size() == 1);
    ::kill(workers[0], SIGKILL);
    for (int i = 0; i < 300 && incidents_of(r.job.out).size() <= before; ++i) ::usleep(100'000);
    REQUIRE(incidents_of(r.job.out).size() > before);
    CHECK(incidents_of(r.job.out).back()["from"] == "memory");
  };
  r.machines.cut(3);
  loses_a_worker();
  r.machines.heal(3);
  REQUIRE(r.etcd->answers());
  const int leader = r.etcd->leader();
  REQUIRE(leader >= 0);
  r.etcd->members[leader]->send_to_group(SIGKILL);
  loses_a_worker();
  const Outcome o = r.command->wait(300);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  r.check_end();
}

namespace {

/// Processes of `troupe train` that lead the run r1, or are about to; not what has started them.
std::vector<pid_t> leaders() {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    const std::string words = pid > 0 ? read(entry.path() / "cmdline") : "";
    const auto program = std::filesystem::read_symlink(entry.path() / "exe", error);
    if (words.find(std::string("\0train\0", 7)) != std::string::npos && program.filename() == "troupe" &&
        words.find(std::string("r1\0", 3)) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

/// Each generation that a store has ever had has one leader, and they grow. `history`: the claims, as etcdctl's watch
/// prints them.
std::int64_t check_history(const std::string& history) {
  std::istringstream lines(history);
  std::map<std::int64_t, std::string> leader_of;
  std::int64_t newest = 0, changes = 0;
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] != '{') continue;
    const auto claim = nlohmann::json::parse(line, nullptr, false);
    REQUIRE(!claim.is_discarded());
    const std::int64_t generation = claim["generation"];
    const std::string leader = claim["leader"];
    CHECK(generation >= newest);
    newest = std::max(newest, generation);
    changes += leader != last ? 1 : 0;
    // Who takes a lead says so before it has claimed a generation, with the one that it has found.
    const bool takes = leader != std::exchange(last, leader);
    if (!takes) CHECK(leader_of.emplace(generation, leader).first->second == leader);
  }
  return changes;
}

}  // namespace

/// TROUPE_KILLS=50 for the figure that is promised; a few in an ordinary run of the tests.
TEST_CASE("kill -9 of the leader at random times, over and over, repeats at most a step each time and skips none") {
  const char* chosen = std::getenv("TROUPE_KILLS");
  const int kills = chosen ? std::atoi(chosen) : 3;
  StoredRun r;
  if (!r.has_etcd()) return;
  r.steps[1] = std::to_string(100 + 30 * kills);
  const std::string claims = r.job.dir / "claims";
  Run history(r.etcd->watch("/troupe/r1/claim", claims));
  r.begin(3, {"--set", "eval.every=0"});
  std::mt19937 random(static_cast<unsigned>(kills) + 1);
  std::vector<int> told;
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill);
    r.require_lines(count_lines(r.metrics) + 5);
    ::usleep(random() % 150'000);
    const auto lead = leaders();
    CHECK(lead.size() == 1);
    for (const pid_t pid : lead) ::kill(pid, SIGKILL);
    told.push_back(count_lines(r.metrics));
  }
  r.steps.insert(r.steps.end(), {"--set", "eval.every=0"});
  r.check_end();
  const auto incidents = losses_of(r.job.out);
  CHECK(std::ssize(incidents) == kills);
  for (const auto& incident : incidents) {
    CHECK(incident["from"] == "memory");
    const int step = incident["step"];
    CHECK(std::any_of(told.begin(), told.end(), [&](int t) { return step == t || step == t - 1; }));
  }
  history.send_to_group(SIGKILL);
  history.wait(5);
  CHECK(check_history(read(claims)) == kills + 1);
  MESSAGE(kills << " leaders killed, all replaced");
}

TEST_CASE("a run whose leaders are lost one after the other before a step is done is given up, with a code for it") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.links = slow_links(300);  // a step takes seconds
  const std::string claims = r.job.dir / "claims";
  Run history(r.etcd->watch("/troupe/r1/claim", claims));
  for (const int i : {0, 1}) r.begin_agent(i);
  r.command = std::make_unique<Run>(r.train_on(3, {}));
  std::set<std::string> lost;  // leaders
  for (int waited = 0; waited < 1200 && lost.size() < 3; ++waited, ::usleep(50'000)) {
    std::string newest, line;
    for (std::istringstream lines(read(claims)); std::getline(lines, line);)
      if (line.starts_with('{')) newest = line;
    const auto claim = nlohmann::json::parse(newest, nullptr, false);
    if (claim.is_discarded() || claim["without_step"] != lost.size() + 1) continue;
    if (!lost.insert(claim["leader"]).second) continue;
    for (const pid_t pid : leaders()) ::kill(pid, SIGKILL);
  }
  CHECK(lost.size() == 3);
  for (const auto& agent : r.agents) {
    const Outcome o = agent->wait(60);
    INFO(o.err);
    CHECK(o.code == exit_do_not_requeue);
    CHECK(o.err.find("run 'r1' is given up: 3 leaders in a row were lost before a step was done") != std::string::npos);
    check_nothing_left(o);
  }
  history.send_to_group(SIGKILL);
  history.wait(5);
}

TEST_CASE("a run that is led is not led twice, and another run has the same store") {
  StoredRun r;
  if (!r.has_etcd()) return;
  r.begin(3);
  const Outcome second = run(r.machines.on(2, train(r.job.dir / "second", [&] {
                                             std::vector<std::string> words{
                                                 "--nodes",      "1",        "--listen", Machines::address(2) + ":7071",
                                                 "--token-file", r.job.token};
                                             const auto store = r.store();
                                             words.insert(words.end(), store.begin(), store.end());
                                             words.insert(words.end(), {"--store-lease", "2"});
                                             return words;
                                           }())));
  check_failure(second, exit_superseded, {"run 'r1' is led by 10.77.8.4:7070"});
  // Nor by a command that would go on with it, and writes to another folder.
  const auto taken = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--nodes",      "1",         "--listen",      Machines::address(2) + ":7071",
                                   "--token-file", r.job.token, "--store-lease", "2",
                                   "--recovery",   "slots"};
    const auto store = r.store();
    for (const auto& part : {store, more}) words.insert(words.end(), part.begin(), part.end());
    return run(r.machines.on(2, train(r.job.dir / "second", words)));
  };
  check_failure(taken({"--resume", "auto"}), exit_superseded, {"it writes to '" + r.job.out, "--store-run"});
  const auto other = r.store("r2");
  std::vector<std::string> agent{"agent", "--token-file", r.job.token};
  agent.insert(agent.end(), other.begin(), other.end());
  Run its_agent(r.machines.on(2, troupe_command(agent)));
  std::vector<std::string> words{"--nodes",      "1",         "--listen", Machines::address(2) + ":7071",
                                 "--token-file", r.job.token, "--steps",  "3"};
  words.insert(words.end(), other.begin(), other.end());
  CHECK(run(r.machines.on(2, train(r.job.dir / "other", words))).code == exit_ok);
  CHECK(its_agent.wait().code == exit_ok);
  CHECK(r.command->wait(120).code == exit_ok);
  r.check_end();
}

/// TROUPE_KILLS=50 for the figure that is promised; one in an ordinary run of the tests.
TEST_CASE("a run whose command is killed goes on at another address, which its agents find in a folder") {
  const char* chosen = std::getenv("TROUPE_KILLS");
  const int kills = chosen ? std::atoi(chosen) : 1;
  StoredRun r;
  if (!r.machines.ok) return skip(Machines::why_not);
  r.steps[1] = std::to_string(100 + 30 * kills);
  r.steps.insert(r.steps.end(), {"--set", "eval.every=0"});
  r.begin(3);
  std::mt19937 random(static_cast<unsigned>(kills));
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill);
    ::usleep(random() % 150'000);
    r.command->send_to_group(SIGKILL);
    const int told = count_lines(r.metrics);
    r.command = std::make_unique<Run>(r.train_on(kill % 2 == 0 ? 2 : 3, {"--resume", "memory"}));
    r.require_lines(told + 5);
    const auto incidents = losses_of(r.job.out);
    REQUIRE(std::ssize(incidents) == kill + 1);
    CHECK(incidents.back()["from"] == "memory");
    CHECK(told - static_cast<int>(incidents.back()["step"]) <= 1);
  }
  const Outcome o = r.command->wait(120);
  INFO(o.err);
  CHECK(o.code == exit_ok);
  r.check_end();
  MESSAGE(kills << " commands killed, all followed by another one");
}
