// Options of `troupe train` that change what is observed, where it runs or how long it takes.
#include <map>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "tests/apps/trace_checks.h"
#include "tests/command/checks.h"
#include "tests/command/summary.h"

using namespace troupe::runtime;
using namespace troupe::test;

namespace {

std::set<std::int64_t> traced_steps(const std::string& path) {
  std::set<std::int64_t> steps;
  const auto trace = nlohmann::json::parse(read(path));
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == "X") steps.insert(event["args"]["step"].get<std::int64_t>());
  return steps;
}

}  // namespace

TEST_CASE("--trace keeps a window of steps: the first five, or the ones that are named") {
  TempDir dir;
  auto traced = [&](const std::vector<std::string>& trace) {
    auto arguments = trace;
    arguments.insert(arguments.end(), {"--steps", "8"});
    check_success(run(train(dir / "out", arguments)));
    return traced_steps(dir / "out/trace.json");
  };
  CHECK(traced({"--trace"}) == std::set<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(traced({"--trace-steps", "2:3"}) == std::set<std::int64_t>{2, 3, 4});
  for (const char* wrong : {"3", "2:", ":2", "2:0", "-1:2", "a:b"})
    check_one_line(run(train(dir / "out", {"--trace-steps", wrong})), exit_usage,
                   {"--trace-steps", "FIRST:COUNT", std::string("'") + wrong + "'"});
}

TEST_CASE("arguments that can have no effect are told, and those that the job has nothing for are refused") {
  TempDir dir;
  const auto traced = [&](const std::string& window) {
    const auto o = run(train(dir / "out", {"--steps", "8", "--trace-steps", window}));
    CHECK(o.code == exit_ok);
    return o.err;
  };
  // A program that reads the parameters after 8 steps counts as step 8.
  CHECK(traced("8:1").find("trace.json stays empty") == std::string::npos);
  CHECK(
      traced("9:3") ==
      "troupe: warning: none of the 3 steps from step 9 on is run: the run begins with step 0 and ends after 8 steps; "
      "trace.json stays empty\n");
  CHECK(traced_steps(dir / "out/trace.json").empty());
  check_one_line(
      run(train(dir / "out", {"--throttle", "latency=1ms", "--throttle", "1-2:latency=1ms", "--mesh", "dp=2"})),
      exit_usage, {"--throttle 1-2:latency=1ms: there is no such link: the job has 2 workers, ranks 0 to 1"});
  check_one_line(run(troupe_command({"plan", tiny_config, "--throttle", "0-1:latency=1ms"})), exit_usage,
                 {"--throttle 0-1:latency=1ms", "the job has one worker, rank 0"});
  for (const char* option : {"--net-device", "--worker-prefix"})
    check_one_line(run(train(dir / "out", {option, "lo", option, "lo"})), exit_usage,
                   {std::string(option) + " is given 2 times, once for each rank: the job has one worker, rank 0"});
}

TEST_CASE("a number of --guard-every that the options leave nothing for is told by train and plan, `off` by none") {
  TempDir dir;
  const std::string none = "--guard-every 5 has no effect: it needs --recovery slots and 2 machines or more (--nodes)";
  const auto told = [](const Outcome& o) {
    INFO(o.err);
    CHECK(o.code == exit_ok);
    return o.err;
  };
  CHECK(told(run(train(dir / "out", {"--guard-every", "5", "--recovery", "slots"}))) ==
        "troupe: warning: " + none + "\n");
  CHECK(told(run(train(dir / "off", {"--guard-every", "off"}))).empty());
  for (const std::string recovery : {"off", "copies:4"})
    CHECK(told(run(troupe_command({"plan", tiny_config, "--mesh", "dp=2", "--zero", "1", "--nodes", "2",
                                   "--guard-every", "5", "--set", "run.recovery=" + recovery}))) ==
          "troupe: warning: " + none + "\n");
  const auto plan_on = [&](const std::string& nodes, const std::string& every) {
    return told(run(troupe_command({"plan", tiny_config, "--mesh", "dp=2", "--zero", "1", "--nodes", nodes, "--places",
                                    nodes == "1" ? "2" : "1", "--guard-every", every, "--set", "run.recovery=slots"})));
  };
  CHECK(plan_on("1", "5") == "troupe: warning: " + none + "\n");
  CHECK(plan_on("2", "5").empty());
  CHECK(plan_on("1", "auto").empty());
  CHECK(told(run(troupe_command({"plan", tiny_config, "--guard-every", "off"}))).empty());
}

TEST_CASE("what --resume memory and an agent's options lack is named") {
  TempDir dir;
  check_one_line(run(troupe_command({"train", "--resume", "memory", "--out", dir / "out"})), exit_usage,
                 {"--resume memory: agents keep what a run has in memory: give its configuration"});
  check_one_line(run(troupe_command({"train", tiny_config, "--resume", "memory", "--out", dir / "out"})), exit_usage,
                 {"--resume memory: agents keep what a run has in memory: give its --nodes"});
  check_one_line(run(troupe_command({"agent", "--join", "127.0.0.1:1", "--token-file", ""})), exit_usage,
                 {"--token-file: expected the name of a file"});
  check_one_line(
      run(troupe_command({"train", tiny_config, "--nodes", "1", "--listen", "127.0.0.1:", "--token-file", "t"})),
      exit_usage, {"--listen: '127.0.0.1:': expected HOST:PORT"});
}

TEST_CASE("--keep and --checkpoint-dir are told to have no effect where no checkpoint is saved, or looked for there") {
  TempDir dir;
  const auto told = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--steps", "4", "--quiet"});
    const auto o = run(train(dir / "out", words));
    CHECK_MESSAGE(o.code == exit_ok, o.err);
    return o.err;
  };
  const auto no_effect = [](const std::string& argument) {
    return "troupe: warning: " + argument + " has no effect: the run saves no checkpoint, see --checkpoint-every\n";
  };
  const std::string saved = dir / "saved";
  CHECK(told({"--keep", "3", "--checkpoint-dir", saved}) ==
        no_effect("--keep 3") + no_effect("--checkpoint-dir " + saved));
  CHECK(told({"--keep", "3", "--checkpoint-dir", saved, "--set", "checkpoint.every=4"}).empty());
  CHECK(told({"--keep", "2", "--checkpoint-dir", saved, "--resume"}).empty());  // saves as the run before
  CHECK(told({"--checkpoint-dir", saved, "--resume", "--checkpoint-every", "0"}).empty());
  CHECK(told({"--checkpoint-dir", dir / "other", "--resume", saved, "--checkpoint-every", "0"}) ==
        no_effect("--checkpoint-dir " + (dir / "other")));
}

