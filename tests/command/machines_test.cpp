// How runs on several machines begin and end, who may join, and what can be asked of them.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/command/on_machines.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

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
  // Who has the token hears what the run waits for.
  const auto asked = [&](std::vector<std::string> words) {
    words.insert(words.begin() + 1, {Machines::address(0) + ":" + agents_port, "--token-file", right});
    return run(machines.on(1, troupe_command(std::move(words))), 5);
  };
  const std::string waits = "the job has not begun: 0 of 1 machines have joined; it waits ";
  const Outcome ps = asked({"ps"});
  CHECK(ps.code == exit_ok);
  CHECK(ps.out.starts_with(waits));
  check_one_line(asked({"scale", "--mesh", "dp=1"}), exit_plan, {waits});
  check_one_line(asked({"logs"}), exit_plan, {waits});
  const Outcome agent = run(job.agent(0));
  CHECK(agent.code == exit_ok);
  const Outcome o = command.wait();
  INFO(o.err);
  CHECK(o.code == exit_ok);
  CHECK(o.err.find(" from 10.77.8.2 refused, the last one: the peer has another token") != std::string::npos);
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

TEST_CASE("an agent whose machine's name is taken is refused for as long as it is, and disturbs nothing") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.links = slow_links(10);
  w.begin();
  w.job.wait_s = "1";
  const Outcome taken = run(w.job.agent(2, {"--name", w.machines.name(1)}));
  CHECK(taken.code == exit_worker);
  CHECK(taken.err.find("there is a machine " + w.machines.name(1) + " already") != std::string::npos);
  w.check_end();
  CHECK_FALSE(std::filesystem::exists(w.job.out + "/incidents.jsonl"));
}

TEST_CASE("a name that no run takes is refused where it is given") {
  const std::string name(256, 'b');
  check_one_line(run(troupe_command({"agent", "--join", "127.0.0.1:1", "--name", name})), exit_usage,
                 {"--name: expected a name of 255 bytes at most, this one has 256"});
  TempDir dir;
  write_token(dir / "token", 't');
  CHECK(run(troupe_command({"agent", "--join", "127.0.0.1:1", "--token-file", dir / "token", "--wait", "1", "--name",
                            name.substr(1)}))
            .code == exit_worker);  // nothing listens there
}

TEST_CASE("who has the token asks a run from another machine what it does, and to go on with another mesh") {
  WaitingRun w;
  if (!w.machines.ok) return skip(Machines::why_not);
  w.job.places = 2;
  w.mesh = "dp=3";  // with two workers the links between them stay slow
  w.links = slow_links(20);
  w.begin({"--log-level", "info"});
  const std::string at = Machines::address(0) + ":" + agents_port, other = w.job.dir / "other";
  const auto from_third = [&](std::vector<std::string> words) {
    return run(w.machines.on(2, troupe_command(std::move(words))));
  };
  const Outcome ps = from_third({"ps", at, "--token-file", w.job.token});
  CHECK(ps.code == exit_ok);
  for (const int i : {0, 1}) CHECK(ps.out.find(w.machines.name(i)) != std::string::npos);
  const std::string log = w.job.dir / "log";  // of a pipe that is read in the end a command would wait
  std::vector<std::string> words{"sh", "-c", "exec \"$@\" > '" + log + "'", "sh"};
  for (const std::string& word : troupe_command({"logs", at, "--token-file", w.job.token, "--follow"}))
    words.push_back(word);
  Run follows(w.machines.on(2, words));
  write_token(other, 'o');
  const Outcome refused = from_third({"ps", at, "--token-file", other});
  CHECK(refused.code == exit_output);
  CHECK(refused.err.find("it may have another token") != std::string::npos);
  const Outcome scaled = from_third({"scale", at, "--mesh", "dp=2", "--token-file", w.job.token});
  CHECK(scaled.code == exit_ok);
  CHECK(scaled.out.find("the job goes on as dp=2") != std::string::npos);
  check_one_line(from_third({"scale", at, "--mesh", "dp=1,tp=2", "--token-file", w.job.token}), exit_plan,
                 {"'dp=1,tp=2' has tp=2, and the run tp=1"});
  const Outcome logs = from_third({"logs", at, "--token-file", w.job.token, "--lines", "1"});
  CHECK(logs.code == exit_ok);
  const Outcome all = from_third({"logs", at, "--token-file", w.job.token});
  CHECK(all.code == exit_ok);
  CHECK(std::count(logs.out.begin(), logs.out.end(), '\n') == 1);
  w.check_end();
  const Outcome followed = follows.wait(30);
  CHECK(followed.code == exit_ok);
  CHECK_MESSAGE(read(log).starts_with(all.out), "followed:\n", read(log), "asked for:\n", all.out);  // each line once
  CHECK(all.out.find(logs.out) != std::string::npos);
  check_one_line(from_third({"ps", at, "--token-file", w.job.token}), exit_output, {"Connection refused"});
}

