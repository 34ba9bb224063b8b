// NU-1 and NU-2 as a user can check them: with the command, on real processes.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include <signal.h>
#include <unistd.h>

#include "tests/command/checks.h"

using namespace troupe::test;

namespace {

/// What must not depend on the mesh: the hash of all parameters, and every loss and norm to the last bit.
struct Numbers {
  std::string hash, lines;
  bool operator==(const Numbers&) const = default;
};

Numbers numbers(const std::vector<std::string>& arguments) {
  TempDir dir;
  auto all = arguments;
  all.insert(all.end(), {"--steps", "10"});
  const auto o = run(train(dir / "out", all));
  check_success(o);
  Numbers n;
  n.hash = nlohmann::json::parse(read(dir / "out/run.json"))["params_hash"];
  std::istringstream lines(read(dir / "out/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto object = nlohmann::json::parse(line);
    for (const char* key : {"step", "loss", "grad_norm", "lr", "eval_loss"})
      if (object.contains(key)) n.lines += std::string(key) + " " + object[key].dump() + " ";
    n.lines += "\n";
  }
  return n;
}

const Numbers& alone() {
  static const Numbers n = numbers({});
  return n;
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
    for (const auto& name : {a, b})   // a cable needs a moment after both its ends are up
      for (int i = 0; ok && i < 100 && shell("ip netns exec " + name + " cat /sys/class/net/" + name + "/operstate | grep -q up") != 0; ++i)
        ::usleep(20'000);
  }
  ~TwoHosts() {
    shell("ip netns del " + a);
    shell("ip netns del " + b);
  }
  const std::string a = "tra" + std::to_string(::getpid()), b = "trb" + std::to_string(::getpid());   // at most 15 letters
  bool ok = false;
};

}  // namespace

TEST_CASE("NU-2: ten steps give the same bits on every mesh, with one thread and two, over shared memory and tcp") {
  REQUIRE(alone().hash.size() == 32);
  CHECK(std::count(alone().lines.begin(), alone().lines.end(), '\n') == 12);   // 10 steps, 2 evaluations
  for (const std::vector<std::string>& how : std::vector<std::vector<std::string>>{
           {"--threads", "2"},
           {"--mesh", "dp=2,pp=2"},
           {"--mesh", "dp=2,pp=2", "--threads", "2"},
           {"--mesh", "dp=2/1,pp=2"},
           {"--mesh", "dp=2/1,pp=2", "--threads", "2"},
           {"--mesh", "dp=3"},
           {"--mesh", "dp=2,pp=2", "--ucx-tls", "tcp"},
           {"--mesh", "dp=2/1,pp=2", "--ucx-tls", "tcp", "--threads", "2"}}) {
    std::string all;
    for (const auto& word : how) all += word + " ";
    CAPTURE(all);
    const auto n = numbers(how);
    CHECK(n.hash == alone().hash);
    CHECK(n.lines == alone().lines);
  }
}

TEST_CASE("another seed gives other numbers") {
  CHECK(numbers({"--set", "run.seed=2"}).hash != alone().hash);
}

TEST_CASE("two workers in two network namespaces train bitwise like one") {
  const TwoHosts hosts;
  if (!hosts.ok) {
    MESSAGE("skipped: network namespaces are not allowed here (`ip netns add`, veth)");
    return;
  }
  const auto n = numbers({"--mesh", "dp=2", "--ucx-tls", "tcp", "--worker-prefix", "ip netns exec " + hosts.a, "--worker-prefix",
                          "ip netns exec " + hosts.b, "--net-device", hosts.a, "--net-device", hosts.b});
  CHECK(n.hash == alone().hash);
  CHECK(n.lines == alone().lines);
  CHECK(numbers({"--mesh", "dp=2"}) == n);
}

TEST_CASE("kill -9 of the command leaves no worker in another network namespace") {
  const TwoHosts hosts;
  if (!hosts.ok) return;
  TempDir dir;
  Run command(train(dir / "out", {"--steps", "10000000", "--mesh", "dp=2", "--ucx-tls", "tcp", "--worker-prefix", "ip netns exec " + hosts.a,
                                  "--worker-prefix", "ip netns exec " + hosts.b, "--net-device", hosts.a, "--net-device", hosts.b}));
  REQUIRE(command.wait_for_lines(dir / "out/metrics.jsonl", 3));
  REQUIRE(command.workers().size() == 2);
  command.send(SIGKILL);
  check_nothing_left(command.wait(2));
}
