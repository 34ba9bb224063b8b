#include "apps/job/results.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/lm/model.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

/// lm-tiny, planned; its results go into a folder, and nothing to the terminal.
struct QuietRun {
  test::TempDir dir;
  JobArguments a;
  Prepared prepared;
  runtime::Plan plan;

  QuietRun() {
    a.config_path = TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml";
    a.out = dir.path();
    a.quiet = true;
    runtime::App app;
    register_actors(app);
    int code = 0;
    auto p = lm::prepare(a, code);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    prepared = *std::move(p);
    auto made = make_plan(app, prepared, test::write_text(dir / "text", std::string(5000, 'x')), {});
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    plan = std::move(made->plan);
  }
};

}  // namespace

TEST_CASE("a job that failed has a trace of the spans that arrived; it says how many did not find room") {
  test::TempDir dir;
  runtime::App app;
  register_actors(app);
  JobArguments a;
  a.config_path = std::string(TROUPE_SOURCE_DIR "/apps/configs") + "/lm-tiny.toml";
  a.mesh = "pp=2";
  a.out = dir.path();
  a.quiet = true;
  a.trace = {.first = 3, .steps = 1};
  int code = 0;
  const auto prepared = prepare(a, code);
  REQUIRE_MESSAGE(prepared.ok(), prepared.status().message());
  const auto plan = make_plan(app, *prepared, test::write_text(dir / "text", std::string(5000, 'x')), {});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto predicted = predict(plan->plan);
  REQUIRE_MESSAGE(predicted.ok(), predicted.status().message());
  Results results(a, *prepared, 10);
  REQUIRE(results.open(plan->plan, *predicted, 0, false).ok());

  runtime::JobResult failed{Status(Code::unavailable, "worker 1 is gone"), runtime::exit_worker, "", 7, {{}, {}}};
  failed.places[0].spans = {{.row = "layers.0", .name = "layers.0", .begin_ns = 1, .end_ns = 2, .step = 3}};
  failed.places[1].dropped_spans = 12;
  REQUIRE(results.write_files(failed, failed.status, "").ok());
  int slices = 0;
  std::vector<std::string> names;
  const auto trace = nlohmann::json::parse(test::read_text(dir / "trace.json"));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") ++slices;
    if (event["name"] == "process_name") names.push_back(event["args"]["name"]);
  }
  CHECK(slices == 1);
  CHECK(names == std::vector<std::string>{"worker 0: stage 0", "worker 1: stage 1 (12 spans dropped)"});
  CHECK(nlohmann::json::parse(test::read_text(dir / "run.json"))["status"] == "worker 1 is gone");
}

TEST_CASE("a void step is told: its line of metrics and its note name the parameter and the microbatch") {
  const QuietRun quiet;
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  runtime::StepResult step;
  results.step(step);
  step.step = 12;
  step.void_step = true;
  step.void_parameter = "layer0.q";
  step.void_microbatch = 3;
  results.step(step);
  const auto lines = test::read_text(quiet.dir / "metrics.jsonl");
  const auto good = nlohmann::json::parse(lines.substr(0, lines.find('\n')));
  const auto void_step = nlohmann::json::parse(lines.substr(lines.find('\n')));
  CHECK_FALSE(good.contains("void"));
  CHECK(void_step["void"] == "layer0.q");
  CHECK(void_step["void_microbatch"] == 3);
  CHECK(void_step["grad_norm"].is_null());
  CHECK(good["grad_norm"] == 0);
  CHECK(void_step_text(step) ==
        "step 12 is void: in microbatch 3 a gradient term of 'layer0.q' exceeds the range of its exact sum; "
        "the sum's exponent becomes coarser");
  step.void_microbatch = -1;
  CHECK(void_step_text(step) ==
        "step 12 is void: a gradient term of 'layer0.q' exceeds the range of its exact sum; the sum's exponent becomes "
        "coarser");
}

