// Drills: what --inject understands, and which act it hits.
#include "runtime/worker/injection.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/worker/act_watch.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

Plan drilled_plan(std::int32_t zero = 0) {
  const auto p = plan(ops(), {}, {2}, zero);
  REQUIRE(p.ok());
  return *p;
}

}  // namespace

TEST_CASE("a drill says what is done, at which act, in which phase, at the how many-th, and to whom") {
  using I = Injection;
  const auto parsed = [](const char* text) {
    const auto i = parse_injection(text);
    REQUIRE_MESSAGE(i.ok(), i.status().message());
    CHECK(parse_injection(to_string(*i)).ok());
    CHECK(*parse_injection(to_string(*i)) == *i);
    return *i;
  };
  CHECK(parsed("SIGKILL@update:mid#3/worker2") == I{I::Action::kill, "update", I::Phase::mid, 3, 2});
  CHECK(parsed("HANG@layer0.fwd/worker0") == I{I::Action::hang, "layer0.fwd", I::Phase::mid, 1, 0});
  CHECK(parsed("EXIT@exchange:after/worker11") == I{I::Action::exit, "exchange", I::Phase::after, 1, 11});
  CHECK(parsed("DROP@a:b#7/worker1") == I{I::Action::drop, "a:b", I::Phase::mid, 7, 1});  // a name may have a colon
  CHECK(parsed("SLOW@forward#9/worker1") == I{I::Action::slow, "forward", I::Phase::mid, 9, 1});
  CHECK(parsed("CUT@exchange:before#9/worker1-worker3") == I{I::Action::cut, "exchange", I::Phase::before, 9, 1, 3});
  for (const char* bad : {"CUT@forward/worker1", "CUT@forward/worker1-worker1", "CUT@forward/worker1-3",
                          "SIGKILL@forward/worker1-worker2", "CUT@forward/worker1-worker-2", "", "SIGKILL",
                          "SIGKILL@update", "SIGTERM@update/worker0", "SIGKILL@/worker0", "SIGKILL@update#0/worker0",
                          "SIGKILL@update#x/worker0", "SIGKILL@update/worker", "SIGKILL@update/worker-1",
                          "SIGKILL@update/2", "SIGKILL@update/worker99999999999999"}) {
    CAPTURE(bad);
    const auto i = parse_injection(bad);
    REQUIRE_FALSE(i.ok());
    CHECK(i.status().message().find("expected ACTION@ACT") != std::string::npos);
  }
}

TEST_CASE("a drill of an act that the worker does not have is refused, with those that it has") {
  const auto checked = [](const Plan& p, const char* text) { return check_injection(p, *parse_injection(text)); };
  const Plan p = drilled_plan();
  for (const char* good :
       {"SIGKILL@forward/worker0", "SIGKILL@backward/worker1", "SIGKILL@update/worker1", "SIGKILL@norm/worker0",
        "SIGKILL@commit/worker0", "SIGKILL@enter/worker0", "DROP@exchange/worker1", "SIGKILL@layer0.update/worker0"})
    CHECK_MESSAGE(checked(p, good).ok(), checked(p, good).message());
  CHECK(checked(p, "SIGKILL@forward/worker2").message().find("the job has workers 0 to 1") != std::string::npos);
  const Status none = checked(p, "SIGKILL@nothing/worker0");
  CHECK(none.message().find("worker 0 has no act 'nothing'; it has ") != std::string::npos);
  CHECK(none.message().find("forward") != std::string::npos);
  CHECK_FALSE(checked(p, "SIGKILL@gather/worker0").ok());
  CHECK(checked(drilled_plan(1), "SIGKILL@gather/worker0").ok());
  CHECK_FALSE(checked(p, "SIGKILL@write/worker0").ok());
  CHECK(checked(p, "DROP@forward/worker0").message().find("an exchange can be dropped") != std::string::npos);
  CHECK(checked(p, "CUT@forward/worker0-worker1").ok());
  CHECK(checked(p, "CUT@enter/worker0-worker1").message().find("no link is open") != std::string::npos);
  CHECK(checked(p, "CUT@forward/worker0-worker2").message().find("the job has workers 0 to 1") != std::string::npos);
  const auto pipeline = plan(ops(), {}, {1, 1, 1});
  REQUIRE(pipeline.ok());
  CHECK(checked(*pipeline, "CUT@forward/worker0-worker1").ok());
  CHECK(
      checked(*pipeline, "CUT@forward/worker0-worker2").message().find("worker 0 exchanges no message with worker 2") !=
      std::string::npos);
}

TEST_CASE("a drill hits the act with its number, of all that have its name, once") {
  Injector injector({{Injection::Action::drop, "exchange", Injection::Phase::mid, 3, 0},
                     {Injection::Action::drop, "box.b", Injection::Phase::mid, 1, 0}});
  std::vector<int> hits;
  for (int i = 0; i < 6; ++i)
    if (Injector::drops(injector.begin({"exchange", i % 2 ? "box.b" : "box.a"}))) hits.push_back(i);
  CHECK(hits == std::vector<int>{1, 2});  // the first of box.b, and the third of all
  CHECK_FALSE(Injector::drops(injector.begin({"update", "group.update"})));
}

