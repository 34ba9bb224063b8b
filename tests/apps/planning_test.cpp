// From a job's arguments to its plans.
#include "apps/job/planning.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "apps/costs/costs_file.h"
#include "apps/job/placing.h"
#include "apps/lm/model.h"
#include "runtime/plan/stage_meshes.h"
#include "tests/apps/temp_dir.h"
#include "tests/apps/variable.h"

using namespace troupe;
using namespace troupe::lm;

namespace {

/// Kernels are slow while one worker is busy, or four are, and fast beside one other: with slow ones norms are worth
/// dividing, with fast ones not the exchange that it takes.
calibrate::MachineCosts costs_by_workers() {
  calibrate::MachineCosts c;
  c.machine = "a machine";
  c.threads = 1;
  c.handover_s = 1e-4;
  c.intra_node = {1e-4, 1e9};
  for (const int workers : {1, 2, 4}) {
    const double rate = workers == 2 ? 1e15 : 1e6;
    c.kernels.push_back({workers, rate, rate, 1e-6, {}});
  }
  return c;
}

JobArguments arguments(const std::string& mesh, const std::string& costs, std::int64_t threads = 1) {
  JobArguments a;
  a.config_path = TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml";
  a.mesh = mesh;
  a.costs = costs;
  a.threads = threads;
  return a;
}

Prepared prepared(const JobArguments& a) {
  int code = 0;
  auto p = prepare(a, code);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  return *std::move(p);
}

Prepared prepared(const std::string& mesh, const std::string& costs, std::int64_t threads = 1) {
  return prepared(arguments(mesh, costs, threads));
}

/// How each tensor lies along tp, by name. Not sums over dp and their shares, which a job on dp=1
/// has none of.
std::map<std::string, std::string> layouts(const Expected<runtime::Plan>& plan) {
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  std::map<std::string, std::string> out;
  for (const runtime::PlanTensor& t : plan->tensors)
    for (std::size_t a = 0; a < t.sbp.size(); ++a)
      if (plan->meshes[static_cast<std::size_t>(t.mesh)].axes[a].name == "tp" && !t.name.ends_with(".share") &&
          !t.name.ends_with(".weight.grad"))
        out[t.name] += to_string(t.sbp[a]) + " ";
  return out;
}

struct Layouts {
  std::map<std::string, std::string> trained, evaluated, sampled;
  bool operator==(const Layouts&) const = default;
};

Layouts layouts_of(const runtime::App& app, const Prepared& p) {
  auto made = make_plan(app, p, "corpus", {});
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return {layouts(std::move(made->plan)), layouts(make_evaluation_plan(app, p, "corpus", EvaluatedPart::held_out, 0)),
          layouts(make_sample_plan(app, p, {1, 2, 3, 4}))};
}

}  // namespace

TEST_CASE(
    "every plan of a job has the layouts of one worker's costs: on any dp, with any number of threads, named or not") {
  test::TempDir dir;
  const test::Variable cache("XDG_CACHE_HOME", dir / "cache");
  const std::string path = calibrate::default_costs_path();
  const auto made = calibrate::prepare_costs(path);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  REQUIRE(calibrate::write_costs(path, costs_by_workers()).ok());
  runtime::App app;
  register_actors(app);
  const Layouts expected = layouts_of(app, prepared("dp=2,tp=2", path));
  Prepared other = prepared("tp=2", path);
  CHECK(other.costs != prepared("dp=2,tp=2", path).costs);
  CHECK(layouts_of(app, other) == expected);
  CHECK(layouts_of(app, prepared("tp=2", "")) == expected);
  CHECK(layouts_of(app, prepared("tp=2", path, 3)) == expected);
  CHECK(layouts_of(app, prepared("tp=2", "", 3)) == expected);
  other.layout_costs = other.costs;  // of two workers
  const Layouts fast = layouts_of(app, other);
  REQUIRE(fast.trained != expected.trained);
  REQUIRE(fast.evaluated != expected.evaluated);
  REQUIRE(fast.sampled != expected.sampled);
  // What reads a checkpoint has this machine's costs, too.
  ResumePoint point;
  point.manifest.config = to_toml(other.config);
  int code = 0;
  const auto saved = prepare_saved(point, "tp=2", -1, "", code);
  REQUIRE_MESSAGE(saved.ok(), saved.status().message());
  CHECK(saved->layout_costs_from == path);
  const auto read = calibrate::read_costs(path);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  auto two = read->model(2), one = read->model(1);
  two.places_per_node = one.places_per_node = 2;  // its workers are on this machine
  CHECK(saved->costs == two);
  CHECK(saved->layout_costs == one);
  const test::Variable elsewhere("XDG_CACHE_HOME", dir / "none");
  for (const std::int64_t threads : {-1, 3}) {  // they predict nothing: no warning for other threads
    const auto named = prepare_saved(point, "tp=2", threads, path, code);
    REQUIRE_MESSAGE(named.ok(), named.status().message());
    CHECK(named->layout_costs_from == path);
    CHECK(named->layout_costs == one);
    CHECK(named->warnings.empty());
  }
}

