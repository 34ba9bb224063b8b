// What a run decides once, and goes on with where its agents have its memory.
#include "apps/job/kept_decisions.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/job/guards.h"
#include "apps/job/placing.h"
#include "apps/lm/model.h"
#include "apps/report/files.h"
#include "devices/base/text_table.h"
#include "runtime/launch/kept_run.h"
#include "tests/apps/temp_dir.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

/// A link between machines over which a pipeline is slow, so that ranks fill machines replica by replica.
constexpr const char* slow_between =
    "version = 4\nmachine = \"m\"\nthreads = 1\nhandover_us = 40\n[intra_node]\nlatency_us = 30\ngb_per_s = 2\n"
    "[inter_node]\nlatency_us = 20000\ngb_per_s = 1\nrendezvous_us = 0\nmachines = []\n"
    "[[kernels]]\nworkers = 1\ngflops = 10\nmemory_gb_per_s = 10\nlaunch_us = 1\n[kernels.times]\n";

struct Begun {
  test::TempDir dir;
  runtime::App app;
  JobArguments a;

  Begun() {
    register_actors(app);
    a.config_path = TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml";
    a.mesh = "dp=2,pp=2";
    a.recovery = "slots";
    a.out = dir.path();
    a.machines.count = 2;
    a.costs = dir / "costs.toml";
    REQUIRE(report::write_file(a.costs, slow_between).ok());
  }
  Prepared prepared(const calibrate::CostsFile* costs = nullptr) const {
    int code = 0;
    auto p = prepare(a, code, nullptr, costs);
    REQUIRE_MESSAGE(p.ok(), p.status().message());
    return *std::move(p);
  }
  /// Decides on these machines.
  Prepared on(const std::vector<Machine>& machines, const calibrate::CostsFile* costs = nullptr) const {
    Prepared p = prepared(costs);
    REQUIRE(put_on_machines(p, a, machines).ok());
    const auto tried = choose_order(app, p, "corpus", {});
    REQUIRE_MESSAGE(tried.ok(), tried.status().message());
    return p;
  }
  runtime::Plan plan_of(const Prepared& p) const {
    auto made = make_plan(app, p, "corpus", {});
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    return std::move(made->plan);
  }
  std::string digest_of(const Prepared& p) const { return runtime::digest_of_plan(plan_of(p), ""); }
  void write(const KeptDecisions& d) const {
    nlohmann::json run;
    write_decisions(run, d);
    REQUIRE(report::write_run_json(a.out + "/run.json", run.dump()).ok());
  }
};

}  // namespace

TEST_CASE("a run goes on with the plan that it has decided upon, whatever has become of costs and machines since") {
  Begun run;
  const Prepared first = run.on({{"b", 2}, {"c", 2}});
  REQUIRE(first.order == runtime::RankOrder::replica_by_replica);
  const KeptDecisions decided = decisions_of(run.a, first, run.plan_of(first));
  run.write(decided);
  std::filesystem::remove(run.a.costs);
  const auto before = decided_before(run.a);
  REQUIRE(before);
  CHECK(*before == decided);
  // A machine that comes first now, and has room for all: a run that decided anew would fill it stage by stage.
  const std::vector<Machine> others{{"a", 4}, {"b", 2}, {"c", 2}};
  CHECK(run.digest_of(run.on(others, &before->costs)) != run.digest_of(first));
  Prepared again = run.prepared(&before->costs);
  REQUIRE(decide_as(again, run.a, *before).ok());
  CHECK(again.costs == first.costs);
  CHECK(again.layout_costs == first.layout_costs);
  CHECK(run.digest_of(again) == run.digest_of(first));
  again.ahead = ChosenAhead{1, false};
  CHECK(run.plan_of(again).pipeline.ahead == 1);
  KeptDecisions two = decided;
  two.ahead = ChosenAhead{2, true};
  run.write(two);
  const auto read = decided_before(run.a);
  REQUIRE(read);
  CHECK(*read == two);
  Prepared ahead = run.prepared(&read->costs);
  REQUIRE(decide_as(ahead, run.a, *read).ok());
  CHECK(ahead.ahead == two.ahead);
  CHECK(decisions_of(run.a, ahead, run.plan_of(first)).ahead == two.ahead);  // not what a plan of none of it has
  run.a.mesh = "dp=4,pp=2";                                                  // for which these machines are too few
  Prepared larger = run.prepared(&before->costs);
  CHECK_FALSE(decide_as(larger, run.a, *before).ok());
}