TEST_CASE("from a drill SLOW on each act takes three times as long, but where its stream stops") {
  Injector injector({{Injection::Action::slow, "forward", Injection::Phase::mid, 2, 0}});
  struct Serial final : Parallel {
    bool stops = false;
    int threads() const override { return 1; }
    bool stopping() const override { return stops; }
    void for_each(std::int64_t n, const std::function<void(std::int64_t)>& body) override {
      for (std::int64_t i = 0; i < n; ++i) body(i);
    }
  } stream;
  const SteadyClock clock;
  /// A body that takes 20 ms.
  struct Works final : actors::Body {
    Status run(const actors::ActContext&, Parallel&) override {
      const SteadyClock clock;
      for (const auto end = clock.now_ns() + 20'000'000; clock.now_ns() < end;) {}
      return {};
    }
  };
  const auto body = injected(std::make_unique<Works>(), {"forward"}, injector);
  const auto ms_of_act = [&] {
    const auto begin = clock.now_ns();
    REQUIRE(body->run({}, stream).ok());
    return static_cast<double>(clock.now_ns() - begin) * 1e-6;
  };
  ms_of_act();
  CHECK_FALSE(injector.slows());
  CHECK(ms_of_act() >= 60);
  CHECK(injector.slows());
  CHECK(ms_of_act() >= 60);
  stream.stops = true;
  double least = 1e9;  // of some: this process may get no time for a while
  for (int i = 0; i < 5; ++i) least = std::min(least, ms_of_act());
  CHECK(least < 60);
}

TEST_CASE("a drill CUT cuts the transport of the generation, and none once that is gone") {
  Injector injector({{Injection::Action::cut, "forward", Injection::Phase::mid, 2, 0, 3},
                     {Injection::Action::cut, "enter", Injection::Phase::mid, 1, 0, 1}});
  CHECK(injector.cuts());
  CHECK_FALSE(Injector({{Injection::Action::kill, "forward", Injection::Phase::mid, 2, 0}}).cuts());
  std::vector<Rank> cut;
  injector.on_cut([&](Rank peer) { cut.push_back(peer); });
  injector.pass("forward");
  CHECK(cut.empty());
  injector.pass("forward");
  CHECK(cut == std::vector<Rank>{3});
  injector.on_cut({});
  injector.pass("enter");
  CHECK(cut == std::vector<Rank>{3});
}

TEST_CASE("an act is stuck that runs without progress for eight beats, and eight times as long as any before") {
  constexpr std::int64_t ms = 1'000'000, beat = 10 * ms;
  ActWatch watch;
  std::int64_t now = 7'000'000 * ms;  // clocks do not begin at 0
  const auto looks = [&](std::int64_t progress, int beats, bool knows = true) {
    ActWatch::Seen seen;
    for (int i = 0; i < beats; ++i) seen = watch.look(progress, now += beat, beat, knows);
    return seen;
  };
  CHECK_FALSE(looks(0, 1).busy);
  const auto first = watch.begin("fwd", ActWatch::Judged::yes);
  CHECK(looks(0, 1).busy);
  CHECK(looks(0, 6).stuck.empty());
  CHECK(looks(0, 1, false).stuck.empty());  // before a whole step was seen
  const auto seen = looks(0, 1);
  CHECK(seen.stuck == "fwd");
  CHECK(seen.stuck_ns == 9 * beat);
  CHECK(looks(1, 1).stuck.empty());  // progress: it took ten beats
  watch.end(first);
  CHECK_FALSE(looks(1, 100).busy);  // nothing runs: nothing is stuck
  watch.begin("slow", ActWatch::Judged::yes);
  CHECK(looks(1, 79).stuck.empty());
  CHECK(looks(1, 2).stuck == "slow");
  SUBCASE("a process that was stopped has lost no time") {
    now += 100'000 * ms;
    CHECK(looks(1, 1).stuck.empty());
    CHECK(looks(1, 80).stuck == "slow");
  }
  SUBCASE("what is known outlives the acts of a generation") {
    watch.clear();
    CHECK_FALSE(looks(0, 1).busy);
    watch.begin("again", ActWatch::Judged::yes);
    CHECK(looks(0, 79).stuck.empty());
    CHECK(looks(0, 2).stuck == "again");
  }
}

TEST_CASE("an act that waits for a disk, or for the outside, may take as long as it likes") {
  constexpr std::int64_t beat = 10'000'000;
  for (const bool outside : {false, true}) {
    ActWatch watch;
    const auto act = watch.begin("write", outside ? ActWatch::Judged::waits : ActWatch::Judged::no, 7);
    ActWatch::Seen seen;
    for (int i = 0; i < 1000; ++i) seen = watch.look(0, i * beat, beat, true);
    CHECK(seen.busy);
    CHECK(seen.waits_in_step == (outside ? 7 : -1));
    CHECK(seen.stuck.empty());
    watch.end(act);
    CHECK(watch.look(0, 1000 * beat, beat, true).waits_in_step == -1);
  }
}

TEST_CASE("a drill that crashes its process does so in a thread that blocks signals too, as a fault does") {
  const pid_t child = ::fork();
  if (child == 0) {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    Injector({{Injection::Action::crash, "forward", Injection::Phase::mid, 1, 0}}).pass("forward");
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  pid_t ended = 0;
  for (int tries = 0; tries < 1000 && (ended = ::waitpid(child, &status, WNOHANG)) == 0; ++tries) ::usleep(10'000);
  if (ended == 0) ::kill(child, SIGKILL), ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
}
