// App::simulate; and what actors report on several places.
#include <doctest/doctest.h>

#include <stdlib.h>

#include <filesystem>
#include <set>

#include "checkpoint/catalog.h"
#include "devices/files/file_storage.h"
#include "runtime/launch/app.h"
#include "tests/runtime/mlp.h"

using namespace mlp;

namespace {

App mlp_app() {
  App app;
  app.actor<Data>("data");
  return app;
}

Plan planned(const std::vector<std::int64_t>& dp, std::int32_t snapshots = 0) {
  CompileOptions o;
  o.stages = stage_meshes(dp);
  o.seed = 7;
  o.snapshots = snapshots;
  auto plan = compile(graph(ops(), {}), o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *std::move(plan);
}

JobOptions options(std::int64_t steps) {
  JobOptions o;
  o.session.steps = steps;
  o.session.loss_divisor = 16;
  o.session.parameters = {"layer0.up"};
  return o;
}

/// A folder that is removed with this object.
struct Folder {
  Folder() {
    char name[] = "/tmp/troupe-simulate-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

/// Reports what it gets: its sum as a number, and its first element as text.
struct Teller final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    double sum = 0;
    for (std::int64_t i = 0; i < call.in[0].size(); ++i) sum += call.in[0].as<float>()[i];
    call.report("sum", {sum});
    const std::string text = "row " + std::to_string(call.in[0].extent.dims[0].lo);
    call.report_bytes("row", std::as_bytes(std::span(text)));
    return {};
  }
};
/// Publishes 0, 1, 2, ... plus 100 for each microbatch.
struct Counter final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    auto& v = call.out[0];
    const std::int64_t first = offset_in(v.extent, Extent::whole(v.logical));
    for (std::int64_t i = 0; i < v.size(); ++i)
      v.as<float>()[i] = static_cast<float>(first + i + 100 * call.microbatch);
    return {};
  }
};

/// What an actor reports that reads a tensor of 4 rows in this layout on a mesh {x: 2, dp: D}: microbatch, name, value.
std::vector<std::string> told(std::int64_t dp, const Sbp& sbp) {
  App app;
  app.actor<Counter>("counter");
  app.actor<Teller>("teller");
  Graph g(app.ops());
  g.program("main", {.microbatches = 2, .samples = 4});
  const Value x = g.actor("counter", "source", {}, {{"x", {DType::f32, {4, 1}}}})[0];
  g.actor("teller", "sink", {x}, {}, {}, {NdSbp{sbp, Sbp::B()}});
  CompileOptions o;
  o.stages = {Mesh::dense({{"x", 2}, {"dp", dp}})};
  const auto plan = compile(g, o);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  std::vector<std::string> out;
  JobOptions job;
  job.session.on_closed = [&](const std::string&, std::int64_t, const std::vector<Report>& reports) {
    for (const auto& r : reports)
      out.push_back(std::to_string(r.microbatch) + " " + r.name + " " +
                    (r.values.empty() ? std::string(r.text()) : std::to_string(static_cast<int>(r.values[0]))));
  };
  const auto result = app.simulate(*plan, job, 1);
  REQUIRE_MESSAGE(result.job.status.ok(), result.job.status.message());
  return out;
}

}  // namespace

TEST_CASE("App::simulate runs a job in this process: the same seed the same run, another one the same numbers") {
  const App app = mlp_app();
  const Plan one = planned({1}), three = planned({2, 1});
  const SimOutcome reference = app.simulate(one, options(4), 0);
  REQUIRE_MESSAGE(reference.job.status.ok(), reference.job.status.message());
  CHECK(reference.job.committed_steps == 4);
  std::set<std::uint64_t> digests;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const SimOutcome a = app.simulate(three, options(4), seed), b = app.simulate(three, options(4), seed);
    REQUIRE_MESSAGE(a.job.status.ok(), a.job.status.message());
    CHECK(a.run.digest == b.run.digest);
    digests.insert(a.run.digest);
    CHECK(a.job.params_hash == reference.job.params_hash);
    CHECK(a.job.parameters.at("layer0.up").values == reference.job.parameters.at("layer0.up").values);
  }
  CHECK(digests.size() == 3);
}