TEST_CASE("costs that the user names now count, and a run.json that is none of such a run decides nothing") {
  Begun run;
  CHECK_FALSE(decided_before(run.a));  // there is no run.json
  const Prepared first = run.on({{"b", 2}, {"c", 2}});
  const KeptDecisions decided = decisions_of(run.a, first, run.plan_of(first));
  run.write(decided);
  run.a.costs = "";
  CHECK(decided_before(run.a));
  run.a.costs = run.dir / "other.toml";
  CHECK_FALSE(decided_before(run.a));
  nlohmann::json whole;
  write_decisions(whole, decided);
  CHECK(read_decisions(whole) == decided);
  const auto with = [&](const char* key, nlohmann::json value) {
    nlohmann::json changed = whole;
    changed["decided"][key] = std::move(value);
    return read_decisions(changed);
  };
  CHECK(with("costs", ""));  // built-in
  CHECK_FALSE(with("costs_text", "version = 99"));
  CHECK_FALSE(with("order", "as it comes"));
  CHECK_FALSE(with("ahead", -1));
  CHECK_FALSE(with("ahead", "two"));
  CHECK_FALSE(with("machines", nlohmann::json::array()));
  CHECK_FALSE(with("machines", nlohmann::json::array({{{"name", "b"}, {"places", 0}}})));
  CHECK_FALSE(read_decisions({{"decided", 7}}));
  CHECK_FALSE(read_decisions(nlohmann::json::object()));
}

namespace {
constexpr std::int64_t many_steps = 1'000'000;
}

TEST_CASE("a machine that has too little memory for its workers and their guards is named before the run starts") {
  Begun run;
  run.a.mesh = "dp=2";
  run.a.zero = 1;  // each machine alone has half of the moments
  Prepared p = run.on({{"b", 1}, {"c", 1}});
  const runtime::Plan plan = run.plan_of(p);
  CHECK(check_memory_of_machines(run.a, p, plan).ok());  // what they have is not known
  CHECK_FALSE(choose_guards(run.a, plan, 0.1, many_steps).text.empty());
  const auto needs = [&](bool guards) {
    const auto of = runtime::needs_of_machines(plan, guards);
    REQUIRE(of.ok());
    REQUIRE(of->size() == 2);
    return (*of)[1].bytes;
  };
  const std::int64_t without = needs(false), with = needs(true);
  REQUIRE(with > without);
  const auto fits = [&](std::vector<std::int64_t> bytes, bool guards) {
    return *runtime::fits(plan, runtime::MemoryBound(std::move(bytes), guards));
  };
  constexpr std::int64_t plenty = 1ll << 50;
  CHECK(fits({plenty, with}, true));
  CHECK_FALSE(fits({plenty, with - 1}, true));
  CHECK(fits({plenty, with - 1}, false));
  CHECK_FALSE(fits({plenty, without - 1}, false));
  CHECK(fits({plenty}, true));  // the other machine has no bound
  p.machines[0].bytes = plenty;
  p.machines[1].bytes = with;
  CHECK(check_memory_of_machines(run.a, p, plan).ok());
  p.machines[1].bytes = with - 1;
  const Status s = check_memory_of_machines(run.a, p, plan);
  CHECK(s.code() == Code::exhausted);
  for (const char* text : {"machine c has ", "for the 1 worker that it takes, guards included", "--guard-every off"})
    CHECK_MESSAGE(s.message().find(text) != std::string::npos, s.message());
  run.a.guard_every = "off";
  CHECK(check_memory_of_machines(run.a, p, plan).ok());
  p.machines[1].bytes = without - 1;
  CHECK_FALSE(check_memory_of_machines(run.a, p, plan).ok());
}