TEST_CASE("layouts are found for links that are throttled, and for kernels that are not paced") {
  const JobArguments plain = arguments("tp=2", "");
  const Prepared as_it_is = prepared(plain);
  JobArguments changed = plain;
  changed.paced = 3;
  const Prepared paced = prepared(changed);
  CHECK(paced.costs != as_it_is.costs);
  CHECK(paced.layout_costs == as_it_is.layout_costs);
  changed = plain;
  changed.throttle = {"latency=5ms,bandwidth=1MB/s"};
  const Prepared slow = prepared(changed);
  for (const CostModel* c : {&slow.costs, &slow.layout_costs}) {
    CHECK(c->intra_node.latency_s >= 5e-3);
    CHECK(c->intra_node.link_bytes_per_s == 1e6);
  }
}

TEST_CASE("of the orders in which ranks fill machines the one is taken whose step is played fastest; tp stays inside") {
  test::TempDir dir;
  calibrate::MachineCosts costs = costs_by_workers();
  costs.kernels = {{1, 1e10, 1e10, 1e-6, {}}};
  runtime::App app;
  register_actors(app);
  int replica_by_replica = 0, stage_by_stage = 0;
  // Long latencies cost a pipeline over machines most, low rates sums of gradients.
  for (const LinkCost& between : {LinkCost{20e-3, 1e9}, {1e-6, 2e6}})
    for (const std::string mesh : {"dp=2,pp=2,tp=2", "dp=2,pp=2", "dp=4/2,pp=2"}) {
      CAPTURE(mesh);
      costs.inter_node = calibrate::MachineLinks{between, {"a", "b"}, {}};
      REQUIRE(calibrate::write_costs(dir / "costs.toml", costs).ok());
      const JobArguments a = arguments(mesh, dir / "costs.toml");
      Prepared p = prepared(a);
      const std::int64_t workers = p.mesh.workers();
      REQUIRE(put_on_machines(p, a, {{"a", workers / 2}, {"b", workers / 2}}).ok());
      CHECK(p.costs.inter_node.bytes_per_s == doctest::Approx(between.bytes_per_s * 2 / static_cast<double>(workers)));
      const auto tried = choose_order(app, p, "corpus", {});
      REQUIRE_MESSAGE(tried.ok(), tried.status().message());
      REQUIRE(tried->size() == 2);
      const runtime::RankOrder chosen = p.order;
      double best_s = 1e9;
      for (const OrderTried& one : *tried) {
        p.order = one.order;
        auto made = make_plan(app, p, "corpus", {});
        REQUIRE_MESSAGE(made.ok(), made.status().message());
        const auto predicted = predict(made->plan);
        REQUIRE_MESSAGE(predicted.ok(), predicted.status().message());
        CHECK(one.step_s == predicted->game.step_s);
        if (one.order == chosen) best_s = one.step_s;
        for (std::int32_t s = 0; s < made->plan.stages; ++s) {
          const Mesh& stage = made->plan.meshes[static_cast<std::size_t>(s)];
          for (std::int64_t at = 0; at < stage.size(); ++at)
            CHECK(p.costs.on_one_node(stage.ranks[at], stage.ranks[stage.position({0, stage.coord(at)[1]})]));
        }
      }
      for (const OrderTried& one : *tried) CHECK(best_s <= one.step_s);
      (chosen == runtime::RankOrder::stage_by_stage ? stage_by_stage : replica_by_replica) += 1;
      const std::string text = placing_text(p, *tried);
      CHECK_MESSAGE(text.find("machines    a: ranks 0-" + std::to_string(workers / 2 - 1)) == 0, text);
      CHECK_MESSAGE(text.find("is predicted to be fastest: stage by stage ") != std::string::npos, text);
      CHECK((text.find("tp          each group is inside a machine") != std::string::npos) == (p.mesh.tp > 1));
    }
  CHECK(replica_by_replica > 0);
  CHECK(stage_by_stage > 0);
}

