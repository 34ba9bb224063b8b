// Options of `troupe train` that change what is observed or where it runs, never the numbers.
#include <nlohmann/json.hpp>

#include <set>

#include "tests/command/checks.h"

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
  CHECK(traced({"--trace", "--trace-steps", "100:3"}).empty());
  for (const char* wrong : {"3", "2:", ":2", "2:0", "-1:2", "a:b"})
    check_one_line(run(train(dir / "out", {"--trace-steps", wrong})), exit_usage, {"--trace-steps", "FIRST:COUNT", std::string("'") + wrong + "'"});
}

TEST_CASE("--pin with more compute threads than cores names both numbers") {
  TempDir dir;
  check_one_line(run(train(dir / "out", {"--pin", "--mesh", "dp=8", "--threads", "1024"})), exit_plan,
                 {"pinning 8 workers of 1024 compute threads needs 8192 cores", "this process may use"});
  check_success(run(train(dir / "out", {"--pin", "--steps", "2"})));
}