TEST_CASE("a plan may use what each of its machines has, and not what the machine has that plans") {
  Begun run;
  Prepared p = run.prepared();
  CHECK_FALSE(memory_for_plans(run.a, p));  // they have not joined
  REQUIRE(put_on_machines(p, run.a, {{"b", 3, 5ll << 40}, {"c", 1, 4ll << 40}, {"d", 1}}).ok());
  const auto bound = memory_for_plans(run.a, p);
  REQUIRE(bound);
  REQUIRE(bound->by_machine.size() == 3);
  CHECK(bound->by_machine[0] == memory_for_plans(5ll << 40, 3));
  CHECK(bound->by_machine[1] == memory_for_plans(4ll << 40, 1));
  CHECK(bound->guards);
  CHECK_MESSAGE(bound_text(p, bound).find("with their guards, 4.00 TiB at least (c)") != std::string::npos,
                bound_text(p, bound));
  run.a.machines.count = 0;
  const auto here = memory_for_plans(run.a, run.prepared());
  REQUIRE(here);
  CHECK(here->by_machine.empty());
}

TEST_CASE("guards of auto take a fiftieth of the steps at most, and are promised as early as they are surely whole") {
  Begun run;
  run.a.config_path = TROUPE_SOURCE_DIR "/apps/configs/lm-10m.toml";  // a part is many messages
  run.a.mesh = "dp=2";
  run.a.zero = 1;
  const runtime::Plan plan = run.plan_of(run.on({{"b", 1}, {"c", 1}}));
  std::int64_t count = 0;
  for (const auto& param : plan.params) count += elements(plan.tensors[param.tensor].shape);
  // Each machine sends half of the parameters and of both moments.
  const double link_s = 6 * static_cast<double>(count) / plan.costs.inter_node.alone_bytes_per_s();
  const double work_s = link_s + 2 * 6 * static_cast<double>(count) / plan.costs.memory_bytes_per_s;
  const double rounds = std::ceil(6 * static_cast<double>(count) / (4 << 20));
  REQUIRE(rounds >= 2);
  for (const double step_s : {1.0, 0.1, 0.01, 0.001, 0.0001}) {
    CAPTURE(step_s);
    const GuardChoice guards = choose_guards(run.a, plan, step_s, many_steps);
    const runtime::GuardRule rule = runtime::guard_within(guards.within, guards.window_most);
    const double between_s = static_cast<double>(rule.every) * step_s;
    CHECK(between_s >= 50 * work_s);
    CHECK(between_s <= step_s + 50.2 * work_s);  // whole pages, and places that have a little more
    const double whole_s = static_cast<double>(rule.window + 1) * step_s;
    // takes nothing from the steps, but time until it is whole
    const double latency_s = rounds * plan.costs.inter_node.latency_s;
    if (rule.window < rule.every - 1) CHECK(whole_s >= 2 * (work_s + latency_s));
    CHECK(whole_s <= 2 * (step_s + 1.1 * (work_s + latency_s)));
  }
  CHECK(choose_guards(run.a, plan, 1000, many_steps).within == runtime::guard_within_least);

  // By the link that a guard takes, and for as long as its messages wait for one another there.
  const auto rule_of = [&](const runtime::Plan& p) {
    const GuardChoice guards = choose_guards(run.a, p, 1e-3, many_steps);
    return runtime::guard_within(guards.within, guards.window_most);
  };
  runtime::Plan odd = plan;
  LinkCost slow = plan.costs.inter_node;
  slow.bytes_per_s = slow.link_bytes_per_s = plan.costs.inter_node.alone_bytes_per_s() / 5;  // together a tenth
  odd.costs.odd_links = {{0, 1, slow}};
  const double ratio = static_cast<double>(rule_of(odd).every) / static_cast<double>(rule_of(plan).every);
  CHECK(ratio == doctest::Approx((10 * link_s + work_s - link_s) / work_s).epsilon(0.05));
  runtime::Plan far = plan;
  far.costs.inter_node.latency_s = 0.01;
  far.costs.inter_node.rendezvous_s = 0.02;
  const double waits_s = static_cast<double>(rule_of(far).window + 1) * 1e-3;
  CHECK(waits_s >= 2 * rounds * 0.03);
  CHECK(waits_s <= 2 * (1.1 * rounds * 0.03 + work_s + 1e-3));
  CHECK(rule_of(far).every == rule_of(plan).every);  // latency takes nothing from the steps
  run.a.guard_every = "9";                           // a number keeps its promise, with fewer guards
  const GuardChoice nine = choose_guards(run.a, plan, 1000, many_steps);
  CHECK(nine.within == 9);
  CHECK(runtime::guard_within(nine.within, nine.window_most).every == 7);
}

