// From a job's arguments to its plans.
#include "apps/job/planning.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "apps/costs/costs_file.h"
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
  auto made = make_plan(app, p, "corpus", 0);
  REQUIRE_MESSAGE(made.ok(), made.status().message());
  return {layouts(std::move(made->plan)), layouts(make_evaluation_plan(app, p, "corpus", EvaluatedPart::held_out, 0)),
          layouts(make_sample_plan(app, p, 4))};
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