TEST_CASE("no other way to put the places of two stages on two machines is predicted to be faster than what is taken") {
  test::TempDir dir;
  calibrate::MachineCosts costs = costs_by_workers();
  costs.kernels = {{1, 1e10, 1e10, 1e-6, {}}};
  runtime::App app;
  register_actors(app);
  for (const LinkCost& between : {LinkCost{20e-3, 1e9}, {1e-6, 2e6}}) {
    CAPTURE(between.latency_s);
    costs.inter_node = calibrate::MachineLinks{between, {"a", "b"}, {}};
    REQUIRE(calibrate::write_costs(dir / "costs.toml", costs).ok());
    const JobArguments a = arguments("dp=2,pp=2", dir / "costs.toml");
    Prepared p = prepared(a);
    REQUIRE(put_on_machines(p, a, {{"a", 2}, {"b", 2}}).ok());
    const auto step_s = [&] {
      auto made = make_plan(app, p, "corpus", {});
      REQUIRE_MESSAGE(made.ok(), made.status().message());
      const auto predicted = predict(made->plan);
      REQUIRE_MESSAGE(predicted.ok(), predicted.status().message());
      return predicted->game.step_s;
    };
    REQUIRE(choose_order(app, p, "corpus", {}).ok());
    const double taken_s = step_s();
    p.order = runtime::RankOrder::stage_by_stage;
    std::vector<std::int32_t> nodes = {0, 0, 1, 1};
    double best_s = 1e9;
    do {
      p.costs.nodes = nodes;
      best_s = std::min(best_s, step_s());
    } while (std::next_permutation(nodes.begin(), nodes.end()));
    CHECK(taken_s <= best_s * (1 + 1e-6));
  }
}

TEST_CASE(
    "where machines have one place, or a job one stage, there is no order to choose; the plan says where tp spans") {
  runtime::App app;
  register_actors(app);
  const auto on = [&](const std::string& mesh, std::vector<Machine> machines, std::string& text) {
    const JobArguments a = arguments(mesh, "");
    Prepared p = prepared(a);
    const Status s = put_on_machines(p, a, std::move(machines));
    REQUIRE_MESSAGE(s.ok(), s.message());
    const auto tried = choose_order(app, p, "corpus", {});
    REQUIRE_MESSAGE(tried.ok(), tried.status().message());
    CHECK(tried->empty());
    CHECK(p.order == runtime::RankOrder::stage_by_stage);
    text = placing_text(p, *tried);
    return p;
  };
  std::string text;
  on("dp=2,pp=2", {{"", 1}, {"", 1}, {"", 1}, {"", 1}}, text);
  CHECK(text == "machines    machine 0: rank 0; machine 1: rank 1; machine 2: rank 2; machine 3: rank 3\n");
  on("dp=2,pp=2", {{"", 4}}, text);
  CHECK(text == "machines    machine 0: ranks 0-3\n");
  const Prepared whole = on("dp=2,tp=2", {{"a", 3}, {"b", 3}}, text);
  CHECK(whole.costs.nodes == std::vector<std::int32_t>{0, 0, 1, 1});
  CHECK(text == "machines    a: ranks 0-1; b: ranks 2-3\ntp          each group is inside a machine\n");
  const Prepared spanning = on("dp=3,tp=2", {{"a", 3}, {"b", 3}}, text);
  CHECK(text ==
        "machines    a: ranks 0-1, 4; b: ranks 2-3, 5\n"
        "tp          1 of 3 groups span machines, which have too few places: ranks 4-5\n");
  // Layouts, and with them bits, do not depend on machines.
  CHECK(spanning.layout_costs.axis_link(2) == spanning.layout_costs.intra_node);
  Prepared p = prepared("dp=2,pp=2", "");
  CHECK(put_on_machines(p, arguments("dp=2,pp=2", ""), {{"", 3}})
            .message()
            .find("the mesh needs 4 places, and 1 machine "
                  "has 3") == 0);
}

