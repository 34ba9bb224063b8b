#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "devices/base/clock.h"
#include "devices/base/philox.h"
#include "devices/base/status.h"
#include "devices/base/trace.h"

using namespace troupe;

void fail_a_require(int slots, const std::string& port);  // check_victims.cpp
void fail_an_assert(bool flag);

namespace {

/// What `victim` writes to stderr before it dies of SIGABRT; "survived" if it does not.
std::string last_words(const std::function<void()>& victim) {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // doctest's handler would report
    ::dup2(pipe_ends[1], 2);
    victim();
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  std::string words;
  char chunk[256];
  for (ssize_t n; (n = ::read(pipe_ends[0], chunk, sizeof chunk)) > 0;) words.append(chunk, n);
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? words : "survived";
}

Expected<int> half(int n) {
  if (n % 2) return invalid(std::to_string(n) + " is odd");
  return n / 2;
}

Expected<int> quarter(int n) {
  TROUPE_ASSIGN(const int once, half(n));
  TROUPE_ASSIGN(const int twice, half(once));
  return twice;
}

Status check_even(int n) {
  TROUPE_TRY(half(n).status());
  return {};
}

}  // namespace

TEST_CASE("a failed check names the condition, its operands with their values, and the place") {
  const std::string require = last_words([] { fail_a_require(0, "h"); });
  CHECK(require.find("REQUIRE failed: slots > 0 [slots = 0, port = h, std::max(slots, 3) = 3] at ") == 0);
  CHECK(require.find("check_victims.cpp:") != std::string::npos);
  const std::string assert = last_words([] { fail_an_assert(false); });
  CHECK(assert.find("ASSERT failed: flag [flag = false]") == 0);
  CHECK(last_words([] { fail_a_require(1, "h"); }) == "survived");
}

TEST_CASE("the value of an Expected that has none ends the process with the error's message") {
  CHECK(last_words([] { (void)*half(3); }).find("3 is odd") != std::string::npos);
}

TEST_CASE("Status: ok by default; errors carry a code, a message and their context") {
  CHECK(Status().ok());
  CHECK(Status().in("reading x").ok());
  const Status s = invalid("no such dim").in("layout of h");
  CHECK_FALSE(s);
  CHECK(s.code() == Code::invalid);
  CHECK(s.message() == "layout of h: no such dim");
  CHECK(std::string(to_string(Code::exhausted)) == "exhausted");
  CHECK(std::string(to_string(Code::denied)) == "denied");
  CHECK(std::string(to_string(Code::superseded)) == "superseded");
  CHECK(std::string(to_string(Code::interrupted)) == "interrupted");
}

TEST_CASE("Expected: a value or an error, passed on by TROUPE_TRY and TROUPE_ASSIGN") {
  CHECK(*quarter(12) == 3);
  CHECK(quarter(12).status().ok());
  CHECK(quarter(6).status().message() == "3 is odd");
  CHECK(check_even(4).ok());
  CHECK(check_even(5).message() == "5 is odd");
  Expected<std::unique_ptr<int>> owned = std::make_unique<int>(7);  // move-only values work
  CHECK(**owned == 7);
  const std::unique_ptr<int> taken = *std::move(owned);
  CHECK(*taken == 7);
}

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  CHECK(philox(0, 0, 0) == Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox(~0ull, ~0ull, ~0ull) == Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
        Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("keys of different names or seeds differ; unit floats lie in [0, 1)") {
  CHECK(philox_key(1, "wte") != philox_key(1, "wpe"));
  CHECK(philox_key(1, "wte") != philox_key(2, "wte"));
  CHECK(philox_key(1, "wte") == philox_key(1, "wte"));
  CHECK(to_unit(0) == 0.0f);
  CHECK(to_unit(~0u) < 1.0f);
}

TEST_CASE("the steady clock does not go back; the manual clock goes where it is told") {
  SteadyClock steady;
  const auto a = steady.now_ns(), b = steady.now_ns();
  CHECK(a <= b);
  ManualClock manual;
  manual.advance_to(42);
  CHECK(manual.now_ns() == 42);
}

TEST_CASE("a trace keeps the steps of its window, at most so many spans in all, and counts the others") {
  TraceRecorder trace({.first = 2, .steps = 3}, 5);
  auto record = [&](std::int64_t step, int spans) {
    for (int i = 0; i < spans; ++i) trace.record({.row = "a", .name = "a", .step = step, .microbatch = i});
  };
  for (std::int64_t step = 0; step < 8; ++step) CHECK(trace.wants(step) == (step >= 2 && step < 5));
  record(1, 10);
  record(2, 3);
  auto taken = trace.take();
  REQUIRE(taken.spans.size() == 3);
  CHECK(taken.spans[2].microbatch == 2);
  CHECK(taken.dropped == 0);
  record(4, 4);  // two find room
  record(5, 10);
  taken = trace.take();
  CHECK(taken.spans.size() == 2);
  CHECK(taken.dropped == 2);
  record(3, 1);
  taken = trace.take();
  CHECK(taken.spans.empty());
  CHECK(taken.dropped == 1);
  CHECK_FALSE(TraceRecorder({}).wants(0));
}
