// Files of scenarios: what they may say, and what is said of one that is wrong.
#include <doctest/doctest.h>

#include "tests/scenarios/scenario.h"

using namespace troupe;
using namespace troupe::scenarios;

namespace {

std::string error_of(const std::string& text) {
  const auto scenario = parse_scenario(text, "tests/scenarios/any.toml");
  return scenario.ok() ? "none" : scenario.status().message();
}

}  // namespace

TEST_CASE("a scenario has the shape, the job and the faults that its file names, and defaults for the rest") {
  const auto s = parse_scenario(R"(
    dp = [2, 1]
    tp = 2
    changes = [[1], [1, 1]]
    replace = false
    [checkpoints]
    every = 3
    [faults]
    most = 4
    kill = 5
    disk_stop = 1
    change = 1
  )",
                                "tests/scenarios/any.toml");
  REQUIRE_MESSAGE(s.ok(), s.status().message());
  CHECK(s->name == "any");
  CHECK(s->dp == runtime::StageWidths{2, 1});
  CHECK(s->ranks() == 6);
  CHECK(s->places() == 6);
  CHECK(s->changes.size() == 2);
  CHECK_FALSE(s->replace);
  CHECK(s->checkpoint_every == 3);
  CHECK(s->faults_most == 4);
  CHECK(s->weight(FaultKind::kill) == 5);
  CHECK(s->weight(FaultKind::disk_stop) == 1);
  CHECK(s->weight(FaultKind::hang) == 0);
  CHECK(s->steps == 8);
  CHECK(s->zero == 0);
}

TEST_CASE("an unknown key and a bad value of a scenario are errors that name file, line, key and what is expected") {
  const std::string good = "dp = [2]\n[faults]\nkill = 1\n";
  CHECK(error_of(good) == "none");
  CHECK(error_of("dp = [2]\nstep = 3\n[faults]\nkill = 1\n")
            .find("tests/scenarios/any.toml:2: unknown key 'step': expected one of dp, tp") == 0);
  CHECK(error_of(good + "kil = 1\n").find("any.toml:4: unknown key 'faults.kil': expected one of most, kill") !=
        std::string::npos);
  CHECK(error_of(good + "hang = -1\n") ==
        "tests/scenarios/any.toml:4: key 'faults.hang': expected a whole number from 0 to 1000");
  CHECK(error_of("zero = 4\n" + good) == "tests/scenarios/any.toml:1: key 'zero': expected a whole number from 0 to 3");
  CHECK(error_of("replace = 1\n" + good) == "tests/scenarios/any.toml:1: key 'replace': expected true or false");
  CHECK(error_of("pipeline = \"2f2b\"\n" + good).find("key 'pipeline': expected ") != std::string::npos);
  CHECK(error_of("changes = [1]\n" + good).find("key 'changes': expected a list of shapes") != std::string::npos);
  CHECK(error_of("model = 8\n" + good).find("key 'model': expected a section, written [model]") != std::string::npos);
  CHECK(error_of("dp = [\n").find("tests/scenarios/any.toml:") == 0);
}

TEST_CASE("a scenario that asks for what its job cannot do is an error that names the key") {
  const auto names = [](const std::string& text, const std::string& part) {
    CAPTURE(text);
    CHECK(error_of(text).find(part) != std::string::npos);
  };
  names("[faults]\nkill = 1\n", "key 'dp': expected the dp width of each stage: the key is missing");
  names("dp = [4]\nspares = 3\n[faults]\nkill = 1\n", "key 'dp': expected at most 6 places");
  names("dp = [2]\n", "key 'faults': expected a kind of fault with a weight above 0");
  names("dp = [2]\n[faults]\nchange = 1\n", "key 'faults.change': expected 0, or shapes in 'changes'");
  names("dp = [2]\nchanges = [[3]]\n[faults]\nkill = 1\n", "key 'changes': expected shapes for at most 2 places");
  names("dp = [2]\n[faults]\nmachine = 1\n", "key 'faults.machine': expected 0, or a section [checkpoints]");
  names("dp = [2]\n[faults]\ninterrupt = 1\n", "key 'faults.interrupt': expected 0, or a section [checkpoints]");
  names("dp = [1]\n[faults]\ncut = 1\n", "key 'faults.cut': expected 0, or two places");
}

TEST_CASE("all scenarios of this folder are good") {
  const auto all = read_scenarios(TROUPE_SOURCE_DIR "/tests/scenarios");
  REQUIRE_MESSAGE(all.ok(), all.status().message());
  CHECK(all->size() >= 10);
  CHECK(read_scenarios(TROUPE_SOURCE_DIR "/tests/none").status().message().find("cannot read the folder") == 0);
}

TEST_CASE("a scenario of machines names their places and faults, and all of its folder are good") {
  const auto all = read_scenarios(TROUPE_SOURCE_DIR "/tests/scenarios/machines");
  REQUIRE_MESSAGE(all.ok(), all.status().message());
  CHECK(all->size() >= 8);
  const std::string faults = "[machine_faults]\ncut_off = 1\n";
  const auto s = parse_scenario("dp = [2]\nmachines = [1, 1, 2]\nnodes = 2\n" + faults, "any.toml");
  REQUIRE_MESSAGE(s.ok(), s.status().message());
  CHECK(s->machines == std::vector<std::int32_t>{1, 1, 2});
  CHECK(s->nodes == 2);
  CHECK(s->machine_weights[static_cast<std::size_t>(runtime::SimMachineFault::Kind::cut_off)] == 1);
  CHECK(error_of("dp = [3]\nmachines = [1, 1, 2]\nnodes = 2\n" + faults).find("expected 3 places on 2 machines") !=
        std::string::npos);
  CHECK(error_of("dp = [2]\nmachines = [2]\n").find("key 'machine_faults': expected a kind of fault") !=
        std::string::npos);
  CHECK(error_of("dp = [2]\nmachines = [0]\n" + faults).find("expected a list of whole numbers from 1 to 6") !=
        std::string::npos);
}