TEST_CASE("a run that goes on behind the steps that are to be traced says so") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--steps", "4", "--checkpoint-every", "4"})));
  const auto o = run(train(dir / "out", {"--steps", "6", "--resume", "--trace-steps", "2:2"}));
  CHECK(o.code == exit_ok);
  CHECK(o.err.find("none of the 2 steps from step 2 on is run: the run begins with step 4") != std::string::npos);
}

TEST_CASE("--throttle makes steps slower and changes no number") {
  TempDir dir;
  const auto hash = [&](const std::vector<std::string>& throttle, double& step_ms) {
    auto arguments = throttle;
    arguments.insert(arguments.end(), {"--mesh", "dp=2,pp=2", "--steps", "3"});
    check_success(run(train(dir / "out", arguments)));
    std::istringstream lines(read(dir / "out/metrics.jsonl"));
    step_ms = 0;
    for (std::string line; std::getline(lines, line);)
      if (const auto m = nlohmann::json::parse(line); m.contains("step_ms")) step_ms += m["step_ms"].get<double>() / 3;
    return nlohmann::json::parse(read(dir / "out/run.json"))["params_hash"].get<std::string>();
  };
  double free_ms = 0, slow_ms = 0;
  const auto free = hash({}, free_ms),
             slow = hash({"--throttle", "latency=1ms", "--throttle", "0-2:latency=40ms,bandwidth=100MB/s"}, slow_ms);
  CHECK(free == slow);
  CHECK(slow_ms > 80);  // a boundary's latency, there and back
  check_one_line(run(train(dir / "out", {"--throttle", "0-1:speed=3"})), exit_usage,
                 {"--throttle 0-1:speed=3", "'speed=3'", "bandwidth=100MB/s"});
}