TEST_CASE(
    "a step's samples are those that its loaders say; where they did not load one run of samples, each once, there is "
    "none") {
  using R = runtime::Report;
  const auto loaded = [](std::int32_t microbatch, double first, double count) {
    return R{R::Kind::value, "samples", 0, microbatch, {first, count}};
  };
  const R other{R::Kind::value, "temperature", 0, 0, {1}};
  struct Case {
    std::vector<R> reports;
    nlohmann::json samples;
  };
  const std::vector<Case> cases = {{{loaded(0, 16, 4), loaded(1, 20, 4), other}, {16, 24}},
                                   {{loaded(0, 16, 4), loaded(0, 16, 4)}, nullptr},  // twice
                                   {{other}, nullptr},
                                   {{loaded(0, 16, 4), loaded(1, 16, 4)}, nullptr},  // twice
                                   {{loaded(0, 16, 4), loaded(1, 21, 3)}, nullptr},  // one is left out
                                   {{loaded(0, 16, 4), loaded(0, 16, 5)}, nullptr},
                                   {{loaded(0, 16, 4), loaded(0, 15, 5)}, nullptr}};
  const QuietRun quiet;
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  runtime::StepResult step;
  for (const Case& c : cases) {
    step.reports = c.reports;
    results.step(step);
    ++step.step;
  }
  std::istringstream text(test::read_text(quiet.dir / "metrics.jsonl"));
  std::string line;
  for (const Case& c : cases) {
    REQUIRE(std::getline(text, line));
    CHECK(nlohmann::json::parse(line).at("samples") == c.samples);
  }
}

TEST_CASE(
    "a run that goes on sets aside the trace and the sample that were there, once, and cuts the metrics when it "
    "begins") {
  const QuietRun quiet;
  const std::string first = "{\"step\": 1, \"loss\": 3}\n", kept = first + "{\"step\": 3, \"loss\": 2.5}\n";
  const std::string all = kept + "{\"step\": 4, \"loss\": 2}\n";
  test::write_text(quiet.dir / "metrics.jsonl", all);
  test::write_text(quiet.dir / "trace.json", "of the start before");
  test::write_text(quiet.dir / "sample.txt", "once upon");
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 4, true).ok());
  CHECK_FALSE(std::filesystem::exists(quiet.dir / "trace.json"));
  CHECK_FALSE(std::filesystem::exists(quiet.dir / "sample.txt"));
  CHECK(test::read_text(quiet.dir / "earlier-1/trace.json") == "of the start before");
  CHECK(test::read_text(quiet.dir / "earlier-1/sample.txt") == "once upon");
  CHECK(test::read_text(quiet.dir / "metrics.jsonl") == all);  // it may not be able to begin
  CHECK(nlohmann::json::parse(test::read_text(quiet.dir / "run.json")).at("resumed_at") == 4);
  // the checkpoint is damaged: the same run begins again from an older one
  test::write_text(quiet.dir / "trace.json", "of this start");
  REQUIRE(results.open(quiet.plan, {}, 2, true).ok());
  CHECK(test::read_text(quiet.dir / "trace.json") == "of this start");
  CHECK_FALSE(std::filesystem::exists(quiet.dir / "earlier-2"));
  CHECK(test::read_text(quiet.dir / "metrics.jsonl") == all);
  results.ready();
  CHECK(test::read_text(quiet.dir / "metrics.jsonl") == first);
  CHECK(nlohmann::json::parse(test::read_text(quiet.dir / "run.json")).at("resumed_at") == 2);
  // that one is damaged, too: the run begins anew
  REQUIRE(results.open(quiet.plan, {}, 2, true).ok());
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  results.ready();
  CHECK(test::read_text(quiet.dir / "metrics.jsonl").empty());
}

