#include "apps/job/results.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "apps/lm/model.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;

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
  const auto plan = make_plan(app, *prepared, test::write_text(dir / "text", std::string(5000, 'x')), false);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto predicted = predict(*plan);
  REQUIRE_MESSAGE(predicted.ok(), predicted.status().message());
  Results results(a, *prepared, 10);
  REQUIRE(results.open(*plan, *predicted, 0, false).ok());

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
  test::TempDir dir;
  runtime::App app;
  register_actors(app);
  JobArguments a;
  a.config_path = std::string(TROUPE_SOURCE_DIR "/apps/configs") + "/lm-tiny.toml";
  a.out = dir.path();
  a.quiet = true;
  int code = 0;
  const auto prepared = prepare(a, code);
  REQUIRE_MESSAGE(prepared.ok(), prepared.status().message());
  const auto plan = make_plan(app, *prepared, test::write_text(dir / "text", std::string(5000, 'x')), false);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  Results results(a, *prepared, 10);
  REQUIRE(results.open(*plan, {}, 0, false).ok());
  runtime::StepResult step;
  results.step(step);
  step.step = 12;
  step.void_step = true;
  step.void_parameter = "layer0.q";
  step.void_microbatch = 3;
  results.step(step);
  const auto lines = test::read_text(dir / "metrics.jsonl");
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
