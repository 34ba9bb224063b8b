// The examples do what their first lines say.
#include <algorithm>
#include <fstream>
#include <string>

#include "tests/command/checks.h"

using namespace troupe::test;

namespace {

double last_loss(const Outcome& o) {
  const auto at = o.out.rfind(": loss ");
  REQUIRE_MESSAGE(at != std::string::npos, o.out);
  return std::stod(o.out.substr(at + 7));
}

std::string hash(const Outcome& o) {
  const auto at = o.out.find("params_hash ");
  REQUIRE_MESSAGE(at != std::string::npos, o.out);
  return o.out.substr(at + 12, 32);
}

}  // namespace

TEST_CASE("example two_actors: the consumer sees the whole of what two halves made") {
  const auto o = run({EXAMPLE_TWO_ACTORS});
  check_success(o);
  // Rows 0..3 of two columns hold 100 * step + row: 8 * 100 * step + 12, told once though two places hear it.
  CHECK(o.out == "step 0: sum = 12\nstep 1: sum = 812\nstep 2: sum = 1612\n");
}

TEST_CASE("example mlp_pipeline: learns, and gives the same numbers on any mesh") {
  const auto pipeline = run({EXAMPLE_MLP_PIPELINE}), one = run({EXAMPLE_MLP_PIPELINE, "1"}),
             four = run({EXAMPLE_MLP_PIPELINE, "2,2"});
  for (const auto* o : {&pipeline, &one, &four}) {
    check_success(*o);
    CHECK(o->out == pipeline.out);
    CHECK(hash(*o) == hash(pipeline));
  }
  CHECK(last_loss(pipeline) < 0.5 * std::stod(pipeline.out.substr(pipeline.out.find(": loss ") + 7)));
}

TEST_CASE("example custom_op: its gradients find the factor, with the same bits on any dp and ZeRO stage") {
  check_success(run({EXAMPLE_CUSTOM_OP, "check"}));
  const auto o = run({EXAMPLE_CUSTOM_OP});
  check_success(o);
  CHECK(last_loss(o) < 0.01 * std::stod(o.out.substr(o.out.find(": loss ") + 7)));
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"1"}, {"3"}, {"2", "1"}, {"4", "2"}, {"2", "3"}}) {
    CAPTURE(how[0]);
    const auto other = run({EXAMPLE_CUSTOM_OP, how[0], how.size() > 1 ? how[1] : "0"});
    check_success(other);
    CHECK(other.out == o.out);
  }
}

TEST_CASE(
    "example actor_learner: a step learns of what version step - lag has played; processes and simulations agree") {
  for (const int lag : {0, 1, 4}) {
    CAPTURE(lag);
    const auto o = run({EXAMPLE_ACTOR_LEARNER, std::to_string(lag)});
    check_success(o);
    std::string told;  // the first steps have fewer versions behind them
    for (int k = 0; k < lag; ++k) told += "lag " + std::to_string(k) + ": 1 steps\n";
    told += "lag " + std::to_string(lag) + ": " + std::to_string(400 - lag) + " steps\nmean reward ";
    REQUIRE_MESSAGE(o.out.starts_with(told), o.out);
    // The best player gets 0.9, one that draws its moves (0.9 + 3 * 0.3) / 4.
    CHECK(std::stod(o.out.substr(told.size())) > 0.9 * 0.9);
    for (const char* seed : {"1", "2", "3"}) {
      const auto simulated = run({EXAMPLE_ACTOR_LEARNER, std::to_string(lag), seed});
      check_success(simulated);
      CHECK(simulated.out == o.out);
    }
  }
}

TEST_CASE("example graph_network: learns what lies four edges away, with the same numbers on any pipeline") {
  check_success(run({EXAMPLE_GRAPH_NETWORK, "check"}));
  const auto o = run({EXAMPLE_GRAPH_NETWORK});
  check_success(o);
  CHECK(last_loss(o) < 1e-3 * std::stod(o.out.substr(o.out.find(": loss ") + 7)));
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"1"}, {"2,2,1,1"}, {"1,3"}, {"1,1,1,1", "1"}, {"2,1", "2"}}) {
    CAPTURE(how[0]);
    std::vector<std::string> command = {EXAMPLE_GRAPH_NETWORK};
    command.insert(command.end(), how.begin(), how.end());
    const auto other = run(command);
    check_success(other);
    CHECK(other.out == o.out);
  }
}

TEST_CASE("example word_count: the counts of sort and uniq, on any number of workers and in a simulation") {
  const TempDir dir;
  const std::string path = dir / "text";
  {
    std::ofstream text(path);  // blanks of all kinds; parts of a file of blanks; words that lie across two parts
    for (int i = 0; i < 450000; ++i)
      text << "w" << i % 1013 * 7919 % 1013 << (i % 9 == 0 ? "\r\n" : i % 5 == 0 ? "\t " : " ");
    text << std::string(600000, ' ') << std::string(200, 'x');
  }
  const auto counted = run(
      {"bash", "-c",
       "LC_ALL=C; export LC_ALL; tr -s '\\t\\r\\n ' '\\n' <\"$0\" | sort | uniq -c | awk '{print $1\" \"$2}'", path});
  check_success(counted);
  CHECK(std::count(counted.out.begin(), counted.out.end(), '\n') == 1014);
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{}, {"1"}, {"2"}, {"4"}, {"1", "1"}, {"3", "2"}}) {
    std::vector<std::string> command = {EXAMPLE_WORD_COUNT, path};
    command.insert(command.end(), how.begin(), how.end());
    const auto o = run(command);
    check_success(o);
    CHECK(o.out == counted.out);
  }
  check_failure(run({EXAMPLE_WORD_COUNT, dir / "none"}), 4, {"cannot read the file"});
}

TEST_CASE(
    "the program in README.md is a program: it compiles, trains as a pipeline, prints each step's loss, ends well") {
  const auto o = run({README_EXAMPLE});
  check_success(o);
  CHECK(std::count(o.out.begin(), o.out.end(), '\n') == 200);
  const std::string begin = "step 0: loss ";
  REQUIRE_MESSAGE(o.out.starts_with(begin), o.out);
  CHECK(o.out.find("\nstep 199: loss ") != std::string::npos);
  const double first = std::stod(o.out.substr(begin.size()));
  CHECK(first < 40);  // a mean over the 32 samples of a step: 16 squares of about 0.5 each; their sum is above 100
  CHECK(last_loss(o) < first);
}
