#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "runtime/session/control.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

std::vector<std::byte> blob(int n) {
  std::vector<std::byte> b(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) b[static_cast<std::size_t>(i)] = static_cast<std::byte>(i * 37);
  return b;
}

template <class T>
T to_worker(const T& message) {
  const auto read = decode_to_worker(encode(ToWorker(message)));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  REQUIRE(std::holds_alternative<T>(*read));
  return std::get<T>(*read);
}
template <class T>
T from_worker(const T& message) {
  const auto read = decode_from_worker(encode(FromWorker(message)));
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  REQUIRE(std::holds_alternative<T>(*read));
  return std::get<T>(*read);
}

void check_same(const Report& a, const Report& b) {
  CHECK(a.name == b.name);
  CHECK(a.step == b.step);
  CHECK(a.microbatch == b.microbatch);
  CHECK(a.kind == b.kind);
  CHECK(a.program == b.program);
  REQUIRE(a.values.size() == b.values.size());
  // Digests travel as the bits of doubles: whatever they are, NaNs included, they must not change.
  CHECK(a.bytes == b.bytes);
  for (std::size_t i = 0; i < a.values.size(); ++i)
    CHECK(std::bit_cast<std::uint64_t>(a.values[i]) == std::bit_cast<std::uint64_t>(b.values[i]));
}

Report report() {
  return {Report::Kind::digest,
          "w|[0:4, 1:2]",
          1ll << 40,
          7,
          {1.5, -0.0, std::numeric_limits<double>::infinity(), std::bit_cast<double>(0x7ff0000000000001ull),
           std::bit_cast<double>(0xfff8dead0000beefull), std::bit_cast<double>(0x0000000000000001ull),
           std::bit_cast<double>(~0ull)},
          blob(77),
          -1,
          3};
}

}  // namespace

