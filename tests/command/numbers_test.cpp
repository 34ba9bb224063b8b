// NU-1 (runs) and NU-2 (topologies) as a user can check them: with the command, on real processes.
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include <signal.h>
#include <unistd.h>

#include "tests/command/checks.h"
#include "tests/skip.h"

using namespace troupe::test;

namespace {

/// What must not depend on the mesh: the hash of all parameters, and every loss and norm to the last bit.
struct Numbers {
  std::string hash, lines;
  bool operator==(const Numbers&) const = default;
};

/// The numbers of so many steps. They are numbers of something: dropout is on, the clip is active in every step.
Numbers numbers(const std::vector<std::string>& arguments, int steps = 20, double limit_s = 30,
                std::size_t* workers = nullptr) {
  TempDir dir;
  auto all = arguments;
  all.insert(all.end(), {"--steps", std::to_string(steps)});
  const auto o = run(train(dir / "out", all), limit_s);
  check_success(o);
  const auto summary = nlohmann::json::parse(read(dir / "out/run.json"));
  if (workers) *workers = summary["workers"].size();
  const auto& config = summary["config"];
  REQUIRE(config["model"]["dropout"] > 0.0);
  REQUIRE(config["eval"]["every"] == 5);
  const double clip = config["optimizer"]["clip"];
  REQUIRE(clip > 0);
  Numbers n;
  int evaluations = 0;
  n.hash = summary["params_hash"];
  std::istringstream lines(read(dir / "out/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    const bool step = object.contains("loss");
    // One sequence: the line of an evaluation comes before that of the next step, whenever it is done.
    evaluations += !step;
    if (step) CHECK(object["grad_norm"] > clip);
    for (const char* key : {"step", "loss", "grad_norm", "lr", "eval_loss"})
      if (object.contains(key)) n.lines += std::string(key) + " " + object[key].dump() + " ";
    n.lines += "\n";
  }
  CHECK(n.hash.size() == 32);
  CHECK(std::count(n.lines.begin(), n.lines.end(), '\n') == steps + steps / 5);
  CHECK(evaluations == steps / 5);
  return n;
}

const std::string untied = "model.tied=false", tied = "model.tied=true";

/// What one worker with one thread makes of it.
const Numbers& alone(const std::string& embeddings) {
  static std::map<std::string, Numbers> known;
  const auto at = known.find(embeddings);
  return at != known.end() ? at->second : known[embeddings] = numbers({"--set", embeddings});
}

/// Both kinds of embeddings, each way of running them: the same bits as alone.
void check_same(const std::vector<std::vector<std::string>>& ways) {
  for (const auto& embeddings : {untied, tied})
    for (auto how : ways) {
      how.insert(how.end(), {"--set", embeddings});
      std::string all;
      for (const auto& word : how) all += word + " ";
      CAPTURE(all);
      const auto n = numbers(how);
      CHECK(n.hash == alone(embeddings).hash);
      CHECK(n.lines == alone(embeddings).lines);
    }
}

int shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()); }

/// Two network namespaces joined by a cable; gone with the object.
class TwoHosts {
 public:
  TwoHosts() {
    ok = shell("ip netns add " + a) == 0 && shell("ip netns add " + b) == 0 &&
         shell("ip link add " + a + " netns " + a + " type veth peer name " + b + " netns " + b) == 0;
    int host = 1;
    for (const auto& name : {a, b})
      ok = ok && shell("ip -n " + name + " addr add 10.77.7." + std::to_string(host++) + "/24 dev " + name) == 0 &&
           shell("ip -n " + name + " link set " + name + " up") == 0 && shell("ip -n " + name + " link set lo up") == 0;
    for (const auto& name : {a, b})  // a cable needs a moment after both its ends are up
      for (int i = 0; ok && i < 100 &&
                      shell("ip netns exec " + name + " cat /sys/class/net/" + name + "/operstate | grep -q up") != 0;
           ++i)
        ::usleep(20'000);
  }
  ~TwoHosts() {
    shell("ip netns del " + a);
    shell("ip netns del " + b);
  }
  // at most 15 letters
  const std::string a = "tra" + std::to_string(::getpid()), b = "trb" + std::to_string(::getpid());
  bool ok = false;
  static constexpr const char* why_not = "network namespaces are not allowed here (`ip netns add`, veth)";
};

}  // namespace

TEST_CASE("NU-1: twenty steps give the same bits again, and with two threads") { check_same({{}, {"--threads", "2"}}); }

TEST_CASE("NU-2: twenty steps give the same bits on every mesh") {
  std::vector<std::vector<std::string>> ways;
  for (const char* mesh : {"dp=2", "dp=3", "dp=4", "pp=2", "pp=3", "pp=4", "dp=2,pp=2", "dp=2/1,pp=2"})
    ways.push_back({"--mesh", mesh});
  check_same(ways);
}