TEST_CASE("plan.txt says what guards do: K, how often, how long, what of the time and of the memory") {
  Begun run;
  run.a.mesh = "dp=2";
  run.a.zero = 1;
  run.a.guard_every = "9";
  runtime::Plan plan = run.plan_of(run.on({{"b", 1}, {"c", 1}}));
  plan.costs.memory_bytes_per_s = 1e15;
  plan.costs.inter_node = {.latency_s = 0, .bytes_per_s = 1e5};
  std::int64_t count = 0;
  for (const auto& param : plan.params) count += elements(plan.tensors[param.tensor].shape);
  // Each machine has two slots of its own half of 12 bytes for each parameter, and two of the other's.
  const GuardChoice guards = choose_guards(run.a, plan, 1000, many_steps);
  CHECK(guards.summary == "guards: a machine that is lost for good takes back 9 steps at most");
  const auto says = [&](const std::string& text) {
    CHECK_MESSAGE(guards.text.find(text) != std::string::npos, text, " is not in:\n", guards.text);
  };
  says("takes back 9 steps at most: every 7 steps a version is copied");
  says("whole within 2 steps");
  says(" of each " + human_seconds(7000) + " of steps");
  const auto number_after = [&](const std::string& words, const std::string& unit) {
    const std::size_t at = guards.text.find(words);
    REQUIRE(at != std::string::npos);
    std::istringstream rest(guards.text.substr(at + words.size()));
    double number = 0;
    std::string its_unit;
    rest >> number >> its_unit;
    CHECK(its_unit == unit);
    return number;
  };
  const double part = 6 * static_cast<double>(count);
  CHECK(number_after("predicted to take ", "s") == doctest::Approx(part / 1e5).epsilon(0.05));
  const double memory = number_after("memory ", "MiB") * (1 << 20);
  CHECK(memory >= 4 * part);
  CHECK(memory <= 4 * part * 1.1);
}

TEST_CASE("guards that are asked for, and that no machine needs, are told of") {
  Begun run;
  run.a.mesh = "dp=2";
  run.a.guard_every = "7";
  const runtime::Plan plan = run.plan_of(run.on({{"b", 1}, {"c", 1}}));
  const GuardChoice guards = choose_guards(run.a, plan, 0.1, many_steps);
  CHECK(guards.within == 7);
  CHECK(guards.text.empty());
  CHECK(guards.warning.starts_with("--guard-every 7 has no effect on this mesh: no machine alone has"));
  run.a.guard_every = "auto";
  CHECK(choose_guards(run.a, plan, 0.1, many_steps).warning.empty());
}

TEST_CASE("guards of more steps than the run has to do are told of, and there are none") {
  Begun run;
  run.a.mesh = "dp=2";
  run.a.zero = 1;
  run.a.guard_every = "7";
  const runtime::Plan plan = run.plan_of(run.on({{"b", 1}, {"c", 1}}));
  const GuardChoice none = choose_guards(run.a, plan, 0.1, 7), some = choose_guards(run.a, plan, 0.1, 8);
  CHECK(none.warning == "--guard-every 7 has no effect: the run has 7 steps to do");
  CHECK(none.within == 0);  // a loss goes back to a checkpoint, not to the version that the run began with
  CHECK(none.text.empty());
  CHECK(none.summary.empty());
  CHECK(some.warning.empty());
  CHECK(some.within == 7);
  CHECK_FALSE(some.text.empty());
  run.a.guard_every = "auto";
  const std::int64_t within = choose_guards(run.a, plan, 0.1, many_steps).within;
  CHECK(choose_guards(run.a, plan, 0.1, within).within == 0);
  CHECK(choose_guards(run.a, plan, 0.1, within).warning.empty());
  CHECK(choose_guards(run.a, plan, 0.1, within + 1).within == within);
}