TEST_CASE("every message to a worker survives the wire") {
  CHECK(to_worker(PlanBytes{blob(1001)}).bytes == blob(1001));
  CHECK(to_worker(PlanBytes{}).bytes.empty());
  Hello hello{3,
              3,
              "tcp,self",
              "eth0",
              {7, 1ll << 40},
              0.25,
              false,
              {5, 0, 63},
              {{-1, -1, 50'000, 1ll << 40}, {3, 2, 0, 7}},
              {"runs/a/checkpoints", 0x8000000000000001ull},
              LogLevel::debug,
              250,
              12,
              {"SIGKILL@update:mid#3/worker3", "a"}};
  hello.device = "cuda:1";
  const auto h = to_worker(hello);
  CHECK(h.rank == 3);
  CHECK(h.device == "cuda:1");
  CHECK(h.threads == 3);
  CHECK(h.tls == "tcp,self");
  CHECK(h.net_device == "eth0");
  CHECK(h.trace.first == 7);
  CHECK(h.trace.steps == 1ll << 40);
  CHECK(h.paced == 0.25);
  CHECK_FALSE(h.run_kernels);
  CHECK(h.cores == hello.cores);
  CHECK(h.throttle == hello.throttle);
  CHECK(h.save == hello.save);
  CHECK(h.log_level == LogLevel::debug);
  CHECK(h.beat_ms == 250);
  CHECK(h.neighbours == 12);
  CHECK(h.injections == hello.injections);
  CHECK(to_worker(Hello{}).run_kernels);
  // Addresses are binary: zeros inside must survive.
  const Connect connect{
      {{0, std::string("a\0b\xff", 4)}, {7, ""}, {12, std::string(300, '\0')}}, 1ll << 40, "runs/a/step-00000005.g1"};
  CHECK(to_worker(connect).addresses == connect.addresses);
  CHECK(to_worker(connect).adopt == connect.adopt);
  CHECK(to_worker(connect).restore == connect.restore);
  Connect guarding{{{0, "a"}, {1, "b"}}, 5, ""};
  guarding.home = {{}, {"one", "", "three"}, {2, -1}, {0, -1, 1}, {0, 1}, {0, -1, 0}, {0, 1, 1}};
  guarding.guard = {2, 1, {4, 5}};
  CHECK(to_worker(guarding).home == guarding.home);
  CHECK(to_worker(guarding).guard.every == 2);
  CHECK(to_worker(guarding).guard.window == 1);
  CHECK(to_worker(guarding).guard.machines == guarding.guard.machines);
  CHECK(!to_worker(Connect{}).guard.on());
  CHECK(to_worker(Connect{}).addresses.empty());
  CHECK(to_worker(Connect{}).adopt == -1);
  const auto begin = to_worker(BeginRun{12345678901, 0x80000001u, {40, -900, 0}});
  CHECK(begin.step == 12345678901);
  CHECK(begin.readers == 0x80000001u);
  CHECK(begin.exponents == std::vector<std::int32_t>{40, -900, 0});
  CHECK(to_worker(BeginRun{}).exponents.empty());
  CHECK(to_worker(BeginRun{}).wanted.empty());
  CHECK(to_worker(BeginRun{1, 1, {40, 2}, {1, 0}}).wanted == std::vector<std::int32_t>{1, 0});
  const auto go = to_worker(Go{2, 99});
  CHECK(go.program == 2);
  CHECK(go.step == 99);
  const auto commit = to_worker(CommitStep{8, 5, {{0.1, 3e-4, 1ll << 33, true}, {1, 0, 2, false}}, {41, -7}});
  CHECK(commit.step == 8);
  CHECK(commit.readers == 5);
  REQUIRE(commit.commits.size() == 2);
  CHECK(commit.commits[0].grad_scale == 0.1);
  CHECK(commit.commits[0].lr == 3e-4);
  CHECK(commit.commits[0].update == 1ll << 33);
  CHECK(commit.commits[0].void_step);
  CHECK(commit.commits[1].update == 2);
  CHECK_FALSE(commit.commits[1].void_step);
  CHECK(commit.exponents == std::vector<std::int32_t>{41, -7});
  CHECK(to_worker(CommitStep{}).commits.empty());
  const auto feed = to_worker(Feed{"prompt", 2, 11, 3, blob(64)});
  CHECK(feed.name == "prompt");
  CHECK(feed.program == 2);
  CHECK(feed.step == 11);
  CHECK(feed.microbatch == 3);
  CHECK(feed.payload == blob(64));
  to_worker(ExplainAll{});
  to_worker(Stop{});
  to_worker(Abort{});
  to_worker(Enter{});
}

TEST_CASE("every message from a worker survives the wire") {
  CHECK(from_worker(WorkerAddress{std::string("\0\1\2", 3)}).blob == std::string("\0\1\2", 3));
  CHECK_FALSE(from_worker(Quiesced{}).versions);
  CHECK(from_worker(Quiesced{std::vector<std::int64_t>{}}).versions == std::vector<std::int64_t>{});
  CHECK(from_worker(Quiesced{std::vector<std::int64_t>{3, 1ll << 40}}).versions ==
        std::vector<std::int64_t>{3, 1ll << 40});
  const auto ready = from_worker(Ready{1ll << 40, 0.75});
  CHECK(ready.restored_bytes == 1ll << 40);
  CHECK(ready.restore_s == 0.75);
  const auto closed = from_worker(Closed{1,
                                         77,
                                         {report(), {Report::Kind::loss, "loss", 0, -1, {}}},
                                         123456789,
                                         {{0.1, -0.0, std::numeric_limits<double>::infinity()},
                                          {0.1f, std::numeric_limits<float>::infinity()},
                                          {{1, 1 << 30}, {0, 7}}}});
  CHECK(closed.program == 1);
  CHECK(closed.step == 77);
  CHECK(closed.busy_ns == 123456789);
  REQUIRE(closed.reports.size() == 2);
  check_same(closed.reports[0], report());
  check_same(closed.reports[1], {Report::Kind::loss, "loss", 0, -1, {}});
  CHECK(closed.gradients.square_sums == std::vector<double>{0.1, -0.0, std::numeric_limits<double>::infinity()});
  CHECK(std::signbit(closed.gradients.square_sums[1]));
  CHECK(closed.gradients.peaks == std::vector<float>{0.1f, std::numeric_limits<float>::infinity()});
  CHECK(closed.gradients.bad == std::vector<actors::GradientReport::Bad>{{1, 1 << 30}, {0, 7}});
  const auto nan = from_worker(Closed{0, 1, {}, 0, {{std::nan("")}, {std::nanf("")}, {}}});
  REQUIRE(nan.gradients.square_sums.size() == 1);
  REQUIRE(nan.gradients.peaks.size() == 1);
  CHECK(std::isnan(nan.gradients.square_sums[0]));
  CHECK(std::isnan(nan.gradients.peaks[0]));
  const auto early = from_worker(EarlyReport{3, report()});
  CHECK(early.program == 3);
  check_same(early.report, report());
  for (auto code : {Code::invalid, Code::not_found, Code::io, Code::unavailable, Code::exhausted, Code::damaged,
                    Code::denied, Code::superseded, Code::interrupted, Code::internal}) {
    const auto failed = from_worker(WorkerFailed{"layer0.fwd", Status(code, "why \"it\" failed\n")});
    CHECK(failed.actor == "layer0.fwd");
    CHECK(failed.status.code() == code);
    CHECK(failed.status.message() == "why \"it\" failed\n");
  }
  CHECK(from_worker(Explained{"a waits for 'b'\n"}).text == "a waits for 'b'\n");
  const auto traced = from_worker(
      Spans{{{"0/layer0.fwd", "layer0.fwd mb3", 1, 1ll << 40, 5, 3, 0xfedcba9876543210ull, 9}, {}}, 1ll << 33});
  const auto& spans = traced.spans;
  CHECK(traced.dropped == 1ll << 33);
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].row == "0/layer0.fwd");
  CHECK(spans[0].name == "layer0.fwd mb3");
  CHECK(spans[0].begin_ns == 1);
  CHECK(spans[0].end_ns == 1ll << 40);
  CHECK(spans[0].step == 5);
  CHECK(spans[0].microbatch == 3);
  CHECK(spans[0].flow_in == 0xfedcba9876543210ull);
  CHECK(spans[0].flow_out == 9);
  CHECK(spans[1].microbatch == -1);
  const auto progress = from_worker(Progress{1ll << 40, true, "layer0.fwd", 1ll << 35, {4, 1}});
  CHECK(progress.acts == 1ll << 40);
  CHECK(progress.busy);
  CHECK(progress.stuck == "layer0.fwd");
  CHECK(progress.stuck_ms == 1ll << 35);
  CHECK(progress.unheard == std::vector<Rank>{4, 1});
  CHECK_FALSE(from_worker(Progress{}).busy);
  const auto stopped = from_worker(Stopped{1ll << 35, 7, 8, 1ull << 63, 12, {"a", "b"}});
  CHECK(stopped.missed == std::vector<std::string>{"a", "b"});
  CHECK(stopped.peak_bytes == 1ll << 35);
  CHECK(stopped.file_bytes == 7);
  CHECK(stopped.shared_bytes == 8);
  CHECK(stopped.sent_bytes == 1ull << 63);
  CHECK(stopped.received_bytes == 12);
}

