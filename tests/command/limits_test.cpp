// What the command does with as little as there may be: memory that the system refuses, texts of a few windows.
#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::runtime;
using namespace troupe::test;

TEST_CASE(
    "memory that the system refuses ends the command with its reason in one line and a documented code, whatever the "
    "limit") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return skip("a sanitizer reserves terabytes of addresses");
#endif
  TempDir dir;
  int refused = 0;
  for (const int limit_kb : {60'000, 90'000, 120'000, 150'000, 200'000, 250'000, 300'000, 350'000, 400'000, 500'000,
                             600'000, 800'000, 1'000'000}) {
    CAPTURE(limit_kb);
    std::string command = "ulimit -v " + std::to_string(limit_kb) + "; exec";
    for (const auto& word : train(dir / "out", {"--steps", "2", "--mesh", "dp=2", "--checkpoint-every", "1",
                                                "--checkpoint-dir", dir / std::to_string(limit_kb)}))
      command += " '" + word + "'";
    const auto o = run({"/bin/sh", "-c", command}, 30);
    INFO("code ", o.code, ", signal ", o.signal, ", stderr:\n", o.err);
    CHECK(o.signal == 0);
    CHECK_FALSE(o.timed_out);
    CHECK(o.err.find("terminate called") == std::string::npos);
    if (o.code == 127) continue;  // its libraries have no room
    check_nothing_left(o);
    if (o.code == exit_ok) continue;
    ++refused;
    CHECK((o.code == exit_worker || o.code == exit_plan || o.code == exit_output || o.code == exit_data ||
           o.code == exit_checkpoint));
    CHECK(o.err.find("troupe: ") != std::string::npos);
  }
  CHECK(refused > 0);
}

TEST_CASE(
    "a text of three windows, one layer and a batch of one are enough to train on; where evaluation needs more, what "
    "to set is told") {
  TempDir dir;
  const auto text = write_text(dir / "text", std::string(60, 'a') + std::string(60, 'b'));
  const auto tiny = [&](const std::string& every) {
    return run(troupe_command({"train", tiny_config, "--data", text, "--out", dir / "out", "--steps", "1", "--quiet",
                               "--set", "model.layers=1", "--set", "schedule.batch=1", "--set", "schedule.microbatch=1",
                               "--set", "eval.every=" + every}));
  };
  check_success(tiny("0"));
  check_one_line(tiny("1"), exit_data, {"too short: 120 bytes", "need at least 650 bytes", "or eval.every=0"});
}