TEST_CASE("run.json and the curve tell of the first step while the run goes on") {
  const QuietRun quiet;
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  CHECK_FALSE(std::filesystem::exists(quiet.dir / "loss.svg"));
  runtime::StepResult step;
  step.loss = 2.5;
  results.step(step);
  const auto run = nlohmann::json::parse(test::read_text(quiet.dir / "run.json"));
  CHECK(run.at("status") == "running");
  CHECK(run.at("steps") == 1);
  CHECK(run.at("loss") == 2.5);
  CHECK(test::read_text(quiet.dir / "loss.svg").find("no steps yet") == std::string::npos);
}

TEST_CASE("run.json names the newest checkpoint that the run has saved; it is null while there is none") {
  const QuietRun quiet;
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  const auto newest_after = [&](const runtime::CheckpointEvent& event) {
    results.checkpoint(event);
    results.begun(7, 1);  // writes run.json
    const auto run = nlohmann::json::parse(test::read_text(quiet.dir / "run.json"));
    return run.at("checkpoints").at("newest");
  };
  runtime::CheckpointEvent event;
  event.kind = runtime::CheckpointEvent::Kind::failed;
  event.step = 2;
  event.status = Status(Code::exhausted, "the disk is full");
  event.failures = 1;
  CHECK(newest_after(event).is_null());
  event.step = 6;
  runtime::CheckpointEvent saved;
  saved.kind = runtime::CheckpointEvent::Kind::committed;
  saved.step = 4;
  CHECK(newest_after(saved) == 4);
  CHECK(newest_after(event) == 4);  // one that has failed is none
  event = {};
  event.kind = runtime::CheckpointEvent::Kind::skipped;
  event.step = 7;
  CHECK(newest_after(event) == 4);
  saved.step = 8;
  CHECK(newest_after(saved) == 8);
  const auto counts = nlohmann::json::parse(test::read_text(quiet.dir / "run.json")).at("checkpoints");
  CHECK(counts.at("saved") == 2);
  CHECK(counts.at("failed") == 2);
  CHECK(counts.at("skipped") == 1);
}

