#include "apps/report/metrics.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::report;

TEST_CASE("ME-2 (digits): a step's line has exactly the promised keys, and losses read back bit by bit") {
  const StepMetrics m{7, 1.0 / 3.0, 0.1 + 0.2, 3e-4, 8192, std::pair(56, 64), 12345.6, 81.25, 0.5, 2};
  const auto line = to_json_line(m);
  CHECK(line.back() == '\n');
  const auto json = nlohmann::ordered_json::parse(line);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"step", "loss", "grad_norm", "lr", "tokens", "samples", "tokens_per_s",
                                         "step_ms", "exposed_comm_ms", "generation"});
  CHECK(json["samples"] == std::vector<int>{56, 64});
  CHECK(nlohmann::json::parse(to_json_line(StepMetrics{}))["samples"].is_null());
  CHECK(json["loss"].get<double>() == 1.0 / 3.0);
  CHECK(json["grad_norm"].get<double>() == 0.1 + 0.2);
  CHECK(line.find("\"loss\": 0.33333333333333331,") != std::string::npos);
}

TEST_CASE("a void step's line names the parameter and, where it is known, the microbatch") {
  StepMetrics m;
  m.void_parameter = "layer0.\"q\"";
  auto json = nlohmann::json::parse(to_json_line(m));
  CHECK(json["void"] == "layer0.\"q\"");
  CHECK_FALSE(json.contains("void_microbatch"));
  m.void_microbatch = 0;
  json = nlohmann::json::parse(to_json_line(m));
  CHECK(json["void_microbatch"] == 0);
  CHECK(json["generation"] == 0);
}

TEST_CASE("an evaluation's line carries step and eval_loss; a number that is none becomes null") {
  const auto eval = nlohmann::json::parse(to_json_line(EvalMetrics{5, 2.5, 4096, 12, 0}));
  CHECK(eval["step"] == 5);
  CHECK(eval["eval_loss"] == 2.5);
  CHECK_FALSE(eval.contains("loss"));
  StepMetrics broken;
  broken.loss = NAN;
  broken.grad_norm = INFINITY;
  const auto step = nlohmann::json::parse(to_json_line(broken));
  CHECK(step["loss"].is_null());
  CHECK(step["grad_norm"].is_null());
}

TEST_CASE("ME-1 (whole lines): appending goes on after the last whole line, a fresh run starts anew") {
  test::TempDir dir;
  const auto path = test::write_text(dir / "metrics.jsonl", "{\"step\": 0}\n{\"step\": 1, \"lo");
  {
    auto writer = MetricsWriter::open(path, MetricsWriter::Mode::append);
    REQUIRE(writer.ok());
    CHECK(writer->write(EvalMetrics{1}).ok());
  }
  CHECK(test::read_text(path) == "{\"step\": 0}\n" + to_json_line(EvalMetrics{1}));
  auto fresh = MetricsWriter::open(path);
  REQUIRE(fresh.ok());
  CHECK(test::read_text(path).empty());
  CHECK(MetricsWriter::open(dir.path()).status().code() == Code::io);
}

TEST_CASE("ME-1: when the disk is full no half line stays behind") {
  test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  auto writer = MetricsWriter::open(path);
  REQUIRE(writer.ok());
  const auto line = to_json_line(StepMetrics{});
  REQUIRE(writer->write(StepMetrics{}).ok());

  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = before;
  tight.rlim_cur = line.size() + line.size() / 2;
  setrlimit(RLIMIT_FSIZE, &tight);
  const Status status = writer->write(StepMetrics{});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);

  CHECK_FALSE(status.ok());
  CHECK(test::read_text(path) == line);
}