TEST_CASE(
    "plan and sim know of --throttle: slower links make layouts that move more dearer, and steps longer; --ideal does "
    "not") {
  const auto said = [](const Outcome& o, const std::string& begin) {
    check_success(o);
    const auto at = o.out.find(begin);
    REQUIRE_MESSAGE(at != std::string::npos, o.out);
    return o.out.substr(at, o.out.find('\n', at) - at);
  };
  const auto layouts = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plan", tiny_config, "--mesh", "tp=2"};
    words.insert(words.end(), more.begin(), more.end());
    return said(run(troupe_command(words)), "the next best takes");
  };
  CHECK(layouts({}) != layouts({"--throttle", "bandwidth=1MB/s"}));
  const auto step_ms = [&](const char* mesh, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"sim", tiny_config, "--mesh", mesh};
    words.insert(words.end(), more.begin(), more.end());
    const std::string line = said(run(troupe_command(words)), "step  ");
    return std::stod(line.substr(line.find_first_of("0123456789"))) *
           (line.find(" ms ") != std::string::npos ? 1 : 1e3);
  };
  const double slow_ms = step_ms("dp=2", {"--throttle", "bandwidth=1MB/s"});
  CHECK(step_ms("dp=2", {}) < 0.5 * slow_ms);
  // links are as slow, and nearly all that there is to wait for
  CHECK(step_ms("dp=2", {"--throttle", "bandwidth=1MB/s", "--ideal"}) == doctest::Approx(slow_ms).epsilon(0.01));
  // under tp a plan waits for latencies that the ideal passes together
  CHECK(step_ms("tp=2", {"--throttle", "latency=20ms", "--ideal"}) <
        0.8 * step_ms("tp=2", {"--throttle", "latency=20ms"}));
}

TEST_CASE("--paced: kernels take their predicted time, and a step the time that sim foretells, within 15 %") {
  TempDir dir;
  for (const char* mesh : {"dp=2", "dp=2,pp=2"}) {
    CAPTURE(mesh);
    const auto sim = run(troupe_command({"sim", tiny_config, "--mesh", mesh, "--paced", "100"}));
    check_success(sim);
    double foretold_ms = 0;
    const auto at = sim.out.find("\nstep ");
    REQUIRE(at != std::string::npos);
    REQUIRE_MESSAGE(std::sscanf(sim.out.c_str() + at, "\nstep %lf ms (commit to commit)", &foretold_ms) == 1, sim.out);
    check_success(run(train(dir / "out", {"--mesh", mesh, "--steps", "7", "--paced", "100", "--set", "eval.every=0"})));
    std::istringstream lines(read(dir / "out/metrics.jsonl"));
    std::vector<double> steps;
    for (std::string line; std::getline(lines, line);)
      if (const auto m = nlohmann::json::parse(line); m.contains("step_ms")) steps.push_back(m["step_ms"]);
    REQUIRE(steps.size() == 7);
    std::sort(steps.begin() + 1, steps.end());  // before the first step there is no commit
    CHECK(steps[3] >= 0.98 * foretold_ms);
    CHECK(steps[3] <= 1.15 * foretold_ms);  // messages, and threads that wake up late
  }
  check_one_line(run(train(dir / "out", {"--paced", "0"})), exit_usage, {"--paced", "above 0", "'0'"});
}

TEST_CASE("--pin with more compute threads than cores names both numbers") {
  TempDir dir;
  check_one_line(run(train(dir / "out", {"--pin", "--mesh", "dp=8", "--threads", "1024"})), exit_plan,
                 {"pinning 8 workers of 1024 compute threads needs 8192 cores", "this process may use"});
  check_success(run(train(dir / "out", {"--pin", "--steps", "2"})));
}

TEST_CASE(
    "in the trace of a real run each arrow goes forward from a start to an end, and no two slices of a row overlap") {
  TempDir dir;
  for (const std::string mesh : {"pp=2", "dp=2,tp=2,pp=2"}) {
    CAPTURE(mesh);
    check_success(run(train(dir / "out", {"--mesh", mesh, "--steps", "2", "--trace", "--quiet"})));
    const auto trace = nlohmann::json::parse(read(dir / "out/trace.json"));
    check_picture(trace["traceEvents"]);
    std::map<std::string, int> worker_of;  // where arrows start
    int between_workers = 0, waits = 0;
    for (const auto& e : trace["traceEvents"]) {
      if (e["ph"] == "s") worker_of[e["id"].dump()] = e["pid"];
      waits += e["ph"] == "X" && e["cat"] == "wait";
    }
    for (const auto& e : trace["traceEvents"])
      if (e["ph"] == "f")
        between_workers += worker_of.count(e["id"].dump()) > 0 && worker_of[e["id"].dump()] != e["pid"];
    CHECK(between_workers >= 2 * 2);  // there and back, in each step
    CHECK(waits > 0);
  }
}

