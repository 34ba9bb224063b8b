#include "runtime/agents/agent_messages.h"

#include <doctest/doctest.h>

#include <limits>

#include "devices/base/philox.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

using Bytes = std::vector<std::byte>;

SharedBytes shared(const ToWorker& message) { return std::make_shared<const Bytes>(encode(message)); }

template <class Message>
Message to_agent(const Message& message) {
  const auto back = decode_to_agent(encode(ToAgent(message)));
  REQUIRE_MESSAGE(back.ok(), back.status().message());
  REQUIRE(std::holds_alternative<Message>(*back));
  return std::get<Message>(*back);
}
template <class Message>
Message from_agent(const Message& message) {
  const auto back = decode_from_agent(encode(FromAgent(message)));
  REQUIRE_MESSAGE(back.ok(), back.status().message());
  REQUIRE(std::holds_alternative<Message>(*back));
  return std::get<Message>(*back);
}

constexpr JobGeneration of{1ull << 60, 7};

TellPlan a_plan() {
  Hello hello;
  hello.rank = 3;
  hello.injections = {"SIGKILL@update/worker3"};
  return {of, shared(PlanBytes{Bytes(100, std::byte{9})}), {{PlaceId{5}, hello}, {PlaceId{6}, {}}}, true, "run"};
}