TEST_CASE("App::simulate saves checkpoints and goes on from them, and refuses what run() refuses") {
  const App app = mlp_app();
  const Plan plan = planned({2}, 1);
  const Folder folder;
  JobOptions saving = options(4);
  saving.checkpoint.dir = folder.path + "/parts";
  const SimOutcome four = app.simulate(plan, saving, 5);
  REQUIRE_MESSAGE(four.job.status.ok(), four.job.status.message());
  FileStorage storage;
  const checkpoint::Catalog saved(storage, saving.checkpoint.dir);
  const auto entries = saved.entries();
  REQUIRE(entries.ok());
  REQUIRE(entries->size() == 1);
  CHECK(entries->back().committed);
  CHECK(entries->back().step == 4);
  const auto again = app.simulate(plan, saving, 5);  // another run in the folder
  CHECK(again.job.exit_code == exit_output);
  saving.session.steps = 7;
  saving.session.first_step = 3;
  saving.checkpoint.restore = saved.path(entries->back().folder);
  CHECK(app.simulate(plan, saving, 6).job.exit_code == exit_checkpoint);  // it is of step 4
  saving.session.first_step = 4;
  const SimOutcome seven = app.simulate(plan, saving, 6);
  REQUIRE_MESSAGE(seven.job.status.ok(), seven.job.status.message());
  JobOptions straight = options(7);
  straight.checkpoint.dir = folder.path + "/straight";
  const SimOutcome whole = app.simulate(plan, straight, 7);
  REQUIRE(whole.job.status.ok());
  CHECK(seven.job.params_hash == whole.job.params_hash);
  CHECK(seven.job.parameters.at("layer0.up").values == whole.job.parameters.at("layer0.up").values);
  JobOptions wrong = options(4);
  wrong.checkpoint.dir = folder.path + "/none";
  wrong.session.parameters = {"layer7.up"};
  const SimOutcome refused = app.simulate(plan, wrong, 1);
  CHECK(refused.job.exit_code == exit_plan);
  CHECK(refused.job.status.message().find("'layer7.up'") != std::string::npos);
}

TEST_CASE("an actor whose ports are B reports a microbatch once on any mesh; where tp divides one, each part does") {
  const std::vector<std::string> once = {"0 row row 0", "1 row row 0", "0 sum 6", "1 sum 406"};
  CHECK(told(1, Sbp::B()) == once);
  CHECK(told(2, Sbp::B()) == once);
  const std::vector<std::string> parts = {"0 row row 0", "0 row row 2", "1 row row 0", "1 row row 2",
                                          "0 sum 1",     "0 sum 5",     "1 sum 201",   "1 sum 205"};
  CHECK(told(1, Sbp::S(0)) == parts);
  CHECK(told(2, Sbp::S(0)) == parts);
}

TEST_CASE("a report that no message has room for fails its actor, and says how large it may be") {
  struct Shouts final : actors::UserActor {
    Status act(actors::UserCall& call) override {
      call.report_bytes("novel", std::vector<std::byte>(actors::report_bytes_max + 1));
      return {};
    }
  };
  App app;
  app.actor<Shouts>("shouts");
  Graph g(app.ops());
  g.program("main", {});
  g.actor("shouts", "author", {}, {{"x", {DType::f32, {1}}}});
  const auto plan = compile(g, {});
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  const auto out = app.simulate(*plan, {}, 1);
  CHECK(out.job.exit_code == exit_worker);
  CHECK_MESSAGE(out.job.status.message().find(
                    "author': reports 16777217 bytes as 'novel': expected at most 16777216") != std::string::npos,
                out.job.status.message());
}
