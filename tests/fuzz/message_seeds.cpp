#include "tests/fuzz/message_seeds.h"

#include "runtime/agents/agent_messages.h"

namespace troupe::fuzz {

namespace {

using namespace troupe::runtime;

constexpr JobGeneration of{1ull << 60, 7};

Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (const int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}
Bytes behind(int first, const Bytes& rest) {
  Bytes out = bytes({first});
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}
SharedBytes shared(const ToWorker& message) { return std::make_shared<const Bytes>(encode(message)); }

std::vector<ToWorker> to_worker() {
  Hello hello;
  hello.rank = 1;
  hello.threads = 2;
  hello.tls = "tcp,self";
  hello.net_device = "eth0";
  hello.trace = {7, 8};
  hello.paced = 0.25;
  hello.cores = {5, 0, 63};
  hello.throttle = {{-1, -1, 50'000, 1ll << 40}};
  hello.save = {"runs/a/checkpoints", 9};
  hello.injections = {"SIGKILL@update:mid#3/worker1"};
  hello.memory = "/proc/1/fd/9";
  Connect connect;
  connect.addresses = {{0, "abc"}, {1, "defg"}};
  connect.adopt = 3;
  connect.restore = "runs/a/step-00000005.g1";
  connect.home = {{}, {"/proc/1/fd/9", ""}, {0, -1}, {0, -1}, {0, 1}};
  return {PlanBytes{Bytes(9)},
          hello,
          Enter{},
          connect,
          Abort{},
          BeginRun{3, 5, {40, -900}},
          Go{1, 9},
          CommitStep{8, 5, {{0.1, 3e-4, 9, true}}, {41, -7}},
          Feed{"prompt", 2, 11, 3, Bytes(16)},
          ExplainAll{},
          Stop{}};
}

std::vector<FromWorker> from_worker() {
  const Report report{Report::Kind::digest, "w|[0:4, 1:2]", 40, 7, {1.5, -0.0, 1e300}, Bytes(7)};
  return {WorkerAddress{"an address"},
          Quiesced{std::vector<std::int64_t>{1, 2}},
          Quiesced{},
          Ready{1, 0.5, 2},
          Progress{9, true, "layer0.fwd", 7, {1, 0}},
          Closed{1, 77, {report, report}, 1, {{1, 2}, {3}, {{0, 4}}}},
          EarlyReport{3, report},
          FeedTaken{"prompt", 1, 2, 3},
          WorkerFailed{"a", Status(Code::io, "b")},
          Explained{"text"},
          Spans{{{"0/a", "a mb3", 1, 2, 5, 3, 7, 9}}, 2},
          Stopped{1, 2, 3, 4, 5, {"a"}}};
}

std::vector<ToAgent> to_agent() {
  return {Welcome{2000},
          Refused{"why"},
          StartPlace{PlaceId{1}, {"ip", "netns"}, true},
          TellPlan{of, shared(PlanBytes{Bytes(9)}), {{PlaceId{5}, {}}}, true},
          RestartPlace{of, PlaceId{2}, true},
          ToPlaces{of, {PlaceId{0}, PlaceId{4}}, shared(Enter{})},
          KillPlace{PlaceId{3}},
          DismissPlace{PlaceId{4}},
          SettledPlaces{{PlaceId{1}}},
          Finish{500, 30'000},
          Beat{}};
}

std::vector<FromAgent> from_agent() {
  const Status why(Code::io, "why");
  return {Joins{"m", 2, "p", "eth0", "host", {}, 1ll << 40},
          PlaceStarted{PlaceId{1}, 12, "name"},
          MemoryRenewed{PlaceId{1}, "other"},
          FromPlace{PlaceId{2}, {of, Bytes(9)}},
          Garbled{PlaceId{2}, why},
          PlaceLogged{PlaceId{3}, "line"},
          PlaceEnded{PlaceId{3}, {ProcessEnd::Kind::worn, why, std::vector<std::int64_t>{1, 2}}},
          AgentFailed{why},
          Finished{why},
          Beat{}};
}

}  // namespace

std::vector<Seed> message_seeds() {
  std::vector<Seed> seeds;
  const auto add = [&](const std::string& target, const std::string& what, Bytes input) {
    seeds.push_back({target, what + "-" + std::to_string(seeds.size()), std::move(input)});
  };
  for (const ToWorker& m : to_worker()) add("to_worker", "message", behind(0, encode(m)));
  for (const FromWorker& m : from_worker()) add("from_worker", "message", encode(m));
  for (const ToAgent& m : to_agent()) add("agent_messages", "to", behind(0, encode(m)));
  for (const FromAgent& m : from_agent()) add("agent_messages", "from", behind(1, encode(m)));
  Bytes frames;  // two frames, in one piece: sizes 3 and 0
  for (const Bytes& part : {bytes({3, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3}),
                            bytes({0, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0})})
    frames.insert(frames.end(), part.begin(), part.end());
  add("frames", "control", behind(0, behind(9, frames)));
  add("frames", "control-too-large", behind(0, behind(9, bytes({1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}))));
  add("frames", "sealed", behind(1, behind(9, Bytes(24 + 4 + 17 + 8, std::byte{17}))));
  add("frames", "sealed-changed", bytes({2, 1, 3, 1, 2, 3, 1, 1, 0, 30, 1, 5}));
  add("frames", "sealed-moved", bytes({2, 2, 1, 7, 1, 8, 1, 9, 1, 0, 2, 1}));
  add("handshake", "to-accepts", behind(0, behind(63, Bytes(64, std::byte{9}))));
  add("handshake", "to-joins", behind(1, behind(95, Bytes(96, std::byte{9}))));
  add("handshake", "between", bytes({2, 0, 0, 0, 0}));
  add("handshake", "between-changed", bytes({2, 1, 31, 128, 0, 0, 0}));
  add("handshake", "between-proof-changed", bytes({2, 0, 0, 1, 5, 1}));
  return seeds;
}

}  // namespace troupe::fuzz