TEST_CASE("NU-2: twenty steps give the same bits on a mesh of workers with two threads each") {
  check_same({{"--mesh", "dp=3", "--threads", "2"},
              {"--mesh", "pp=3", "--threads", "2"},
              {"--mesh", "dp=2,pp=2", "--threads", "2"},
              {"--mesh", "dp=2/1,pp=2", "--threads", "2"}});
}

TEST_CASE("NU-2: twenty steps give the same bits over tcp") {
  check_same({{"--mesh", "dp=4", "--ucx-tls", "tcp"},
              {"--mesh", "pp=4", "--ucx-tls", "tcp"},
              {"--mesh", "dp=2/1,pp=2", "--ucx-tls", "tcp", "--threads", "2"}});
}

TEST_CASE(
    "NU-2 under tensor parallelism: twenty steps on real processes give the same bits for one tp, whatever dp and pp "
    "are") {
  for (const auto& embeddings : {untied, tied}) {
    const auto tp2 = numbers({"--mesh", "tp=2", "--set", embeddings});
    // some sums have another order: NU-3 (model axes) says how far that may go (tests/apps)
    CHECK(tp2.hash != alone(embeddings).hash);
    for (std::vector<std::string> how : {std::vector<std::string>{"--mesh", "dp=2,tp=2"},
                                         {"--mesh", "tp=2,pp=2", "--threads", "2"},
                                         {"--mesh", "dp=2,tp=2,pp=2", "--ucx-tls", "tcp"}}) {
      CAPTURE(how[1]);
      how.insert(how.end(), {"--set", embeddings});
      CHECK(numbers(how) == tp2);
    }
  }
}

TEST_CASE("NU-2: ZeRO 1 changes no bit on real processes") {
  check_same({{"--mesh", "dp=2", "--zero", "1"},
              {"--mesh", "dp=3", "--zero", "1", "--threads", "2", "--ucx-tls", "tcp"},
              {"--mesh", "dp=2/1,pp=2", "--zero", "1"}});
  CHECK(numbers({"--mesh", "dp=2,tp=2", "--zero", "1", "--set", untied}) ==
        numbers({"--mesh", "tp=2", "--set", untied}));
}

TEST_CASE("NU-2: pipeline schedules change no bit on real processes") {
  check_same({{"--mesh", "pp=2", "--set", "schedule.pipeline=interleaved:2"},
              {"--mesh", "dp=2,pp=2", "--set", "schedule.pipeline=zero-bubble", "--threads", "2"}});
}

TEST_CASE("NU-2: ZeRO 2 and 3 change no bit on real processes") {
  check_same({{"--mesh", "dp=3", "--zero", "2", "--ucx-tls", "tcp"},
              {"--mesh", "dp=2,pp=2", "--zero", "3", "--threads", "2"}});
}

TEST_CASE(
    "NU-2: twenty steps on 32 worker processes, eight stages of four replicas, give the same bits as one worker") {
  const std::vector<std::string> model = {"--set", "model.layers=8", "--set", "schedule.batch=32"};
  auto wide = model;
  wide.insert(wide.end(), {"--mesh", "dp=4,pp=8"});
  std::size_t workers = 0;
  CHECK(numbers(wide, 20, 120, &workers) == numbers(model));
  CHECK(workers == 32);
}

TEST_CASE("another seed gives other numbers, and so do tied embeddings") {
  CHECK(numbers({"--set", "run.seed=2"}).hash != alone(untied).hash);
  CHECK(alone(tied).hash != alone(untied).hash);
}

TEST_CASE("two workers in two network namespaces train bitwise like one") {
  const TwoHosts hosts;
  if (!hosts.ok) return skip(TwoHosts::why_not);
  const auto n = numbers({"--mesh", "dp=2", "--ucx-tls", "tcp", "--worker-prefix", "ip netns exec " + hosts.a,
                          "--worker-prefix", "ip netns exec " + hosts.b, "--net-device", hosts.a, "--net-device",
                          hosts.b});
  CHECK(n == alone(untied));
}

TEST_CASE("kill -9 of the command leaves no worker in another network namespace") {
  const TwoHosts hosts;
  if (!hosts.ok) return skip(TwoHosts::why_not);
  TempDir dir;
  Run command(train(dir / "out", {"--steps", "10000000", "--mesh", "dp=2", "--ucx-tls", "tcp", "--worker-prefix",
                                  "ip netns exec " + hosts.a, "--worker-prefix", "ip netns exec " + hosts.b,
                                  "--net-device", hosts.a, "--net-device", hosts.b}));
  REQUIRE(command.wait_for_lines(dir / "out/metrics.jsonl", 3));
  REQUIRE(command.workers().size() == 2);
  command.send(SIGKILL);
  check_nothing_left(command.wait(2));
}