/// One of each kind.
std::vector<Bytes> all_to_agent() {
  std::vector<Bytes> out;
  for (const ToAgent& m :
       std::vector<ToAgent>{Welcome{2000}, Refused{"why"}, StartPlace{PlaceId{1}, {"ip", "netns"}, true}, a_plan(),
                            RestartPlace{of, PlaceId{2}, true}, ToPlaces{of, {PlaceId{0}, PlaceId{4}}, shared(Enter{})},
                            KillPlace{PlaceId{3}}, DismissPlace{PlaceId{4}}, SettledPlaces{{PlaceId{1}}},
                            Finish{500, 30'000}, Beat{}, Answer{"runs"}, Remember{6, std::make_shared<const Bytes>(3)}})
    out.push_back(encode(m));
  return out;
}
std::vector<Bytes> all_from_agent() {
  const Status why(Code::io, "why");
  std::vector<Bytes> out;
  for (const FromAgent& m : std::vector<FromAgent>{
           Joins{"m", 2, "p"}, PlaceStarted{PlaceId{1}, 12, "name"}, MemoryRenewed{PlaceId{1}, "other"},
           FromPlace{PlaceId{2}, {of, Bytes(9)}}, Garbled{PlaceId{2}, why}, PlaceLogged{PlaceId{3}, "line"},
           PlaceEnded{PlaceId{3}, {ProcessEnd::Kind::worn, why, std::vector<std::int64_t>{1, 2}}}, AgentFailed{why},
           Finished{why}, Beat{}, Asks{"ps"}})
    out.push_back(encode(m));
  return out;
}

}  // namespace

TEST_CASE("every order of a job survives the wire") {
  CHECK(to_agent(Welcome{2000}).budget_ms == 2000);
  for (const bool for_now : {false, true}) {
    CHECK(to_agent(Refused{"another executable", for_now}).why == "another executable");
    CHECK(to_agent(Refused{"another executable", for_now}).for_now == for_now);
  }
  CHECK(to_agent(Welcome{8, {PlaceId{2}, PlaceId{0}}}).keeps == std::vector<PlaceId>{PlaceId{2}, PlaceId{0}});
  const auto start = to_agent(StartPlace{PlaceId{3}, {"ip", "netns", "exec", "b"}, true});
  CHECK(start.place == PlaceId{3});
  CHECK(start.prefix == std::vector<std::string>{"ip", "netns", "exec", "b"});
  CHECK(start.keeps_memory);
  CHECK_FALSE(to_agent(StartPlace{}).keeps_memory);
  const TellPlan sent = a_plan(), told = to_agent(sent);
  CHECK(told.of == of);
  CHECK(*told.plan == *sent.plan);
  REQUIRE(told.hellos.size() == 2);
  CHECK(told.hellos[0].first == PlaceId{5});
  CHECK(told.hellos[0].second.rank == 3);
  CHECK(told.hellos[0].second.injections == sent.hellos[0].second.injections);
  CHECK(told.hellos[1].first == PlaceId{6});
  CHECK(told.renews_memory);
  const auto again = to_agent(RestartPlace{of, PlaceId{2}, true});
  CHECK(again.of == of);
  CHECK(again.place == PlaceId{2});
  CHECK(again.afresh);
  const auto to = to_agent(ToPlaces{of, {PlaceId{0}, PlaceId{9}}, shared(Abort{})});
  CHECK(to.of == of);
  CHECK(to.places == std::vector<PlaceId>{PlaceId{0}, PlaceId{9}});
  CHECK(*to.message == encode(ToWorker(Abort{})));
  CHECK(to_agent(KillPlace{PlaceId{8}}).place == PlaceId{8});
  CHECK(to_agent(DismissPlace{PlaceId{7}}).place == PlaceId{7});
  CHECK(to_agent(SettledPlaces{{PlaceId{1}, PlaceId{2}}}).used == std::vector<PlaceId>{PlaceId{1}, PlaceId{2}});
  const auto finish = to_agent(Finish{500, 30'000});
  CHECK(finish.grace_ms == 500);
  CHECK(finish.killed_ms == 30'000);
  to_agent(Beat{});
  CHECK(to_agent(Answer{"runs"}).text == "runs");
  const auto remember = to_agent(Remember{6, std::make_shared<const Bytes>(3, std::byte{1})});
  CHECK(remember.version == 6);
  CHECK(*remember.state == Bytes(3, std::byte{1}));
}

TEST_CASE("every report of an agent survives the wire") {
  const SharedBytes state = std::make_shared<const Bytes>(7, std::byte{5});
  const auto joins =
      from_agent(Joins{"node1",
                       4,
                       "0a1b",
                       "eth0",
                       "host",
                       {{77, 5},
                        {{PlaceId{1}, std::vector<std::int64_t>{4, 5}, 2}, {PlaceId{3}, std::nullopt, 0}},
                        "digest",
                        {2, 1},
                        {{5, state}}},
                       1ll << 40});
  CHECK(joins.machine == "node1");
  CHECK(joins.places == 4);
  CHECK(joins.program == "0a1b");
  CHECK(joins.net_device == "eth0");
  CHECK(joins.host == "host");
  CHECK(joins.memory_bytes == 1ll << 40);
  CHECK(joins.kept.of == JobGeneration{77, 5});
  CHECK(joins.kept.places.at(0).rank == 2);
  CHECK(joins.kept.plan == "digest");
  CHECK(joins.kept.widths == StageWidths{2, 1});
  REQUIRE(joins.kept.states.size() == 1);
  CHECK(joins.kept.states[0].first == 5);
  CHECK(*joins.kept.states[0].second == *state);
  REQUIRE(joins.kept.places.size() == 2);
  CHECK(joins.kept.places[0].place == PlaceId{1});
  CHECK(joins.kept.places[0].left == std::vector<std::int64_t>{4, 5});
  CHECK(joins.kept.places[1].place == PlaceId{3});
  CHECK_FALSE(joins.kept.places[1].left.has_value());
  const auto started = from_agent(PlaceStarted{PlaceId{2}, 1ll << 40, "/proc/1/fd/9"});
  CHECK(started.place == PlaceId{2});
  CHECK(started.pid == 1ll << 40);
  CHECK(started.memory == "/proc/1/fd/9");
  const auto renewed = from_agent(MemoryRenewed{PlaceId{2}, "/proc/1/fd/11"});
  CHECK(renewed.place == PlaceId{2});
  CHECK(renewed.memory == "/proc/1/fd/11");
  const auto said = from_agent(FromPlace{PlaceId{1}, {of, Bytes(70, std::byte{3})}});
  CHECK(said.place == PlaceId{1});
  CHECK(said.frame == ControlFrame{of, Bytes(70, std::byte{3})});
  const auto garbled = from_agent(Garbled{PlaceId{1}, Status(Code::invalid, "too large")});
  CHECK(garbled.why.code() == Code::invalid);
  CHECK(garbled.why.message() == "too large");
  const std::string line("a line with \0 in it, and \xff", 27);
  CHECK(from_agent(PlaceLogged{PlaceId{1}, line}).line == line);
  using Kind = ProcessEnd::Kind;
  for (const Kind kind : {Kind::ordinary, Kind::suspect, Kind::refused, Kind::worn, Kind::lost}) {
    const auto ended = from_agent(PlaceEnded{PlaceId{4}, {kind, Status(Code::unavailable, "killed"), {}}});
    CHECK(ended.place == PlaceId{4});
    CHECK(ended.end.kind == kind);
    CHECK(ended.end.how.message() == "killed");
    CHECK_FALSE(ended.end.left);
  }
  const WholeVersions none = std::vector<std::int64_t>(), some = std::vector<std::int64_t>{3, 1ll << 40};
  CHECK(from_agent(PlaceEnded{PlaceId{4}, {Kind::ordinary, {}, none}}).end.left == none);
  CHECK(from_agent(PlaceEnded{PlaceId{4}, {Kind::ordinary, {}, some}}).end.left == some);
  for (const Code code : {Code::invalid, Code::not_found, Code::io, Code::unavailable, Code::exhausted, Code::damaged,
                          Code::denied, Code::superseded, Code::interrupted, Code::internal}) {
    const Status why(code, "interrupted by Terminated");
    CHECK(from_agent(AgentFailed{why}).why.code() == code);
    CHECK(from_agent(PlaceEnded{PlaceId{4}, {Kind::refused, why, {}}}).end.how.code() == code);
    CHECK(from_agent(Finished{why}).left.code() == code);
  }
  CHECK(from_agent(Finished{}).left.ok());
  CHECK(from_agent(Finished{Status(Code::unavailable, "left")}).left.message() == "left");
  from_agent(Beat{});
  CHECK(from_agent(Asks{"ps"}).request == "ps");
}

TEST_CASE("what no message of an agent is, is an error") {
  CHECK_FALSE(decode_to_agent({}).ok());
  CHECK_FALSE(decode_from_agent({}).ok());
  for (const PlaceId place : {PlaceId{-1}, PlaceId{-7}}) {
    CHECK_FALSE(decode_to_agent(encode(ToAgent(KillPlace{place}))).ok());
    CHECK_FALSE(decode_to_agent(encode(ToAgent(SettledPlaces{{place}}))).ok());
    CHECK_FALSE(decode_from_agent(encode(FromAgent(PlaceStarted{place, 1, ""}))).ok());
  }
  CHECK_FALSE(decode_to_agent(encode(ToAgent(Welcome{7}))).ok());
  CHECK_FALSE(decode_to_agent(encode(ToAgent(Finish{-1, 0}))).ok());
  CHECK_FALSE(decode_from_agent(encode(FromAgent(Joins{"m", 0, ""}))).ok());
  CHECK_FALSE(decode_from_agent(encode(FromAgent(Joins{"m", 1, "", "", "", {}, -1}))).ok());
  for (const std::string wrong : {"m\n", "m\t", "\x1b[2Jm", "\xc2\x9b"})
    for (const Joins& joins : {Joins{wrong, 1, ""}, Joins{"m", 1, "", wrong}, Joins{"m", 1, "", "", wrong}})
      CHECK_FALSE(decode_from_agent(encode(FromAgent(joins))).ok());
  CHECK(decode_from_agent(encode(FromAgent(Joins{std::string(255, 'm'), 1, ""}))).ok());
  CHECK_FALSE(decode_from_agent(encode(FromAgent(Joins{std::string(256, 'm'), 1, ""}))).ok());
  const auto no_code = static_cast<Code>(static_cast<int>(last_code) + 1);
  CHECK_FALSE(decode_from_agent(encode(FromAgent(AgentFailed{Status(no_code, "b")}))).ok());
  TellPlan no_plan = a_plan();
  no_plan.plan = shared(Enter{});
  const auto refused = decode_to_agent(encode(ToAgent(no_plan)));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("a plan that is none") != std::string::npos);
}

TEST_CASE("20,000 corrupted messages of jobs and agents are each an error or a message, never the end of the process") {
  std::uint64_t drawn = 0;
  const auto draw = [&](std::uint32_t below) { return philox(11, ++drawn, 0)[0] % below; };
  int errors = 0;
  const auto corrupt = [&](Bytes bytes) {
    for (std::uint32_t n = 1 + draw(4); n > 0; --n)
      bytes[draw(static_cast<std::uint32_t>(bytes.size()))] ^= static_cast<std::byte>(1u << draw(8));
    if (draw(4) == 0) bytes.resize(draw(static_cast<std::uint32_t>(bytes.size())));
    return bytes;
  };
  const auto to = all_to_agent(), from = all_from_agent();
  for (int i = 0; i < 10'000; ++i) {
    errors += !decode_to_agent(corrupt(to[draw(static_cast<std::uint32_t>(to.size()))])).ok();
    errors += !decode_from_agent(corrupt(from[draw(static_cast<std::uint32_t>(from.size()))])).ok();
  }
  CHECK(errors > 2'000);
  CHECK(errors < 19'000);
}

TEST_CASE("the state of sums comes back from its bytes, and other bytes are an error") {
  SumState sums;
  sums.updates = 12;
  sums.void_steps = 2;
  sums.scales = {{"a.weight", {-7, 0.5f}}, {"b", {900, 0}}};
  sums.programs = {{"actor", {12, 2}}, {"critic", {14, 0}}};
  const auto bytes = encode_sums(sums);
  const auto back = decode_sums(bytes);
  REQUIRE(back.ok());
  CHECK(*back == sums);
  CHECK_FALSE(decode_sums(std::span(bytes).first(bytes.size() / 2)).ok());
  SumState wrong = sums;
  wrong.programs["critic"].updates = -1;
  CHECK_FALSE(decode_sums(encode_sums(wrong)).ok());
  sums.scales["b"].exponent = 901;
  CHECK_FALSE(decode_sums(encode_sums(sums)).ok());
  sums.scales["b"] = {0, std::numeric_limits<float>::infinity()};
  CHECK_FALSE(decode_sums(encode_sums(sums)).ok());
}

TEST_CASE("a digest tells plans and runs apart") {
  const Bytes one(10, std::byte{1}), two(10, std::byte{2});
  CHECK(digest_of(one, "run") == digest_of(one, "run"));
  CHECK(digest_of(one, "run") != digest_of(two, "run"));
  CHECK(digest_of(one, "run") != digest_of(one, "other"));
}