TEST_CASE(
    "a run that goes on at a step says once what each step said; what earlier ones said stays, and is its curve") {
  test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  auto line = [](std::int64_t step, double loss) {
    StepMetrics m;
    m.step = step;
    m.loss = loss;
    return to_json_line(m);
  };
  CheckpointMetrics saved;
  saved.what = "saved";
  saved.step = 2;
  saved.stall_ms = 0.5;
  CheckpointMetrics failed;
  failed.what = "failed";
  failed.step = 3;
  failed.why = "no \"room\"\n";
  EvalMetrics eval;
  eval.step = 1;
  eval.eval_loss = 3.25;
  const std::string kept = line(0, 5.5) + to_json_line(eval) + line(1, 4.5) + to_json_line(saved);
  test::write_text(path, kept + line(2, 4.25) + to_json_line(failed) + line(3, 4) + R"({"step": 4, "lo)");
  const auto before = read_lines_before(path, 2);
  REQUIRE(before.ok());
  CHECK(before->lines == kept);
  REQUIRE(before->train.size() == 2);
  CHECK(before->train[1].loss == 4.5);
  REQUIRE(before->eval.size() == 1);
  CHECK(before->eval[0].loss == 3.25);
  CHECK(nlohmann::json::parse(to_json_line(failed))["why"] == "no \"room\"\n");
  CHECK(nlohmann::json::parse(to_json_line(saved))["stall_ms"] == 0.5);
  saved.what = "saving";
  CHECK(nlohmann::json::parse(to_json_line(saved))["stall_ms"] == 0.5);
  CHECK(before->damaged.empty());  // half a line at the end is none
  CHECK(read_lines_before(dir / "none", 2)->train.empty());
  test::write_text(path, line(0, 5) + "torn\n" + line(2, 4) + "{}\n" + line(3, 4) + "torn");
  CHECK(read_lines_before(path, 9)->damaged == std::vector<std::int64_t>{2, 4});
}

TEST_CASE("ME-1: a file that was moved, or in whose place another one lies, is noticed") {
  test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  auto writer = MetricsWriter::open(path);
  REQUIRE(writer.ok());
  CHECK(writer->in_place().ok());
  SUBCASE("moved") { std::filesystem::rename(path, dir / "elsewhere"); }
  SUBCASE("replaced") {
    test::write_text(dir / "other", "");
    std::filesystem::rename(dir / "other", path);
  }
  CHECK(writer->in_place().ok());  // a file system may say so for a moment
  CHECK(writer->in_place().message() == "'" + path + "' was moved or replaced while the run wrote it");
}

TEST_CASE("ME-1: a file that seemed to be gone and was there since is not gone when it seems so once more") {
  test::TempDir dir;
  const auto path = dir / "metrics.jsonl";
  auto writer = MetricsWriter::open(path);
  REQUIRE(writer.ok());
  for (int i = 0; i < 3; ++i) {
    std::filesystem::rename(path, dir / "elsewhere");
    CHECK(writer->in_place().ok());
    std::filesystem::rename(dir / "elsewhere", path);
    CHECK(writer->in_place().ok());
  }
}

TEST_CASE("a pipe in the place of metrics.jsonl is refused, not waited for") {
  test::TempDir dir;
  REQUIRE(::mkfifo((dir / "metrics.jsonl").c_str(), 0600) == 0);
  const auto status = report::read_lines_before(dir / "metrics.jsonl", 1).status();
  CHECK(status.message().find("is no regular file") != std::string::npos);
}

TEST_CASE("a file of metrics that is removed or cut while the run writes it is told with the next line") {
  for (const bool removed : {true, false}) {
    CAPTURE(removed);
    test::TempDir dir;
    const std::string path = dir / "metrics.jsonl";
    auto writer = report::MetricsWriter::open(path);
    REQUIRE(writer.ok());
    for (int i = 0; i < 2; ++i) REQUIRE(writer->write(StepMetrics()).ok());
    if (removed) REQUIRE(::unlink(path.c_str()) == 0);
    else REQUIRE(::truncate(path.c_str(), 10) == 0);
    const Status s = writer->write(StepMetrics());
    CHECK(s.message().find(removed ? "was removed" : "was cut") != std::string::npos);
  }
}
