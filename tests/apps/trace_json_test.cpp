#include "apps/report/trace_json.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/apps/temp_dir.h"
#include "tests/apps/trace_checks.h"

using namespace troupe;
using namespace troupe::report;

namespace {

nlohmann::json events(const std::string& path) { return nlohmann::json::parse(test::read_text(path))["traceEvents"]; }

std::vector<nlohmann::json> of_phase(const nlohmann::json& all, const std::string& phase) {
  std::vector<nlohmann::json> out;
  for (const auto& e : all)
    if (e["ph"] == phase) out.push_back(e);
  return out;
}

}  // namespace

using test::check_picture;

TEST_CASE("a trace has a process per worker, a row per actor, a slice per act and an arrow per message") {
  test::TempDir dir;
  auto writer = TraceJsonWriter::open(dir / "trace.json", 1'000'000);
  REQUIRE(writer.ok());
  const std::uint64_t id = 0xfedcba9876543210;
  writer->name_worker(0, "worker 0: stage 0");
  writer->name_worker(1, "worker 1: stage 1");
  writer->add(0, {{"embed", "embed fwd", 1'001'234, 1'002'000, 3, 2, 0, id}});
  writer->add(
      1, {{"head", "head fwd", 1'004'000, 1'005'500, 3, 2, id, 0}, {"optimizer", "adamw", 1'006'000, 1'006'000, 3}});
  writer->add(0, {{"embed", "embed bwd", 1'010'000, 1'011'000, 3, 2}});
  REQUIRE(writer->close().ok());

  const auto all = events(dir / "trace.json");
  const auto slices = of_phase(all, "X");
  REQUIRE(slices.size() == 4);  // worker by worker
  CHECK(slices[0]["name"] == "embed fwd");
  CHECK(slices[0]["pid"] == 0);
  CHECK(slices[0]["ts"].get<double>() == doctest::Approx(1.234));
  CHECK(slices[0]["dur"].get<double>() == doctest::Approx(0.766));
  CHECK(slices[0]["args"] == nlohmann::json{{"step", 3}, {"microbatch", 2}});
  CHECK_FALSE(slices[3]["args"].contains("microbatch"));
  CHECK(slices[1]["tid"] == slices[0]["tid"]);
  CHECK(slices[3]["tid"] != slices[2]["tid"]);

  const auto starts = of_phase(all, "s"), ends = of_phase(all, "f");
  REQUIRE(starts.size() == 1);
  REQUIRE(ends.size() == 1);
  CHECK(starts[0]["id"] == ends[0]["id"]);
  CHECK(starts[0]["cat"] == ends[0]["cat"]);
  CHECK(starts[0]["pid"] == 0);
  CHECK(ends[0]["pid"] == 1);
  CHECK(ends[0]["bp"] == "e");
  CHECK(starts[0]["ts"].get<double>() < slices[0]["ts"].get<double>() + slices[0]["dur"].get<double>());

  int names = 0;
  for (const auto& e : of_phase(all, "M")) names += e["name"] == "thread_name" || e["name"] == "process_name";
  CHECK(names == 2 + 3);
}

TEST_CASE(
    "an arrow goes from the send to the receive that it ends; what both waited for is apart, and no two slices of a "
    "row overlap") {
  test::TempDir dir;
  auto writer = TraceJsonWriter::open(dir / "trace.json");
  REQUIRE(writer.ok());
  // Both receives begin with the step and so does the send of the first; the second is sent before the first has
  // arrived.
  writer->add(0, {{"layer", "layer mb0", 10'000, 20'000, 0, 0, 0, 1},
                  {"send", "send mb0", 9'000, 32'000, 0, 0, 1, 100},
                  {"layer", "layer mb1", 20'000, 28'000, 0, 1, 0, 2},
                  {"send", "send mb1", 28'000, 36'000, 0, 1, 2, 101}});
  writer->add(1, {{"recv", "recv mb0", 1'000, 30'000, 0, 0, 100, 3},
                  {"recv", "recv mb1", 1'500, 35'000, 0, 1, 101, 4},
                  {"head", "head mb0", 30'000, 33'000, 0, 0, 3, 0},
                  {"head", "head mb1", 35'000, 39'000, 0, 1, 4, 0},
                  {"recv", "of a step that is not traced", 40'000, 41'000, 1, 0, 99, 0}});
  REQUIRE(writer->close().ok());
  const auto all = events(dir / "trace.json");
  std::map<std::string, std::pair<double, double>> act, wait;
  for (const auto& e : of_phase(all, "X"))
    (e["cat"] == "wait" ? wait : act)[e["name"]] = {e["ts"], e["ts"].get<double>() + e["dur"].get<double>()};
  CHECK(act["send mb0"] == std::pair(20.0, 32.0));
  CHECK(wait["send mb0"] == std::pair(9.0, 20.0));
  CHECK(act["recv mb0"] == std::pair(20.0, 30.0));
  CHECK(wait["recv mb0"] == std::pair(1.0, 20.0));
  CHECK(act["recv mb1"] == std::pair(28.0, 35.0));
  CHECK(wait.size() == 3);
  check_picture(all);
  CHECK(of_phase(all, "s").size() == 6);  // layer to send, send to receive, receive to head, twice
}

TEST_CASE("odd names and times before the origin still give valid JSON") {
  test::TempDir dir;
  auto writer = TraceJsonWriter::open(dir / "trace.json", 5'000);
  REQUIRE(writer.ok());
  writer->name_worker(0, "a \"quoted\"\\ name\n\x01");
  writer->add(0, {{"row \xff\xfe", std::string("nul \0 tab \t", 11), 3'500, 3'400, 0}});
  REQUIRE(writer->close().ok());
  const auto slice = of_phase(events(dir / "trace.json"), "X").at(0);
  CHECK(slice["ts"].get<double>() == doctest::Approx(-1.5));
  CHECK(slice["dur"].get<double>() == 0.0);
}

TEST_CASE("a trace without spans is valid, a path that cannot be written is an error") {
  test::TempDir dir;
  auto writer = TraceJsonWriter::open(dir / "trace.json");
  REQUIRE(writer.ok());
  REQUIRE(writer->close().ok());
  CHECK(events(dir / "trace.json").empty());
  CHECK(TraceJsonWriter::open(dir.path()).status().code() == Code::io);
  auto full = TraceJsonWriter::open("/dev/full");
  REQUIRE(full.ok());
  CHECK_FALSE(full->close().ok());
}

TEST_CASE("a trace that does not fit on the disk leaves no file, and the one that was there") {
  test::TempDir dir;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto on_signal = std::signal(SIGXFSZ, SIG_IGN);
  auto one = TraceJsonWriter::open(dir / "trace.json");
  REQUIRE(one.ok());
  one->add(0, std::vector<TraceSpan>(1, TraceSpan{.row = "a"}));
  CHECK(one->close().ok());
  const auto whole = events(dir / "trace.json").size();
  const rlimit small{4096, before.rlim_max};
  auto writer = TraceJsonWriter::open(dir / "trace.json");
  REQUIRE(writer.ok());
  writer->add(0, std::vector<TraceSpan>(1000, TraceSpan{.row = "a"}));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const Status status = writer->close();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, on_signal);
  CHECK(status.code() == Code::io);
  CHECK(events(dir / "trace.json").size() == whole);
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), std::filesystem::directory_iterator()) == 1);
}