TEST_CASE("a message that no sender makes is an error: each number that a worker counts on is looked at") {
  const auto refused = [](const ToWorker& message, const std::string& why) {
    const auto read = decode_to_worker(encode(message));
    REQUIRE_MESSAGE(!read.ok(), why);
    CHECK(read.status().code() == Code::invalid);
    CHECK_MESSAGE(read.status().message().find(why) != std::string::npos, read.status().message());
  };
  const auto hello = [&](const std::function<void(Hello&)>& change, const std::string& why) {
    Hello changed{3, 3, "tcp", "eth0", {0, 5}, 0.5, true, {1, 2, 4}};
    CHECK(decode_to_worker(encode(ToWorker(changed))).ok());
    change(changed);
    refused(changed, why);
  };
  hello([](Hello& h) { h.rank = -1; }, "negative number");
  hello([](Hello& h) { h.place = -1; }, "negative number");
  hello([](Hello& h) { h.threads = 0; }, "without a thread");
  hello([](Hello& h) { h.neighbours = 0; }, "not on its machine");
  hello([](Hello& h) { h.beat_ms = 0; }, "no time between two beats");
  hello([](Hello& h) { h.paced = -1; }, "a pace that is no number");
  hello([](Hello& h) { h.paced = std::nan(""); }, "a pace that is no number");
  hello([](Hello& h) { h.threads = 4; }, "fewer cores than threads");
  hello([](Hello& h) { h.cores[1] = -2; }, "fewer cores than threads");
  hello([](Hello& h) { h.throttle = {{0, 1, -1, 0}}; }, "slowed down by less than nothing");
  hello([](Hello& h) { h.throttle = {{0, 1, 0, -1}}; }, "slowed down by less than nothing");
  hello([](Hello& h) { h.log_level = static_cast<LogLevel>(7); }, "a log level that there is not");
  refused(Connect{{{-1, "a"}}}, "an address of a rank that there is not");
  const auto home = [&](const std::function<void(StateHome&)>& change, const std::string& why) {
    Connect connect{{{0, "a"}, {1, "b"}}, 5, ""};
    connect.home = {{}, {"one", "", "three"}, {2, -1}, {0, -1, 1}, {0, 1}};
    CHECK(decode_to_worker(encode(ToWorker(connect))).ok());
    change(connect.home);
    refused(connect, why);
  };
  home([](StateHome& h) { h.own[1] = 3; }, "memory of a rank that there is not");
  home([](StateHome& h) { h.own[1] = -2; }, "memory of a rank that there is not");
  for (const auto list : {&StateHome::machines, &StateHome::area_machines}) {
    home([&](StateHome& h) { (h.*list).clear(); }, "machines of other ranks");
    home([&](StateHome& h) { (h.*list).push_back(0); }, "machines of other ranks");
  }
  home([](StateHome& h) { h.keepers = {0, -1, 0}; }, "guards of other ranks");
  home([](StateHome& h) { h.keepers = {0}, h.guard_machines = {0}; }, "guards of other ranks");
  home([](StateHome& h) { h.keepers = {0, -1, 3}, h.guard_machines = {0, 1, 2}; }, "a guard that there is not");
  const auto guard = [&](GuardRule rule, const std::string& why) {
    Connect connect{{{0, "a"}, {1, "b"}}, 5, ""};
    connect.guard = std::move(rule);
    refused(connect, why);
  };
  guard({-1, 0, {}}, "later than the next ones begin");
  guard({2, 2, {0, 1}}, "later than the next ones begin");
  guard({2, 1, {0}}, "guards of other ranks");
  guard({0, 0, {0, 1}}, "guards of other ranks");
  const auto says_wrongly = [](const FromWorker& message, const std::string& why) {
    const auto read = decode_from_worker(encode(message));
    REQUIRE_MESSAGE(!read.ok(), why);
    CHECK_MESSAGE(read.status().message().find(why) != std::string::npos, read.status().message());
  };
  Report report_of_no_kind = report();
  report_of_no_kind.kind = static_cast<Report::Kind>(static_cast<int>(Report::Kind::finished) + 1);
  says_wrongly(EarlyReport{0, report_of_no_kind}, "a kind of report that there is not");
  says_wrongly(Closed{0, 1, {report(), report_of_no_kind}}, "a kind of report that there is not");
  says_wrongly(WorkerFailed{"a", Status()}, "a failure with a code that no error has");
  const auto no_code = static_cast<Code>(static_cast<int>(last_code) + 1);
  says_wrongly(WorkerFailed{"a", Status(no_code, "b")}, "a failure with a code that no error has");
}