TEST_CASE(
    "in the trace of three stages each arrow between workers goes from the send to the receive of one exchange, in one "
    "step, of one microbatch, and each receive of each place has one, there and back") {
  TempDir dir;
  check_success(run(train(dir / "out", {"--mesh", "dp=2,tp=2,pp=3", "--steps", "2", "--trace", "--quiet"}), 60));
  const auto events = nlohmann::json::parse(read(dir / "out/trace.json"))["traceEvents"];
  check_picture(events);  // both ends are there, in slices, and none goes back
  std::map<int, int> stage_of;
  std::map<std::pair<int, int>, std::string> exchange_of;  // the name of a row, without its number
  std::map<std::pair<int, int>, std::vector<nlohmann::json>> slices;
  std::map<std::string, nlohmann::json> starts;
  for (const auto& e : events) {
    const std::pair<int, int> row(e["pid"], e.value("tid", 0));
    const std::string name = e["ph"] == "M" ? e["args"].value("name", "") : "";
    if (e["name"] == "process_name") stage_of[e["pid"]] = std::stoi(name.substr(name.find("stage ") + 6));
    if (e["name"] == "thread_name") exchange_of[row] = name.substr(0, name.find(" ("));
    if (e["ph"] == "X") slices[row].push_back(e);
    if (e["ph"] == "s") starts[e["id"].dump()] = e;
  }
  using Act = std::pair<std::int64_t, std::int64_t>;  // step, microbatch
  const auto acts_at = [&](const nlohmann::json& end) {
    const double at = end["ts"], rounding_us = 1e-6;
    std::set<Act> acts;  // two slices may touch there
    for (const auto& s : slices[{end["pid"], end["tid"]}])
      if (s["ts"].get<double>() <= at + rounding_us &&
          at <= s["ts"].get<double>() + s["dur"].get<double>() + rounding_us)
        acts.insert({s["args"]["step"].get<std::int64_t>(), s["args"].value("microbatch", std::int64_t{-1})});
    return acts;
  };
  std::set<std::pair<int, int>> ways;
  std::map<std::pair<int, int>, std::set<Act>> received;  // by worker and the stage that sends
  int arrows = 0;
  for (const auto& end : events) {
    if (end["ph"] != "f") continue;
    const auto& start = starts.at(end["id"].dump());
    if (start["pid"] == end["pid"]) continue;
    ++arrows;
    CHECK(exchange_of.at({start["pid"], start["tid"]}) == exchange_of.at({end["pid"], end["tid"]}));
    const auto from = acts_at(start), to = acts_at(end);
    std::vector<Act> both;
    std::set_intersection(from.begin(), from.end(), to.begin(), to.end(), std::back_inserter(both));
    CHECK_FALSE(both.empty());
    for (const Act& act : both)
      if (act.first < 2)  // behind the steps that train, the evaluation of version 2
        received[{end["pid"].get<int>(), stage_of.at(start["pid"])}].insert(act);
    ways.insert({stage_of.at(start["pid"]), stage_of.at(end["pid"])});
  }
  CHECK(ways == std::set<std::pair<int, int>>{{0, 1}, {1, 2}, {2, 1}, {1, 0}});
  // 8 microbatches a step, each over two boundaries there and back, to both tp places.
  CHECK(arrows >= 2 * 8 * 4 * 2);
  CHECK(received.size() == 4 * 4);  // dp=2,tp=2: 4 places receive each way
  for (const auto& way : received) {
    INFO("worker ", way.first.first, ", from stage ", way.first.second);
    CHECK(way.second.size() == 2 * 4);  // 4 microbatches of each step are of its dp coordinate
  }
}