TEST_CASE(
    "an incident is a line of incidents.jsonl, counts in run.json, and lines that are told late keep their "
    "generation") {
  const QuietRun quiet;
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  runtime::Incident went_on;
  went_on.cause = "worker 1 was killed; its last log lines:\n  a\nthen worker 0 was killed";
  went_on.culprit = 1;
  went_on.lost = {1, 0};
  went_on.generation = 6;
  went_on.committed = 8;
  went_on.version = 7;
  went_on.from = "memory";
  went_on.down_ns = 1'000'000'000;
  went_on.last_down_ns = 1'002'000'000;
  went_on.left_ns = 1'012'000'000;
  went_on.agreed_ns = 1'032'000'000;
  went_on.ready_ns = 1'033'000'000;
  went_on.act_ns = 1'040'000'000;
  results.incident(went_on);
  runtime::Incident ended = went_on;
  ended.cause = "in.x has failed";
  ended.actor = "in.x";
  ended.lost.clear();
  ended.left_ns = ended.agreed_ns = ended.ready_ns = ended.act_ns = -1;
  results.incident(ended);
  results.at(2'000'000'000, 5);
  runtime::StepResult step;
  step.step = 7;
  results.step(step);
  results.begun(7, 6);  // writes run.json
  std::vector<nlohmann::json> lines;
  std::istringstream text(test::read_text(quiet.dir / "incidents.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("cause") == "worker 1 was killed");
  CHECK(lines[0].at("report").get<std::string>().find("then worker 0 was killed") != std::string::npos);
  CHECK(lines[0].at("culprit") == 1);
  CHECK(lines[0].at("lost") == std::vector<int>{1, 0});
  CHECK(lines[0].at("committed") == 8);
  CHECK(lines[0].at("step") == 7);
  CHECK(lines[0].at("from") == "memory");
  CHECK(lines[0].at("generation") == 6);
  CHECK(lines[0].at("ms") == nlohmann::json{{"more_lost", 2}, {"left", 10}, {"agreed", 20}, {"ready", 1}, {"act", 7}});
  CHECK(lines[0].count("ended") == 0);
  CHECK(lines[1].at("ended") == true);
  CHECK(lines[1].at("actor") == "in.x");
  CHECK(lines[1].count("step") == 0);
  const auto run = nlohmann::json::parse(test::read_text(quiet.dir / "run.json"));
  CHECK(run.at("incidents") == nlohmann::json{{"count", 2}, {"repeated_steps", 1}});
  const auto line = nlohmann::json::parse(test::read_text(quiet.dir / "metrics.jsonl"));
  CHECK(line.at("generation") == 5);
  const auto svg = test::read_text(quiet.dir / "loss.svg");
  const auto mark = svg.find("<title>step 7, generation 6: worker 1 was killed</title>");
  CHECK(mark != std::string::npos);
  CHECK(svg.find("class=\"mark\"", mark) == std::string::npos);  // the run did not go on after the other one
}

TEST_CASE("a straggler is a line of incidents.jsonl, and no incident") {
  const QuietRun quiet;
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  results.straggler({2, 3.04, 17, false});
  results.straggler({2, 1.2, 40, true});
  results.begun(7, 6);
  std::istringstream text(test::read_text(quiet.dir / "incidents.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("straggler") == 2);
  CHECK(lines[0].at("times") == 3.04);
  CHECK(lines[0].at("step") == 17);
  CHECK(lines[0].at("at_s") >= 0);
  CHECK(lines[0].count("over") == 0);
  CHECK(lines[1].at("over") == true);
  CHECK(nlohmann::json::parse(test::read_text(quiet.dir / "run.json")).count("incidents") == 0);
}

TEST_CASE("a trace has the job's generations and incidents beside its workers") {
  QuietRun quiet;
  quiet.a.trace = {.first = 0, .steps = 9};
  Results results(quiet.a, quiet.prepared, 10);
  REQUIRE(results.open(quiet.plan, {}, 0, false).ok());
  runtime::JobResult job{{}, runtime::exit_ok, "", 7, {{}}};
  job.places[0].spans = {{.row = "layers.0", .name = "layers.0", .begin_ns = 100, .end_ns = 90'000, .step = 3}};
  const std::int64_t begin = SteadyClock().now_ns();  // a trace begins with the run
  auto& span = job.places[0].spans[0];
  span.begin_ns += begin, span.end_ns += begin;
  runtime::Incident i, changed, ended;
  i.cause = "worker 1 was killed\nthen another";
  i.generation = 6;
  i.version = 2;
  i.down_ns = begin + 10'000;
  i.act_ns = begin + 30'000;
  changed = i;
  changed.cause = "asked to";
  changed.generation = 7;
  changed.shape = "dp=1";
  changed.down_ns = begin + 40'000;
  changed.act_ns = begin + 50'000;
  job.incidents = {i, changed};
  REQUIRE(results.write_files(job, job.status, "").ok());
  const auto slices = [&] {
    std::map<std::string, double> lasted;  // of the job, in us
    const auto trace = nlohmann::json::parse(test::read_text(quiet.dir / "trace.json"));
    for (const auto& event : trace["traceEvents"])
      if (event["ph"] == "X" && event["pid"] == 1) {
        lasted[event["name"]] = event["dur"];
        if (event["name"] == "worker 1 was killed") CHECK(event["args"]["step"] == 2);
      }
    return lasted;
  };
  auto lasted = slices();
  CHECK(lasted.at("worker 1 was killed") == 20);
  CHECK(lasted.at("generation 6") == 10);
  CHECK(lasted.at("asked to") == 10);
  CHECK(lasted.at("generation 7 on dp=1") == 40);
  CHECK(lasted.at("the first generation") > 0);
  CHECK(lasted.size() == 5);
  ended = changed;
  ended.act_ns = -1;
  job.incidents = {i, ended};
  REQUIRE(results.write_files(job, job.status, "").ok());
  lasted = slices();
  CHECK(lasted.at("generation 6") == 10);
  CHECK(lasted.size() == 3);  // nothing after the incident that ended the run
}
