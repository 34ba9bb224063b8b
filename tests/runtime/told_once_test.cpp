// What a job tells its application, once each, whatever is repeated.
#include "runtime/elastic/told_once.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/runtime/commits_at_once.h"

using namespace troupe;
using namespace troupe::runtime;

namespace {

/// An application that writes down what it is told.
struct Application {
  std::vector<std::string> heard;
  std::vector<std::int64_t> asked;
  SessionOptions options() {
    SessionOptions o;
    o.first_step = 3;
    o.on_step = [this](const StepResult& r) { heard.push_back("step " + std::to_string(r.step)); };
    o.on_started = [this](const std::string& program, std::int64_t v) {
      heard.push_back(program + " begins " + std::to_string(v));
    };
    o.on_closed = [this](const std::string& program, std::int64_t v, const std::vector<Report>&) {
      heard.push_back(program + " " + std::to_string(v));
    };
    o.readers = [this](std::int64_t v) {
      asked.push_back(v);
      return v == 5 ? std::vector<std::string>{"evaluate", "sample"} : std::vector<std::string>{};
    };
    return o;
  }
};

StepResult result(std::int64_t step, double loss = 1, double norm = 2) {
  StepResult r;
  r.step = step;
  r.loss = loss;
  r.grad_norm = norm;
  return r;
}

using Heard = std::vector<std::string>;

}  // namespace

TEST_CASE("a line is told when an event of the next version proves its version whole, and the last one at the end") {
  Application app;
  ToldOnce told(app.options(), true);
  const SessionOptions s = told.options();
  s.on_step(result(3));
  CHECK(app.heard.empty());
  s.on_step(result(4));
  CHECK(app.heard == Heard{"step 3"});
  s.on_started("evaluate", 5);
  s.on_closed("evaluate", 5, {});
  CHECK(app.heard == Heard{"step 3"});
  s.on_step(result(5));
  CHECK(app.heard == Heard{"step 3", "step 4", "evaluate begins 5", "evaluate 5"});
  s.on_closed("sample", 5, {});  // of a version that is proven
  CHECK(app.heard.back() == "sample 5");
  told.tell_all();
  CHECK(app.heard.back() == "step 5");
  CHECK(told.contradiction().ok());
}

TEST_CASE("a job that goes on from a version tells what concerns it, and hears of the later ones again, once") {
  Application app;
  ToldOnce told(app.options(), true);
  const SessionOptions s = told.options();
  for (std::int64_t step : {3, 4, 5}) s.on_step(result(step));
  s.on_closed("evaluate", 6, {});
  CHECK(app.heard == Heard{"step 3", "step 4"});
  SUBCASE("the newest") {
    told.go_on_from(6);
    CHECK(app.heard == Heard{"step 3", "step 4", "step 5", "evaluate 6"});
    s.on_step(result(6));
    told.tell_all();
    CHECK(app.heard == Heard{"step 3", "step 4", "step 5", "evaluate 6", "step 6"});
  }
  SUBCASE("the one before") {
    told.go_on_from(5);
    s.on_step(result(5, 1.5));  // it was not told: nothing is contradicted
    s.on_closed("evaluate", 6, {});
    told.tell_all();
    CHECK(app.heard == Heard{"step 3", "step 4", "step 5", "evaluate 6"});
    CHECK(told.contradiction().ok());
  }
}

TEST_CASE("a checkpoint that every place has written is told when a place is lost, behind the lines of its steps") {
  struct Written final : CommitsAtOnce {
    Application& app;
    explicit Written(Application& a) : app(a) {}
    bool wants(std::int64_t) const override { return true; }
    void written(std::int64_t version, const std::vector<Report>&, const SumState&) override {
      app.heard.push_back("written " + std::to_string(version));
    }
  };
  Application app;
  ToldOnce told(app.options(), true);
  Written checkpoints(app);
  SnapshotObserver* seen = told.observer(checkpoints);
  const SessionOptions s = told.options();
  for (std::int64_t step : {3, 4}) s.on_step(result(step));
  told.tell_written();
  CHECK(app.heard == Heard{"step 3"});  // nothing is written
  seen->written(5, {}, {});
  CHECK(app.heard == Heard{"step 3"});
  told.tell_written();
  CHECK(app.heard == Heard{"step 3", "step 4", "written 5"});
  told.go_on_from(4);
  s.on_step(result(4));
  s.on_step(result(5));
  told.tell_written();  // what was written is told
  CHECK(app.heard == Heard{"step 3", "step 4", "written 5"});
  seen->written(6, {}, {});
  told.go_on_from(5);  // forgotten with its version
  s.on_step(result(5));
  told.tell_written();
  CHECK(app.heard == Heard{"step 3", "step 4", "written 5"});
}