TEST_CASE("a plan of no configuration, and times that are no times, are refused in one line") {
  for (const char* command : {"plan", "sim", "train"})
    check_one_line(run(troupe_command({command, ""})), exit_usage, {"name a configuration"});
  for (const char* option : {"--tf", "--tb", "--tw", "--hop"})
    check_one_line(run(troupe_command({"sim", tiny_config, option, "1e308"})), exit_usage,
                   {option, "below 1e9", "'1e308'"});
}

TEST_CASE(
    "sim refuses times that could outlast its clock before it plays, and names the options, their values and the "
    "bound") {
  const auto sim = [](const std::string& microbatches, const std::vector<std::string>& times) {
    std::vector<std::string> words = {"sim", tiny_config, "--set", "schedule.batch=" + microbatches};
    words.insert(words.end(), times.begin(), times.end());
    return run(troupe_command(words));
  };
  const std::string bound = "simulated time ends at 9e+09 s";
  check_one_line(sim("10000", {"--tf", "9e8", "--tb", "9e8"}), exit_usage,
                 {"--tf 900000000 ms, --tb 900000000 ms: ", "of 2 steps", "take 3.6e+10 s", bound});
  check_one_line(sim("10000", {"--mesh", "pp=2", "--hop", "9e8"}), exit_usage, {"--hop 900000000 ms: ", bound});
  check_one_line(sim("40000", {"--paced", "9e8"}), exit_usage, {"--paced 900000000: ", bound});
  check_success(sim("8", {"--tf", "9e8", "--tb", "9e8"}));
}

TEST_CASE("sim takes the times of passes that go together: --tb and --tw with --tf, --tw up to the backward time") {
  const auto sim = [](const std::vector<std::string>& times) {
    std::vector<std::string> words = {"sim", tiny_config, "--mesh", "pp=2", "--set", "schedule.pipeline=zero-bubble"};
    words.insert(words.end(), times.begin(), times.end());
    return run(troupe_command(words));
  };
  check_one_line(sim({"--tb", "2"}), exit_usage, {"--tb without --tf"});
  check_one_line(sim({"--tw", "1"}), exit_usage, {"--tw without --tf"});
  check_one_line(sim({"--tf", "1", "--tb", "2", "--tw", "2.5"}), exit_usage, {"--tw 2.5", "which is 2"});
  check_one_line(sim({"--tf", "1", "--tw", "2.5"}), exit_usage, {"--tw 2.5", "which is 2"});
  const auto passes = sim({"--tf", "1", "--tb", "2", "--tw", "2"});
  check_success(passes);
  CHECK(sim({"--tf", "1", "--tw", "2"}).out == passes.out);
}

TEST_CASE(
    "schedule.ahead reaches the plan and changes no bit; auto prints what each number would cost and gain, in plan.txt "
    "too, and train "
    "runs with the number that is chosen") {
  TempDir dir;
  const auto hash = [&](const std::string& ahead) {
    const std::string out = dir / ("out" + ahead);
    check_success(run(train(out, {"--mesh", "tp=2", "--steps", "2", "--quiet", "--set", "schedule.ahead=" + ahead})));
    CHECK((read(out + "/plan.txt").find("pipeline 1f1b and 2 ahead,") != std::string::npos) == (ahead == "2"));
    return summary(out)["params_hash"].get<std::string>();
  };
  const std::string without = hash("0");
  CHECK(hash("2") == without);
  const std::vector<std::string> slow_links = {"--mesh",           "tp=2",  "--throttle",
                                               "bandwidth=10MB/s", "--set", "schedule.ahead=auto"};
  const auto shown = [&](const char* command, std::vector<std::string> more) {
    more.insert(more.begin(), slow_links.begin(), slow_links.end());
    more.insert(more.begin(), {command, tiny_config});
    const auto o = run(troupe_command(more));
    check_success(o);
    for (const char* part : {"microbatches ahead of 1F1B", "predicted step", "chosen"})
      CHECK_MESSAGE(o.out.find(part) != std::string::npos, part);
    return o.out;
  };
  for (const char* command : {"plan", "sim"}) {
    CAPTURE(command);
    const auto here = shown(command, {});
    CHECK(here.find("\nmemory: all places together may use ") != std::string::npos);
    CHECK(here.find(" of what this machine has available\n") != std::string::npos);
    // Sequences of so many tokens fit into no machine, and are for another one.
    const auto elsewhere = shown(
        command, {"--set", "model.seq=20000", "--set", "schedule.microbatch=4000", "--set", "schedule.batch=16000"});
    CHECK(elsewhere.find("\nmemory: no bound, since with 0 ahead all places together need more than the ") !=
          std::string::npos);
    std::smatch chosen;
    REQUIRE(std::regex_search(here, chosen, std::regex("\\n *([1-9][0-9]*) .* chosen\n")));
    const std::string out = dir / command;
    auto trains = slow_links;
    trains.insert(trains.end(), {"--steps", "2", "--quiet"});
    check_success(run(train(out, trains)));
    CHECK(summary(out)["params_hash"].get<std::string>() == without);
    const auto plan = read(out + "/plan.txt");
    CHECK(summary(out)["ahead"].get<int>() == std::stoi(chosen[1].str()));
    CHECK(summary(out)["weights_apart"].get<bool>() == (chosen[0].str().find("apart") != std::string::npos));
    CHECK(plan.find("pipeline 1f1b and " + chosen[1].str() + " ahead,") != std::string::npos);
    for (const char* part :
         {"microbatches ahead of 1F1B", "predicted step", "chosen", "\nmemory: all places together may use "})
      CHECK_MESSAGE(plan.find(part) != std::string::npos, part);
  }
}