TEST_CASE("10,000 corrupted control messages are each an error or a message, never the end of the process") {
  const std::vector<std::vector<std::byte>> good = {
      encode(ToWorker(PlanBytes{blob(100)})),
      encode(ToWorker(Hello{3, 1, "tcp", "eth0", {0, 5}, 0.5, true, {1, 2}})),
      encode(ToWorker(Connect{{{0, "abc"}, {1, "defg"}}})),
      encode(ToWorker(CommitStep{8, 5, {{0.1, 3e-4, 9}}, {40, 41}})),
      encode(ToWorker(Feed{"prompt", 2, 11, 3, blob(64)})),
      encode(FromWorker(Closed{1, 77, {report(), report()}, 1, {{1, 2}, {3}, {{0, 4}}}})),
      encode(FromWorker(EarlyReport{3, report()})),
      encode(FromWorker(WorkerFailed{"a", Status(Code::io, "b")})),
      encode(FromWorker(Explained{"text"}))};
  std::mt19937 random(5);
  int errors = 0, messages = 0;
  for (int i = 0; i < 10'000; ++i) {
    auto bad = good[random() % good.size()];
    for (auto n = 1 + random() % 4; n > 0; --n)
      bad[random() % bad.size()] ^= static_cast<std::byte>(1u << random() % 8);
    if (random() % 10 == 0) bad.resize(random() % bad.size());
    const auto to = decode_to_worker(bad);
    const auto from = decode_from_worker(bad);  // also as what it is not
    to.ok() ? ++messages : ++errors;
    from.ok() ? ++messages : ++errors;
  }
  MESSAGE(errors << " errors, " << messages << " messages");
  CHECK(errors > 100);
  CHECK(messages > 100);
  CHECK_FALSE(decode_to_worker({}).ok());
  CHECK_FALSE(decode_from_worker({}).ok());
}