TEST_CASE("a step that was told is not told again, and must come out as it was, bit for bit (CO-4 compared)") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Again {
    double loss, norm;
    bool same;
  };
  for (const Again& a : {Again{1, nan, true}, {1 + 1e-16 * 4, nan, false}, {1, 2, false}}) {
    CAPTURE(a.loss);
    CAPTURE(a.norm);
    Application app;
    ToldOnce told(app.options(), true);
    const SessionOptions s = told.options();
    s.on_step(result(3, 1, nan));
    s.on_step(result(4));
    s.on_step(result(5));
    told.go_on_from(3);  // from a checkpoint
    s.on_step(result(3, a.loss, a.norm));
    s.on_step(result(4));
    s.on_step(result(5));
    told.tell_all();
    CHECK(app.heard == Heard{"step 3", "step 4", "step 5"});
    CHECK(told.contradiction().ok() == a.same);
    if (!a.same) CHECK(told.contradiction().message().find("step 3") != std::string::npos);
  }
}

TEST_CASE("before each event that is told late the application hears when it happened, and in which generation") {
  Application app;
  SessionOptions options = app.options();
  options.on_event = [&](std::int64_t at_ns, std::uint32_t generation) {
    app.heard.push_back("at " + std::to_string(at_ns) + " of " + std::to_string(generation));
  };
  ToldOnce told(options, true);
  const SessionOptions s = told.options();
  told.at(10, 2);
  s.on_step(result(3));
  told.at(20, 3);
  CHECK(app.heard.empty());
  told.tell_all();
  CHECK(app.heard == Heard{"at 10 of 2", "step 3"});
}

TEST_CASE("a program that begins again, since a place was lost, has begun once") {
  Application app;
  ToldOnce told(app.options(), true);
  const SessionOptions s = told.options();
  s.on_started("evaluate", 5);
  told.go_on_from(5);
  s.on_started("evaluate", 5);
  s.on_closed("evaluate", 5, {});
  told.tell_all();
  CHECK(app.heard == Heard{"evaluate begins 5", "evaluate 5"});
}

TEST_CASE("the application is asked once who reads a version, and a program that was told is not read again") {
  Application app;
  ToldOnce told(app.options(), true);
  const SessionOptions s = told.options();
  CHECK(s.readers(5) == Heard{"evaluate", "sample"});
  s.on_closed("evaluate", 5, {});
  s.on_step(result(5));
  told.go_on_from(5);
  CHECK(s.readers(5) == Heard{"sample"});
  CHECK(app.asked == std::vector<std::int64_t>{5});
}

TEST_CASE("a job that repeats nothing tells everything at once") {
  Application app;
  ToldOnce told(app.options(), false);
  const SessionOptions s = told.options();
  s.on_step(result(3));
  s.on_closed("evaluate", 4, {});
  CHECK(app.heard == Heard{"step 3", "evaluate 4"});
}

TEST_CASE("a repeated step is compared for each program that trains, and one that is void for any of them is counted") {
  for (const bool same : {true, false}) {
    Application app;
    ToldOnce told(app.options(), true);
    const SessionOptions s = told.options();
    StepResult step = result(3);
    step.others.push_back({.program = "critic", .loss = 5, .grad_norm = 6, .lr = 0, .void_step = true});
    s.on_step(step);
    s.on_step(result(4));
    CHECK(told.void_steps() == 1);
    told.go_on_from(3);
    if (!same) step.others[0].loss = 5.5;
    s.on_step(step);
    told.tell_all();
    CHECK(told.contradiction().ok() == same);
    if (!same) CHECK(told.contradiction().message().starts_with("step 3 of program 'critic', which is repeated, has"));
  }
}