TEST_CASE("--help says of each option that takes a value what holds without it") {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{{"train"},
                                                                                       {"plan"},
                                                                                       {"sim"},
                                                                                       {"sample"},
                                                                                       {"eval"},
                                                                                       {"calibrate"},
                                                                                       {"ckpt", "prune"},
                                                                                       {"ckpt", "export"},
                                                                                       {"ckpt", "import"}}) {
    auto words = command;
    words.push_back("--help");
    const auto o = run(troupe_command(words));
    check_success(o);
    std::vector<std::string> options;  // each with its wrapped lines
    std::istringstream lines(o.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("  -")) options.push_back(line);
      else if (line.starts_with("      ") && !options.empty()) options.back() += line;
    CHECK(options.size() > 1);
    std::set<std::string> examined;
    for (const auto& option : options) {
      // "  --log-level LEVEL   lines on stderr": a value's name is one space behind the option's; a flag has none.
      const auto name_end = std::min(option.find(' ', 2), option.size());
      if (name_end + 1 >= option.size() || option[name_end + 1] == ' ') continue;
      examined.insert(option.substr(2, name_end - 2));
      const bool said = option.find("default") != std::string::npos || option.find("REQUIRED") != std::string::npos ||
                        option.find("repeatable") != std::string::npos;
      CHECK_MESSAGE(said, command[0], ": ", option);
    }
    CHECK(examined.count("--log-level") == 1);
    CHECK(examined.count("--help") + examined.count("-h,--help") == 0);
    if (command[0] == "train")
      for (const char* option : {"--data", "--steps", "--paced", "--trace-steps", "--resume", "--throttle"})
        CHECK_MESSAGE(examined.count(option) == 1, option);
  }
}

TEST_CASE("sim counts the messages of a training step, whatever the run evaluates") {
  const auto messages = [](const std::string& every) {
    const auto o = run(troupe_command({"sim", tiny_config, "--mesh", "pp=2", "--set", "eval.every=" + every}));
    check_success(o);
    const auto at = o.out.find("\nmessages ");
    REQUIRE(at != std::string::npos);
    return o.out.substr(at + 1, o.out.find('\n', at + 1) - at - 1);
  };
  CHECK(messages("5") == messages("0"));
}