TEST_CASE("pairs of machines that were measured apart have links of their own, between all of their places") {
  test::TempDir dir;
  calibrate::MachineCosts costs = costs_by_workers();
  costs.inter_node = calibrate::MachineLinks{{1e-3, 1e9}, {"a", "b", "c"}, {{"a", "c", {5e-3, 4e8}}}};
  REQUIRE(calibrate::write_costs(dir / "costs.toml", costs).ok());
  const JobArguments a = arguments("dp=2,pp=3", dir / "costs.toml");
  for (const bool named : {true, false}) {
    Prepared p = prepared(a);
    std::vector<Machine> machines = {{"a", 2}, {"b", 2}, {"c", 2}};
    if (!named)
      for (Machine& m : machines) m.name.clear();
    REQUIRE(put_on_machines(p, a, machines).ok());
    CHECK(p.costs.odd_links.size() == 4);
    CHECK(p.costs.link(1, 4).latency_s == doctest::Approx(5e-3));
    CHECK(p.costs.link(1, 4).bytes_per_s == doctest::Approx(2e8));  // two places share a card
    CHECK(p.costs.link(1, 2).latency_s == doctest::Approx(1e-3));
  }
}

TEST_CASE("a checkpoint whose configuration is none of troupe train is named, with the code of checkpoints") {
  ResumePoint point;
  point.folder = "runs/own/step-1";
  for (const std::string config : {"", "[model]\nunknown = 1\n"}) {
    CAPTURE(config);
    point.manifest.config = config;
    JobArguments from_file = arguments("dp=1", ""), from_checkpoint = from_file;
    from_checkpoint.config_path.clear();
    for (const int which : {0, 1, 2}) {
      CAPTURE(which);
      int code = 0;
      const auto p = which == 0   ? prepare(from_file, code, &point)
                     : which == 1 ? prepare(from_checkpoint, code, &point)
                                  : prepare_saved(point, "", -1, "", code);
      REQUIRE_FALSE(p.ok());
      CHECK(code == runtime::exit_checkpoint);
      CHECK_MESSAGE(p.status().message().find("the configuration in 'runs/own/step-1'") == 0, p.status().message());
      CHECK((p.status().message().find("an application of its own has saved the checkpoint") != std::string::npos) ==
            config.empty());
    }
  }
}

TEST_CASE("plans may have what is available less what the processes of their workers take; never less than nothing") {
  constexpr std::int64_t mib = 1 << 20, process = 40 * mib;  // measured: 2026-11-22-clean-clone.md
  for (const std::int64_t workers : {1, 64}) {
    const std::int64_t left = memory_for_plans(16'384 * mib, workers);
    CHECK(left <= 16'384 * mib - workers * process);
    CHECK(left >= 16'384 * mib - 2 * workers * process);
  }
  CHECK(memory_for_plans(100 * mib, 4) == 0);
}