TEST_CASE("machines whose C libraries choose another sine each train bitwise like one worker") {
  const std::string no_fma = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2,-FMA4";
  const auto sines = [](const std::string& setting) {
    return run({"env", setting, "python3", "-c", "import math; print([math.sin(i * 0.37).hex() for i in range(9999)])"})
        .out;
  };
  if (sines(no_fma) == sines("A=B")) return skip("this machine has no other sine (no FMA)");
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const std::vector<std::string> steps{"--steps", "20"};
  OnMachines job(machines);
  std::vector<std::string> other = job.agent(1);  // as on a machine without FMA
  other.insert(std::find(other.begin(), other.end(), troupe_command({}).front()), {"env", no_fma});
  const Run first(job.agent(0)), second(other);
  check_success(run(job.command(2, {"--mesh", "dp=2", "--steps", "20"}), 60));
  CHECK(told_by(job.out) == told_alone(steps));
}

TEST_CASE("a run without recovery refuses an agent that comes when it has begun") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  Run here(job.agent(0));
  Run command(job.command(1, {"--mesh", "dp=1", "--steps", "10000000"}));
  REQUIRE(command.wait_for_lines(job.out + "/metrics.jsonl", 3));
  const Outcome late = run(job.agent(1));
  CHECK(late.code == exit_usage);
  CHECK(late.err.find("the job has all its machines, and no recovery (--recovery)") != std::string::npos);
  command.send_to_group(SIGTERM);
  CHECK(command.wait(10).code == exit_interrupted);
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

TEST_CASE("a run that cannot begin on the machines that have joined tells them why, and they wait for the next one") {
  const Machines machines(2);
  if (!machines.ok) return skip(Machines::why_not);
  const OnMachines job(machines);
  Run here(job.agent(0));
  check_one_line(run(job.command(2, {"--mesh", "dp=2", "--steps", "3", "--node-wait", "3"})), exit_worker,
                 {"1 of 2 machines have joined within 3 s"});
  Run there(job.agent(1));
  check_one_line(run(job.command(2, {"--mesh", "dp=4", "--steps", "3"})), exit_usage,
                 {"the mesh needs 4 places, and 2 machines have 2"});
  check_success(run(job.command(2, {"--mesh", "dp=2", "--steps", "3"})));
  for (Run* agent : {&here, &there}) {
    const Outcome a = agent->wait();
    CHECK(a.code == exit_ok);
    CHECK_MESSAGE(a.err.find("the job does not begin: the mesh needs 4 places") != std::string::npos, a.err);
    const bool was_alone = a.err.find("the job does not begin: 1 of 2 machines have joined within 3 s") < a.err.size();
    CHECK_MESSAGE(was_alone == (agent == &here), a.err);
  }
}

TEST_CASE("an agent, or a run on machines, that cannot be is refused in one line before anything starts") {
  TempDir dir;
  write_token(dir / "token", 't');
  const auto agent = [&](const std::string& join, const std::string& token) {
    return run(troupe_command({"agent", "--join", join, "--token-file", token, "--wait", "1"}));
  };
  check_one_line(agent("nowhere", dir / "token"), exit_usage, {"--join: 'nowhere': expected HOST:PORT"});
  check_one_line(agent("::1:7070", dir / "token"), exit_usage, {"[fd00::1]:7070"});
  check_one_line(agent("node:65536", dir / "token"), exit_usage, {"--join: 'node:65536': expected HOST:PORT"});
  check_one_line(agent("127.0.0.1:7", dir / "none"), exit_usage, {"cannot read the token", "No such file"});
  REQUIRE(::chmod((dir / "token").c_str(), 0644) == 0);
  check_one_line(agent("127.0.0.1:7", dir / "token"), exit_usage, {"mode 0644", "chmod 600"});
  REQUIRE(::chmod((dir / "token").c_str(), 0600) == 0);
  const auto on_machines = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--quiet", "--steps", "1", "--nodes", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(train(dir / "out", words));
  };
  check_one_line(run(troupe_command({"ps", "127.0.0.1:7"})), exit_usage,
                 {"'127.0.0.1:7' is no output folder", "(--token-file)"});
  check_one_line(on_machines({}), exit_usage, {"--nodes requires --listen"});
  check_one_line(on_machines({"--listen", "127.0.0.1:0", "--token-file", dir / "token", "--node-wait", "1"}),
                 exit_worker, {"0 of 2 machines have joined within 1 s"});
  check_one_line(on_machines({"--listen", "127.0.0.1:0", "--token-file", dir / "token", "--pin"}), exit_plan,
                 {"pin", "other machines"});
}