TEST_CASE(
    "where auto has nothing to choose plan, sim and plan.txt say why; sim says whose costs it used, and of what its "
    "figures are") {
  TempDir dir;
  const auto said = [&](std::vector<std::string> words, const std::string& part) {
    const auto o = run(troupe_command(words));
    check_success(o);
    CHECK_MESSAGE(o.out.find(part) != std::string::npos, o.out);
  };
  const std::vector<std::string> ordered = {
      "--mesh", "tp=2,pp=2", "--set", "schedule.ahead=auto", "--set", "schedule.pipeline=zero-bubble"};
  for (const char* command : {"plan", "sim"}) {
    std::vector<std::string> words = {command, tiny_config};
    words.insert(words.end(), ordered.begin(), ordered.end());
    said(words, "\nschedule.ahead is auto, which is 0 here: zero-bubble has an order of passes");
    said({command, tiny_config, "--mesh", "dp=2", "--set", "schedule.ahead=auto"},
         "which is 0 here: no exchange begins and ends inside a stage\n");
    said({command, tiny_config, "--mesh", "dp=2"}, "\ncosts       ");
  }
  const std::string out = dir / "out";
  check_success(run(train(out, {"--mesh", "dp=2", "--set", "schedule.ahead=auto", "--steps", "0", "--quiet"})));
  CHECK(read(out + "/plan.txt").find("which is 0 here") != std::string::npos);
  said({"sim", tiny_config, "--mesh", "tp=2", "--ideal"}, "\nideal       ");
  for (const auto& option : {std::vector<std::string>{"--hop", "1"}, {"--tf", "1"}, {"--ideal"}}) {
    std::vector<std::string> words = {"sim", tiny_config, "--mesh", "tp=2", "--set", "schedule.ahead=auto"};
    words.insert(words.end(), option.begin(), option.end());
    said(words, "chosen by the cost model's times, without --tf, --hop and --ideal\n");
  }
  for (const auto& words : {std::vector<std::string>{"--mesh", "dp=2", "--hop", "1"}, {"--mesh", "tp=2"}}) {
    std::vector<std::string> command = {"sim", tiny_config, "--set", "schedule.ahead=auto"};
    command.insert(command.end(), words.begin(), words.end());
    const auto none = run(troupe_command(command));
    check_success(none);
    CHECK(none.out.find("chosen by the cost model") == std::string::npos);
    CHECK(none.out.find("\nideal ") == std::string::npos);
  }
  CHECK(read(out + "/plan.txt").find("\ncosts       ") != std::string::npos);
}

TEST_CASE("sim says that --tf leaves links out") {
  const auto out = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"sim", tiny_config, "--mesh", "pp=2"});
    const auto o = run(troupe_command(more));
    check_success(o);
    return o.out;
  };
  CHECK(out({}).find("\nlinks ") == std::string::npos);
  CHECK(out({"--tf", "1", "--hop", "0.5"})
            .find("\nlinks       left out by --tf: every exchange takes the 0.5 ms of --hop\n") != std::string::npos);
  CHECK(out({"--tf", "1", "--throttle", "latency=5ms"}).find("left out by --tf, with --throttle: ") !=
        std::string::npos);
}

TEST_CASE("what a run was throttled and paced by is in run.json, and beside the costs in plan.txt, plan and sim") {
  TempDir dir;
  const std::vector<std::string> slow = {"--mesh", "tp=2", "--throttle", "latency=1ms", "--paced", "0.1"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), slow.begin(), slow.end());
    return words;
  };
  const std::string out = dir / "out", costs = ", --throttle latency=1ms, --paced 0.1\n";
  check_success(run(train(out, with({"--steps", "1", "--quiet", "--set", "eval.every=0"}))));
  const auto record = nlohmann::json::parse(read(out + "/run.json"));
  CHECK(record["throttle"] == nlohmann::json::array({"latency=1ms"}));
  CHECK(record["paced"] == 0.1);
  CHECK(record["pin"] == false);
  CHECK(read(out + "/plan.txt").find(costs) != std::string::npos);
  for (const char* command : {"plan", "sim"}) {
    const auto o = run(troupe_command(with({command, tiny_config})));
    check_success(o);
    CHECK_MESSAGE(o.out.find(costs) != std::string::npos, o.out);
  }
  check_one_line(run(train(dir / "none", with({"--sample"}))), exit_usage, {"--paced computes nothing", "sample"});
}

TEST_CASE("more microbatches ahead than a place has others of a step are as many as it has") {
  const std::pair<const char*, const char*> rows[] = {{"tp=2", "1f1b and 7 ahead"},
                                                      {"dp=2,tp=2", "1f1b and 3 ahead"},
                                                      {"dp=3,tp=2", "1f1b and 2 ahead"},
                                                      {"dp=4/2,tp=2,pp=2", "1f1b and 3 ahead"}};
  for (const auto& [mesh, ahead] : rows) {
    const auto o = run(troupe_command({"plan", tiny_config, "--mesh", mesh, "--set", "schedule.ahead=1000000"}));
    check_success(o);
    CHECK_MESSAGE(o.out.find(ahead) != std::string::npos, o.out.substr(0, 300));
  }
}
