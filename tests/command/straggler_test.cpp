// A worker that is merely slow: it is named, and goes on.
#include "tests/command/checks.h"
#include "tests/command/summary.h"

using namespace troupe::runtime;
using namespace troupe::test;

TEST_CASE("a worker that computes three times as long as the others is named, not killed, and no bit changes") {
  TempDir dir;
  const auto slowed = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.begin(), {"--mesh", "dp=2", "--steps", "400", "--set", "eval.every=0", "--quiet"});
    const Outcome o = run(train(dir / out, more), 120);
    CHECK_MESSAGE(o.code == exit_ok, o.err);
    CHECK(o.left.empty());
    return o.err;
  };
  slowed("calm", {});
  const std::string err = slowed("slow", {"--recovery", "slots", "--inject", "SLOW@forward#60/worker1"});
  CHECK_MESSAGE(err.find("worker 1 takes ") != std::string::npos, err);
  CHECK_MESSAGE(err.find("worker 0 takes ") == std::string::npos, err);
  const std::string text = read(dir / "slow" + "/incidents.jsonl");
  const auto line = nlohmann::json::parse(text.substr(0, text.find('\n')), nullptr, false);
  REQUIRE_FALSE(line.is_discarded());
  CHECK(line.at("straggler") == 1);
  CHECK(line.at("times") >= 2);
  CHECK(line.at("times") < 9);
  CHECK(text.find("\"cause\"") == std::string::npos);
  CHECK(summary(dir / "slow").at("params_hash") == summary(dir / "calm").at("params_hash"));
  CHECK(summary(dir / "slow").count("incidents") == 0);
}
